"""What filling a cache ahead of training did."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FillResult:
    """What a `fill` did. computed, found: samples; of an id that comes twice the second one is found."""

    batches: int
    computed: int
    found: int
