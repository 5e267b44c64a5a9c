"""The times of an epoch, for an observer of a loader."""

import time
from typing import NamedTuple, Protocol


class EpochTimes(NamedTuple):
    """seconds: of the epoch, and of iterations before it that the program has left. outside: those that the program
    spent between two batches. cpu: CPU seconds of the loader in the program's thread. is_steady: whether the epoch was
    complete, and not the first one, with no other before it. processes: workers.
    """

    seconds: float
    outside: float
    cpu: float
    is_steady: bool
    processes: int


class EpochListener(Protocol):
    """Called by a loader after each epoch."""

    def __call__(self, times: EpochTimes) -> None: ...

    def close(self) -> None:
        """The loader is closed."""


class LoaderTimes:
    """The times of a loader's iterations that no observer was told. An iteration that is left counts until then."""

    def __init__(self) -> None:
        self.inside = self.outside = self.cpu = 0.0


class IterationClock:
    """Measures one iteration from its making on, and adds to the times of its loader."""

    def __init__(self, times: LoaderTimes) -> None:
        self._times = times
        self._is_first = not times.inside  # of those that the observer is told of next
        self._mark, self._cpu = time.perf_counter(), time.thread_time()

    def leave(self) -> None:
        """The program goes on with a batch."""
        now, times = time.perf_counter(), self._times
        times.inside += now - self._mark
        times.cpu += time.thread_time() - self._cpu
        self._mark = now

    def enter(self) -> None:
        """The program asks for the next batch."""
        now = time.perf_counter()
        self._times.outside += now - self._mark
        self._mark, self._cpu = now, time.thread_time()

    def taken(self, processes: int, *, is_steady: bool) -> EpochTimes:
        """The times since the last ones that were taken. What comes later is of no epoch."""
        self.leave()
        times, self._times = self._times, LoaderTimes()
        taken = EpochTimes(
            times.inside + times.outside, times.outside, times.cpu, is_steady and self._is_first, processes
        )
        times.inside = times.outside = times.cpu = 0.0
        return taken
