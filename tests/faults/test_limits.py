"""No more memory, address space, descriptors or shared memory: an error or a right result, and others work on."""

import contextlib
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults import record_cuts
from tests.faults.children import Ended, in_child, well
from tests.faults.limit_campaign import Limit, campaign, limit_of
from tests.faults.power_campaign import Story
from tests.faults.small_disk import shrink_shared_memory
from tests.faults.story_lists import FAULTY
from tests.pipeline.functions import slow_image
from tests.pipeline.making import expected, plan_of, same
from tests.slow import either, is_long

import warmstore as ws

pytestmark = pytest.mark.forks

SHORT = ("edits", "puts", "artifacts")
MB = 1 << 20
SECONDS = 120


@pytest.mark.parametrize(
    "story",
    [pytest.param(story, id=story.name, marks=() if story.name in SHORT else pytest.mark.slow) for story in FAULTY],
)
def test_some_limits(story: Story) -> None:
    found = campaign(story, 0, either(6, 48), seed=4)
    assert not found.failures, found.failures[0]
    assert found.stopped or not is_long() or story.name in ("tiers", "copies")


def test_all_kinds_of_limits_are_drawn() -> None:
    limits = [limit_of(record_cuts.STORIES[0], number) for number in range(90)]
    assert {limit.name for limit in limits} == {"address space", "data", "descriptors"}
    assert min(limit.more for limit in limits if limit.name == "descriptors") == 0
    assert max(limit.more for limit in limits) > 1 << 36


@pytest.mark.parametrize("name", ["address space", "data"])
def test_a_store_that_is_larger_than_memory(tmp_path: Path, name: str) -> None:
    """Rows are read where all are too many, and rows that were not taken over for want of memory are not there."""
    rows = np.arange(48 * 1024, dtype=np.int64)[:, None].repeat(128, axis=1)
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64", (128,))}) as store:
        store.extend({"x": rows})
    store.close()

    def work(say: Callable[[Any], None]) -> None:
        signal.alarm(SECONDS)
        with ws.RecordStore.open(tmp_path / "s", "a") as store, Limit(name, 24 * MB).held():
            with pytest.raises(MemoryError):
                [store["x"][:] for _ in range(10)]
            for first in range(0, len(rows), 1024):
                assert np.array_equal(store["x"][first : first + 1024], rows[first : first + 1024])
            assert store.verify(progress=False).ok
            with pytest.raises(MemoryError):
                [store.extend({"x": rows[:4096]}) for _ in range(100)]
            with contextlib.suppress(MemoryError):
                store.flush()
        with ws.RecordStore.open(tmp_path / "s") as store:  # the first was closed where there was memory again
            say(len(store))

    (count,) = well(in_child(work))
    assert count % 4096 == 0
    with ws.RecordStore.open(tmp_path / "s") as store:
        assert len(store) == count
        assert np.array_equal(store["x"][: len(rows)], rows)
        assert (store["x"][len(rows) :].reshape(-1, 4096, 128) == rows[:4096]).all()


class Images:
    """Samples of 300 kB, each full of its number."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, at: int) -> Any:
        return np.full(300_000, at, np.uint8)


def wide(batch: Any) -> Any:
    """Rows of 400 kB of their numbers."""
    return np.repeat(batch[:, None], 50_000, axis=1)


def epochs(folder: Path, how: str) -> None:
    """Two epochs with worker processes, whose batches are compared with what they should be."""
    if how == "pipeline":
        pipe = ws.Pipeline(range(32)).step(slow_image, side=64)
        plan = plan_of(pipe, [(1, "memory", "raw"), (1, "disk", "raw")], [16, 16], folder=folder)
        with pipe.loader(plan, 8, workers=2) as loader:
            for epoch in range(2):
                for batch, like in zip(loader, expected(pipe, 8, 0, epoch), strict=True):
                    assert same(batch, like)
        return
    source, transform = (Images(), None) if how == "samples" else (np.arange(32), wide)
    with ws.Loader(source, 4, transform=transform, processes=2, start_method="fork") as loader:
        for _ in range(2):
            found = np.concatenate([batch[:, 0] for batch in loader])
            assert found.tolist() == list(range(32))


@pytest.mark.parametrize("how", ["samples", "transform", "pipeline"])
def test_worker_processes_without_shared_memory(tmp_path: Path, how: str) -> None:
    """Batches travel through pipes. A thread of torch's queue used to drop them, and the consumer waited for ever."""

    def work(say: Callable[[Any], None]) -> None:
        signal.alarm(SECONDS)
        try:
            shrink_shared_memory("64k")
        except OSError:
            return
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            epochs(tmp_path, how)
        say(" ".join(str(one.message) for one in told if one.category is RuntimeWarning))

    said = well(in_child(work))
    if not said:
        pytest.skip("no /dev/shm can be mounted here")
    assert how == "pipeline" or "batches of worker processes travel through pipes" in said[0]


def is_told(ended: Ended) -> bool:
    """Whether a child ended with an error that says that there are no more descriptors."""
    words = ("Too many open files", "errno 24", "exited unexpectedly", "killed by signal")
    return not ended.signal and any(word in ended.error for word in words)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["samples", "pipeline"])
def test_worker_processes_with_few_descriptors(tmp_path: Path, how: str) -> None:
    outcomes = []
    for more in range(2, 40, either(9, 2)):

        def work(say: Callable[[Any], None], more: int = more) -> None:
            signal.alarm(SECONDS)
            warnings.simplefilter("ignore")
            with Limit("descriptors", more).held():
                epochs(tmp_path / str(more), how)

        ended = in_child(work)
        assert ended.code == 0 or is_told(ended), (more, ended)
        outcomes.append(ended.code == 0)
        well(in_child(lambda say, more=more: epochs(tmp_path / str(more), how)))  # type: ignore[misc]
    assert not outcomes[0]
    assert outcomes[-1]
