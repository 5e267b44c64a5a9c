"""Source: samples by position."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, final

import numpy as np

from warmstore.errors import SampleSkipped
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.records.sample_batch import SampleBatch


class PartialBatch(NamedTuple):
    """A batch without the samples that cannot be read.

    batch: None if there are none. kept: int64, the indices of its rows among the positions asked for; None for all.
    errors: of the samples that are left out, by the same indices.
    """

    batch: Any
    kept: Int64 | None
    errors: dict[int, Exception]


class Source(ABC):
    """Samples by position, many at a time. A source can be pickled, and several threads may read from it at once.

    identity: a JSON value that differs between sources of equal length with different samples; None if unknown.
    sample_bytes: bytes of one sample if reading only copies memory; else None.
    inner: the sources that this source reads from.
    """

    identity: Any = None
    sample_bytes: int | None = None
    inner: tuple["Source", ...] = ()

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    @abstractmethod
    def read(self, positions: Int64) -> Any:
        """The samples at int64 [n] positions, n > 0, as a batch: [n, ...] arrays, lists of n, or dicts of these."""

    def read_in(self, epoch: int, positions: Int64) -> Any:
        """The samples in an epoch, for sources whose samples depend on the epoch."""
        return self.read(positions)

    def read_partly(self, epoch: int, positions: Int64, *, fills: bool) -> PartialBatch:
        """The samples in an epoch, without those that a step leaves out.

        Args:
            fills: repeat the last row, for as many rows as positions.

        Raises:
            SampleSkipped: a step leaves out a sample, and this source cannot tell which.
        """
        return PartialBatch(self.read_in(epoch, positions), None, {})

    def begin_pass(self, began: int) -> None:
        """Called before each batch that is read in a pass over the samples.

        Args:
            began: when the pass began, in nanoseconds by `time.monotonic_ns`, which all processes of a machine share;
                0 if that is unknown. An epoch of an iteration is a pass: the same epoch may be read in many.
        """
        for source in self.inner:
            source.begin_pass(began)

    @final
    def sample(self, position: int) -> Any:
        """One sample, in epoch 0; a negative position counts from the end.

        Raises:
            IndexError: a position outside the source.
        """
        return SampleBatch(self.read(np.array([range(len(self))[position]])), 1)[0]

    @property
    def forks(self) -> bool:
        """Whether processes that are forked can read from it."""
        return all(source.forks for source in self.inner)

    def processes(self, most: int) -> int:
        """How many worker processes the epoch that begins is worth, `most` or fewer."""
        return most

    def finish(self) -> None:
        """Called at the end of an epoch, in every process that reads."""
        for source in self.inner:
            source.finish()

    def report(self) -> Any:
        """What this process has measured since the last call; None for nothing. Called at the end of an epoch."""
        reports = [source.report() for source in self.inner]
        return None if all(report is None for report in reports) else reports

    def take_report(self, report: Any) -> None:
        """Receive the `report` of a worker process, in the process of the loader."""
        for source, part in zip(self.inner, report, strict=True):
            if part is not None:
                source.take_report(part)

    def notes(self) -> list[str]:
        """Messages for the user since the last call."""
        return [note for source in self.inner for note in source.notes()]

    def release(self) -> None:
        """Called when the loader closes."""
        for source in self.inner:
            source.release()


def filled(kept: Int64, count: int) -> Int64:
    """The indices of rows, at least one, with the last one repeated up to `count` rows."""
    return np.append(kept, np.full(count - len(kept), kept[-1]))


def cause_of(error: Exception) -> Exception:
    """The error because of which a sample is skipped."""
    cause = error.__cause__ if isinstance(error, SampleSkipped) else None
    return cause if isinstance(cause, Exception) else error
