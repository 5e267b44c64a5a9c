"""The one contract of everything that samples are read from."""

from abc import ABC, abstractmethod
from typing import Any

from warmstore.loading.draws import Int64


class Source(ABC):
    """Samples by position, many at a time. A source must survive a pickle, and reads from several threads at once.

    identity: what tells these samples from others of the same number, as JSON has it, or None.
    sample_bytes: what one sample takes where reading is a mere copy from memory; None where it costs more.
    """

    identity: Any = None
    sample_bytes: int | None = None

    @abstractmethod
    def __len__(self) -> int:
        """How many samples there are."""

    @abstractmethod
    def read(self, positions: Int64) -> Any:
        """The samples at int64 [n] positions, n at least 1, as one batch: [n, ...] arrays, lists of n, or dicts of
        these."""
