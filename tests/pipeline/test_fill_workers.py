"""Workers that compute missing samples, and end once all are cached."""

import os
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.pipeline.making import plan_of
from tests.slow import thinned, unforked

import warmstore as ws

SAMPLES = 40
pytestmark = pytest.mark.forks


def rows(index: int) -> np.ndarray:
    return np.full(100, index)


def maker(value: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, int, float]:
    """The sample, the process that made it, and a random number."""
    return value, os.getpid(), float(rng.random())


def pipeline(samples: int = SAMPLES) -> ws.Pipeline:
    return ws.Pipeline(range(samples)).step(rows).step(maker, random=True)


def makers(loader: ws.Loader) -> set[int]:
    """The processes that made the batches of an epoch."""
    return {int(pid) for _, pids, _ in loader for pid in pids}


def workers() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True) if child.is_running()}


@pytest.mark.parametrize("start_method", thinned(2, ["fork", unforked()]))
def test_workers_end_once_all_samples_are_cached(start_method: str, tmp_path: Path) -> None:
    pipe = pipeline()
    plan = plan_of(pipe, [(1, "disk", "raw")], folder=tmp_path, workers=0, fill_workers=2)
    before = workers()
    with pipe.loader(plan, 8, start_method=start_method) as loader:
        first = makers(loader)
        assert len(first) in (1, 2)
        assert first <= workers() - before
        for _ in range(2):
            assert makers(loader) == {os.getpid()}
            assert not first & workers()
    assert [epoch.workers for epoch in plan.epochs_run] == [0, 0]
    with pipe.loader(plan, 8) as loader:  # another run finds all samples
        assert makers(loader) == {os.getpid()}


def test_epochs_are_equal_with_and_without_workers() -> None:
    pipe = pipeline()
    plan = plan_of(pipe, [(1, "memory", "raw")], workers=0, fill_workers=2)
    with pipe.loader(plan, 8, seed=3) as loader, pipe.loader(None, 8, workers=0, seed=3) as plain:
        for _ in range(3):
            for (value, _, number), (expected, _, expected_number) in zip(loader, plain, strict=True):
                np.testing.assert_array_equal(value, expected)
                np.testing.assert_array_equal(number, expected_number)


def test_workers_stay_while_a_budget_leaves_samples_out() -> None:
    pipe = pipeline(2000)
    plan = plan_of(pipe, [(1, "memory", "raw")], memory=200_000, workers=0, fill_workers=1)
    with pipe.loader(plan, 50) as loader:
        for _ in range(3):
            assert os.getpid() not in makers(loader)


@pytest.mark.parametrize("asked", [0, 1])
def test_a_number_that_is_asked_for_holds_in_all_epochs(asked: int) -> None:
    pipe = pipeline()
    plan = plan_of(pipe, [(1, "memory", "raw")], workers=0, fill_workers=2)
    with pipe.loader(plan, 8, workers=asked) as loader:
        for _ in range(2):
            made = makers(loader)
            assert len(made) == 1
            assert (os.getpid() in made) == (asked == 0)


def test_another_loop_ends_when_workers_do() -> None:
    pipe = pipeline()
    plan = plan_of(pipe, [(1, "memory", "raw")], workers=0, fill_workers=2)
    with pipe.loader(plan, 8) as loader:
        list(loader)
        list(loader)
        mine, other = iter(loader), iter(loader)  # both in this process
        assert len(list(mine)) == len(list(other)) == SAMPLES // 8


def test_fill_takes_the_workers_of_the_plan(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(SAMPLES)).step(whoami)
    plan = plan_of(pipe, [(1, "disk", "raw")], folder=tmp_path, workers=0, fill_workers=2)
    with pipe:
        assert pipe.fill(plan, 8, progress=False).computed == SAMPLES
        with pipe.loader(plan, 8) as loader:
            made = {int(pid) for pids in loader for pid in pids}
    assert os.getpid() not in made
    assert len(made) in (1, 2)


def whoami(index: int) -> np.ndarray:
    return np.array(os.getpid() + 0 * index)
