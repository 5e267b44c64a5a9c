"""The times of an epoch, for an observer of a loader."""

from typing import NamedTuple


class EpochTimes(NamedTuple):
    """seconds: of the epoch. outside: those that the program spent between two batches. cpu: CPU seconds of the loader
    in the program's thread. is_steady: whether the epoch was complete, and not the first one. processes: workers.
    """

    seconds: float
    outside: float
    cpu: float
    is_steady: bool
    processes: int
