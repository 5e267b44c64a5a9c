"""Which samples a plan caches at which placement, for data sets that grow, shrink and are shuffled."""

import numpy as np
import pytest
from tests.pipeline.making import plan_of

import warmstore as ws
from warmstore.pipeline.plan.assignment import assign
from warmstore.pipeline.plan.plan import Plan

SAMPLES = 10_000


def planned(counts: tuple[int, int] = (3000, 4000), samples: int = SAMPLES) -> Plan:
    pipe = ws.Pipeline(range(samples)).step(str)
    return plan_of(pipe, [(1, "memory", "raw"), (1, "disk", "raw")], counts)


@pytest.fixture
def keys() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 1 << 64, (SAMPLES, 2), np.uint64)


def test_every_sample_has_one_placement_and_counts_are_exact(keys: np.ndarray) -> None:
    places = assign(planned(), keys)
    assert np.bincount(places + 1).tolist() == [3000, 3000, 4000]


def test_every_stretch_of_any_order_meets_all_tiers_in_proportion(keys: np.ndarray) -> None:
    places = assign(planned(), keys)
    for order in (np.arange(SAMPLES), np.random.default_rng(1).permutation(SAMPLES)):
        batches = places[order].reshape(-1, 100)
        for number, share in enumerate((0.3, 0.4)):
            found = (batches == number).sum(1)
            deviation = np.sqrt(100 * share * (1 - share))
            assert abs(found - 100 * share).max() < 5 * deviation + 1  # of a hundred batches none is five sigmas off
            assert found.std() < 1.5 * deviation


def test_another_order_of_the_samples_changes_nothing(keys: np.ndarray) -> None:
    order = np.random.default_rng(2).permutation(SAMPLES)
    assert assign(planned(), keys[order]).tolist() == assign(planned(), keys)[order].tolist()


def test_a_little_more_room_moves_few_samples(keys: np.ndarray) -> None:
    small, large = assign(planned((3000, 4000)), keys), assign(planned((3100, 4100)), keys)
    assert (small != large).sum() == 100 + 100 + 100  # to memory, from memory to the disk, to the disk


def test_what_is_there_keeps_its_placement_when_the_data_grow(keys: np.ndarray) -> None:
    more = np.random.default_rng(3).integers(0, 1 << 64, (100, 2), np.uint64)
    before = assign(planned(), keys)
    there = [np.append(before == number, np.zeros(100, bool)) for number in range(2)]
    after = assign(planned((3010, 4010), SAMPLES + 100), np.concatenate((keys, more)), there)
    assert (after[:SAMPLES][before >= 0] == before[before >= 0]).all()
    assert np.bincount(after + 1).tolist() == [3080, 3010, 4010]


def test_what_is_there_beyond_the_plan_is_used(keys: np.ndarray) -> None:
    """A larger plan has left all samples on the disk: those without a placement are read from there."""
    there = [None, np.ones(SAMPLES, bool)]
    places = assign(planned(), keys, there)
    assert np.bincount(places + 1).tolist() == [0, 3000, 7000]
    assert (places[assign(planned(), keys) == 0] != -1).all()
