"""What an observer of a loader is told: the time in the loader, and that of the program between two batches."""

from typing import Any

import numpy as np
import pytest

import warmstore as ws
from warmstore.loading import epoch_times
from warmstore.loading.epoch_times import EpochTimes


class Clock:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.now


class Seen(list[EpochTimes]):
    def __call__(self, times: EpochTimes) -> None:
        self.append(times)

    def close(self) -> None:
        pass


def test_an_epoch_that_was_left_counts_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seen = Clock(), Seen()
    monkeypatch.setattr(epoch_times, "time", clock)

    def work(batch: Any) -> Any:
        clock.now += 1
        return batch

    with ws.Loader(np.arange(12), 3, ws.Sequential(), transform=work, workers=0) as loader:
        loader._observer = seen
        for _ in range(2):
            for _ in loader:
                clock.now += 10
        assert seen == [EpochTimes(34, 30, 4, False, 0), EpochTimes(34, 30, 4, True, 0)]
        for batch in loader:
            if batch[0] == 3:
                break
            clock.now += 10
        clock.now += 1000  # the program does something else
        for _ in loader:
            clock.now += 10
        assert seen[2:] == [EpochTimes(46, 40, 6, False, 0)]  # two batches of the `for` that was left, and four
        for _ in loader:
            clock.now += 10
        assert seen[3:] == [EpochTimes(34, 30, 4, True, 0)]
