"""The options of a profile. A saved profile is used if it has every option that is asked for."""

import math
import os
from dataclasses import dataclass, field
from typing import Any, Self

from warmstore.loading.validation import MOST_SAMPLES, integer, set_fields


@dataclass(frozen=True)
class ProfileOptions:
    """What a profile was made with; see `profile`. samples: an absolute number.

    Raises:
        ValueError: an option is out of range.
    """

    samples: int = 400
    seconds: float = 12.0
    batch_size: int = 64
    max_workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    cutoff: float = 0.1

    def __post_init__(self) -> None:
        set_fields(
            self,
            samples=integer("samples", self.samples, 1, MOST_SAMPLES),
            batch_size=integer("batch_size", self.batch_size, 1, MOST_SAMPLES),
            max_workers=integer("max_workers", self.max_workers, 0, 2**16),
        )
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be above zero and finite; got {self.seconds!r}")
        if not 0 <= self.cutoff < math.inf:
            raise ValueError(f"cutoff must be zero or more and finite; got {self.cutoff!r}")
        set_fields(self, seconds=float(self.seconds), cutoff=float(self.cutoff))  # JSON has no numbers of NumPy

    def fulfil(self, asked: dict[str, Any]) -> bool:
        """Whether these are the options that were asked for. Those that are None were not."""
        return all(value is None or getattr(self, name) == value for name, value in asked.items())

    @classmethod
    def of(cls, asked: dict[str, Any]) -> Self:
        """The options that were asked for, and the defaults of the others."""
        return cls(**{name: value for name, value in asked.items() if value is not None})
