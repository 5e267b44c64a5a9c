"""PartRecorder: records what a process reads in the middle of an epoch, which nobody reports before its end.

Loaders record whole epochs. Long epochs, streams and data sets without a loader are recorded by the processes that read
the samples, at growing intervals and at their end.
"""

import os
import time

from warmstore.storage.history import History, Pace


class PartRecorder:
    """Counts the samples that one process reads. For one thread at a time; a copy in another process starts anew.

    Args:
        name: of the plan, as in its other records.
    """

    def __init__(self, history: History, name: str) -> None:
        self._history = history
        self._name = name
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._pace = Pace()
        self._clear()

    def _clear(self) -> None:
        self._samples = self._computed = 0  # since the last record
        self._recorded = (0, 0)  # samples, and computed ones, since the last `take`
        self._began = time.perf_counter()

    def count(self, samples: int, computed: int) -> None:
        """Count a batch, and how many of its samples were computed."""
        if os.getpid() != self._pid:
            self._start()
        if not self._samples:
            self._began = time.perf_counter()
        self._samples += samples
        self._computed += computed
        if self._pace.is_due():
            self.record()

    def record(self) -> None:
        """Record what was counted since the last record, if anything."""
        if os.getpid() != self._pid or not self._samples:
            return
        self._pace.wrote()
        self._history.append(
            "part",
            name=self._name,
            hits=self._samples - self._computed,
            misses=self._computed,
            seconds=time.perf_counter() - self._began,
        )
        samples, computed = self._recorded
        self._recorded = samples + self._samples, computed + self._computed
        self._samples = self._computed = 0

    def take(self) -> tuple[int, int]:
        """An epoch is recorded as a whole: how many samples, and computed ones, need not be recorded again."""
        recorded = self._recorded if os.getpid() == self._pid else (0, 0)
        self._clear()
        return recorded
