"""Budgets that hold nearly all samples: real pipelines, filled by real workers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.pipeline.making import plan_of
from tests.slow import thinned

import warmstore as ws
from warmstore.storage.disk_usage import folder_bytes

pytestmark = pytest.mark.forks
SAMPLES = 130


def noise(index: int, size: int, varied: bool) -> np.ndarray:
    rng = np.random.default_rng(index)
    return rng.integers(0, 256, size + (rng.integers(0, size) if varied else 0), np.uint8)


def slept(value: np.ndarray) -> np.ndarray:
    """Costs more than reading it back."""
    for _ in range(5):
        np.sort(value[:20_000])
    return value


def planned(pipe: ws.Pipeline, found: ws.Profile, budget: int, folder: Path, workers: int) -> ws.Plan:
    return pipe.plan(profile=found, disk=budget, folder=folder, workers=workers)


def kept(made: ws.Plan) -> int:
    return sum(made.samples_in(number) for number, place in enumerate(made.placements) if place.step == 2)


def least_budget(pipe: ws.Pipeline, found: ws.Profile, folder: Path, workers: int) -> int:
    """The least budget of which the plan says that it holds all samples, within 4 kB."""
    low = SAMPLES * found.stages[2].nbytes[0] // 2
    high = 4 * low + (1 << 20)
    while high - low > 4096:
        middle = int(low + high) // 2
        made = planned(pipe, found, middle, folder, workers)
        low, high = (low, middle) if kept(made) == SAMPLES else (middle, high)
    return int(high)


SIZES = [(60_000, True), (150_000, False), (600_000, False), (2_000, False)]
CASES = [(size, varied, workers) for workers in (3, 0) for size, varied in SIZES]


@pytest.mark.parametrize(("size", "varied", "workers"), thinned(20, CASES))
def test_all_samples_that_a_plan_counts_are_kept(size: int, varied: bool, workers: int, tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(SAMPLES)).step(noise, size=size, varied=varied, cache="never").step(slept)
    found = pipe.profile(samples=SAMPLES, seconds=40, max_workers=0)  # of all samples, also on a busy machine
    budget = least_budget(pipe, found, tmp_path, workers)
    made = planned(pipe, found, budget, tmp_path, workers)
    filled = pipe.fill(made, batch_size=8, progress=False)
    assert (filled.computed, filled.found) == (SAMPLES, 0)
    assert pipe.fill(made, batch_size=8, progress=False).found == SAMPLES
    used = folder_bytes(tmp_path / "warmstore-samples")
    assert used <= budget
    assert budget - used <= 0.01 * budget + 50_000


def test_what_another_process_held_back_is_kept_in_the_next_epoch(tmp_path: Path) -> None:
    """A worker that finds the budget used up, by space that another one gives back, writes in the next epoch."""
    pipe = ws.Pipeline(range(SAMPLES)).step(noise, size=20_000, varied=False).step(slept)
    found = pipe.profile(samples=16, seconds=1, max_workers=0)
    made = planned(pipe, found, 4_000_000, tmp_path, 0)
    assert kept(made) == SAMPLES
    other = tmp_path / "warmstore-samples" / "held"
    with pipe.loader(replace(made, measured=[]), batch_size=10) as loader:
        other.write_bytes(bytes(3_000_000))
        list(loader)
        other.unlink()
        list(loader)
    assert pipe.fill(made, batch_size=10, progress=False).found == SAMPLES


@pytest.mark.parametrize("workers", [0, 2])
def test_after_an_epoch_files_are_no_longer_than_their_content(workers: int, tmp_path: Path) -> None:
    """Chunks are extended by a huge page ahead of their writes, and other processes need these bytes."""
    pipe = ws.Pipeline(range(SAMPLES)).step(noise, size=60_000, varied=False)
    made = plan_of(pipe, [(1, "disk", "raw")], disk=1 << 30, folder=tmp_path)
    with pipe.loader(made, batch_size=8, workers=workers) as loader:
        list(loader)
        assert 0 < folder_bytes(tmp_path / "warmstore-samples") - SAMPLES * 60_000 < 100_000
