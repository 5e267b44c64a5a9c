"""Finding: the result of one check of a doctor."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of one check: whether it passed, and what was found."""

    name: str
    well: bool
    said: str
