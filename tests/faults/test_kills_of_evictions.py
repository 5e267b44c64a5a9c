"""Bounded caches whose writer is killed at every operation: what is found is right, and everybody can go on."""

import functools
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.children import in_child
from tests.faults.seam import Counting, Killing
from tests.faults.stories import Hasty
from tests.slow import thinned

import warmstore as ws
from warmstore.features.keyed.cache_quota import SMALLEST
from warmstore.storage.files import Files

pytestmark = pytest.mark.forks

WIDTH, STEP = 12_500, 10  # floats, and samples a flush: 500 kB


def values(ids: Any) -> Any:
    return np.arange(WIDTH, dtype=np.float32) + np.asarray(ids, np.float32)[:, None] * 7


def put(cache: ws.FeatureCache, first: int) -> None:
    ids = range(first, first + STEP)
    cache.put_batch([f"sample {number}" for number in ids], values(ids))
    cache.flush()


def opened(folder: Path, files: Files | None = None, **options: Any) -> ws.FeatureCache:
    return ws.FeatureCache(
        folder, "c", max_size=SMALLEST, async_write=False, flush_every=10_000, files=files or Hasty(), **options
    )


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that is as full as it may be."""
    folder = tmp_path_factory.mktemp("full")
    with opened(folder) as cache:
        for first in range(0, 80, STEP):
            put(cache, first)
        assert cache.stats().evicted
    return folder


def flushes(folder: Path, files: Files, say: Callable[[Any], None] = lambda _: None) -> None:
    with opened(folder, files) as cache:
        for first in (80, 90):
            put(cache, first)
            say(first + STEP)


def rebalances(folder: Path, files: Files, say: Callable[[Any], None] = lambda _: None) -> None:
    with opened(folder, files) as cache:
        cache.rebalance(progress=False)
        say(0)


SCENARIOS = {"flushes": flushes, "rebalances": rebalances}


class Quick(Killing):
    """Dies as it should, and puts nothing on the disk, since only the process ends."""

    def sync(self, descriptor: int) -> None:
        self.before("sync")
        self.after("sync")

    def sync_folder(self, folder: Path) -> None:
        self.before("sync_folder")
        self.after("sync_folder")


def operations(full: Path, tmp_path: Path, scenario: str) -> int:
    counting = Counting()
    shutil.copytree(full, tmp_path / "counted")
    SCENARIOS[scenario](tmp_path / "counted", counting)
    shutil.rmtree(tmp_path / "counted")
    return len(counting.seen)


@pytest.mark.parametrize("scenario", thinned(2, SCENARIOS))
@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_operation(full: Path, tmp_path: Path, scenario: str, step: int) -> None:
    """The moments of an operation take turns, and so do operations in the quick run."""
    count = operations(full, tmp_path, scenario)
    assert count > 20
    for turn, at in enumerate(range(0, count, step)):
        moment = ("before", "middle", "after")[turn % 3]
        folder = tmp_path / str(at)
        shutil.copytree(full, folder)
        reader = opened(folder, read_only=True)
        first, _ = reader.get_batch(["sample 79"])
        ended = in_child(functools.partial(die, scenario, folder, Quick(at, moment)))
        assert ended.signal == signal.SIGKILL, ended.error
        go_on(folder, reader, max(ended.said, default=0))
        assert np.array_equal(first, values([79]))
        reader.close()
        shutil.rmtree(folder)


def die(scenario: str, folder: Path, files: Files, say: Callable[[Any], None]) -> None:
    SCENARIOS[scenario](folder, files, say)


def go_on(folder: Path, reader: ws.FeatureCache, said: int) -> None:
    names = [f"sample {number}" for number in range(120)]
    with opened(folder) as cache:
        for one in (cache, reader):
            check(one, names, said)
        put(cache, 100)
        put(cache, 110)
        for one in (cache, reader, opened(folder, read_only=True)):
            check(one, names, 120)
            assert one.stats().damaged == 0
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= SMALLEST


def check(cache: ws.FeatureCache, names: list[str], said: int) -> None:
    found, missing = cache.get_batch(names)
    there = np.delete(np.arange(120), missing)
    assert np.array_equal(found, values(there))
    if said:  # what was flushed last is there
        assert set(range(said - STEP, said)) <= set(there.tolist())
