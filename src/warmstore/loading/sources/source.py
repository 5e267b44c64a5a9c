"""The one contract of everything that samples are read from."""

from abc import ABC, abstractmethod
from typing import Any

from warmstore.loading.samplers.counter_rng import Int64


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

    def read_in(self, epoch: int, positions: Int64) -> Any:
        """The same in an epoch, for sources whose samples are others in each."""
        return self.read(positions)

    def finish(self) -> None:  # noqa: B027  most have nothing to finish
        """An epoch is over. Called in every process that reads."""

    def notes(self) -> list[str]:
        """What the user should be told, since the last call."""
        return []

    def release(self) -> None:  # noqa: B027
        """The loader that read is closed."""
