"""The one contract of everything that samples are read from."""

from abc import ABC, abstractmethod
from typing import Any, final

import numpy as np

from warmstore.loading.samplers.counter_rng import Int64
from warmstore.records.sample_batch import SampleBatch


class Source(ABC):
    """Samples by position, many at a time. A source must survive a pickle, and reads from several threads at once.

    identity: what tells these samples from others of the same number, as JSON has it, or None.
    sample_bytes: what one sample takes where reading is a mere copy from memory; None where it costs more.
    inner: the sources that this one reads from.
    """

    identity: Any = None
    sample_bytes: int | None = None
    inner: tuple["Source", ...] = ()

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

    @final
    def sample(self, position: int) -> Any:
        """One sample, as of epoch 0; a negative position counts from the end.

        Raises:
            IndexError: a position outside the source.
        """
        at = range(len(self))[position]
        return SampleBatch(self.read(np.array([at])), 1)[0]

    def finish(self) -> None:
        """An epoch is over. Called in every process that reads."""
        for source in self.inner:
            source.finish()

    def notes(self) -> list[str]:
        """What the user should be told, since the last call."""
        return [note for source in self.inner for note in source.notes()]

    def release(self) -> None:
        """The loader that read is closed."""
        for source in self.inner:
            source.release()
