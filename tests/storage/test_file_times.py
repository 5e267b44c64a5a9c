"""Times of files with ticks of milliseconds to seconds: what is rewritten within a tick is still seen."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warmstore as ws
from warmstore.identity.named_files import FileStamps
from warmstore.identity.samples.sample_hashes import TextHashes
from warmstore.storage import file_times
from warmstore.storage.file_times import COARSE_TICK, TICK, settle, settle_all

SECOND = 10**9
START = 1_700_000_000 * SECOND


class Clock:
    """The clock of this machine, and of its file system, which keeps times in ticks. It moves when somebody sleeps."""

    def __init__(self, tick: int) -> None:
        self.now = START
        self._tick = tick
        self.slept: list[int] = []

    def time_ns(self) -> int:
        self.now += 1000
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds * SECOND))
        self.now += self.slept[-1]

    def write(self, path: Path, text: str) -> None:
        path.write_text(text)
        modified = self.time_ns() // self._tick * self._tick
        os.utime(path, ns=(modified, modified))


@pytest.fixture(params=[4_000_000, TICK, SECOND, COARSE_TICK], ids=["4 ms", "10 ms", "1 s", "2 s"])
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(request.param)
    monkeypatch.setattr(file_times, "time", clock)
    return clock


@pytest.mark.parametrize("files", ["stat", "content"])
def test_the_text_of_a_file(files: Any, clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "f"
    for stamps in (FileStamps(files), FileStamps(files, root=str(tmp_path))):
        clock.write(path, "one")
        before = stamps.stamp(str(path)), stamps.stamp(str(tmp_path), is_sample=True)
        clock.write(path, "two")
        after = stamps.stamp(str(path)), stamps.stamp(str(tmp_path), is_sample=True)
        assert before[0] != after[0]
        assert before[1] != after[1]
        assert after == (stamps.stamp(str(path)), stamps.stamp(str(tmp_path), is_sample=True))


def test_samples_that_are_paths(clock: Clock, tmp_path: Path) -> None:
    paths = [tmp_path / str(at) for at in range(3)]
    for path in paths:
        clock.write(path, "one")
    hashes = TextHashes(FileStamps(), str)
    _, before = hashes([*map(str, paths)])
    clock.write(paths[1], "two")
    changed = (hashes([*map(str, paths)])[1] != before).any(axis=1)
    assert changed.tolist() == [False, True, False]
    assert len(clock.slept) == 2


def test_a_cached_function(clock: Clock, tmp_path: Path) -> None:
    """The second file has the size, and would have the time, of the first one."""

    @ws.cached(tmp_path / "cache", version="1")
    def read(path: str) -> str:
        return Path(path).read_text()

    path = tmp_path / "f"
    for text in ("one", "two", "six"):
        clock.write(path, text)
        assert read(str(path)) == text
        assert read(str(path)) == text
    assert read.cache.stats().misses == 3


@pytest.mark.parametrize(
    ("modified", "slept"),
    [
        (START - TICK, []),  # a whole second is no more than that: it may be any time
        (START - TICK + 2_000, [2_000]),
        (START + TICK, [2 * TICK]),  # another machine's clock is a little ahead
        (START - SECOND, [SECOND]),
        (START - 2 * SECOND, []),
        (START + 3600 * SECOND, []),  # nothing here would move that clock on
        (START + 3600 * SECOND + 1, []),
        (0, []),
        (-SECOND, []),
    ],
)
def test_waits_are_bounded(modified: int, slept: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(TICK)
    monkeypatch.setattr(file_times, "time", clock)
    clock.now -= 1000
    settle(modified)
    assert [round(each, -3) for each in clock.slept] == slept
    clock = Clock(TICK)
    monkeypatch.setattr(file_times, "time", clock)
    clock.now -= 1000
    settle_all(np.array([START - 10**13, modified, 1]))
    assert [round(each, -3) for each in clock.slept] == slept
    for far in (3600 * SECOND, 3600 * SECOND + 1, 3 * SECOND, 4 * SECOND - TICK // 2):  # a file of another clock
        clock = Clock(TICK)
        monkeypatch.setattr(file_times, "time", clock)
        clock.now -= 1000
        settle_all(np.array([START + far, modified]))
        assert [round(each, -3) for each in clock.slept] == slept
    settle_all(np.zeros(0, np.int64))
