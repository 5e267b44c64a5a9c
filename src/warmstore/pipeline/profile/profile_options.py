"""The options of a profile. A saved profile is used if it has every option that is asked for."""

import os
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class ProfileOptions:
    """What a profile was made with; see `profile`. samples: an absolute number."""

    samples: int = 400
    seconds: float = 12.0
    batch_size: int = 64
    max_workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    cutoff: float = 0.1

    def fulfil(self, asked: dict[str, Any]) -> bool:
        """Whether these are the options that were asked for. Those that are None were not."""
        return all(value is None or getattr(self, name) == value for name, value in asked.items())

    @classmethod
    def of(cls, asked: dict[str, Any]) -> Self:
        """The options that were asked for, and the defaults of the others."""
        return cls(**{name: value for name, value in asked.items() if value is not None})
