import pickle
from dataclasses import replace

import numpy as np
import pytest
from tests.pipeline.profiles import profile

import warmstore as ws
from warmstore.pipeline.pipeline import Pipeline
from warmstore.pipeline.plan.planner import plan


def kept(value: int) -> int:
    return value


def pipeline(samples: int, steps: int, **caches: str) -> Pipeline:
    pipe = Pipeline(range(samples))
    for number in range(1, steps + 1):
        pipe = pipe.step(kept, name=f"step{number}", cache=caches.get(f"step{number}", "auto"))
    return pipe


def planned(samples: int = 10_000, **told: object) -> ws.Plan:
    found = profile([0, 0.001, 0.003], [100, 1000, 4000], counts=(samples,))
    return plan(pipeline(samples, 2).chain, found, **{"memory": "17MB", "disk": "9MB", "folder": ".", **told})


def test_every_sample_has_one_place_and_counts_are_exact() -> None:
    made = planned()
    places = made.assignment(np.arange(made.samples))
    assert len(made.placements) > 1
    for number in range(len(made.placements)):
        assert (places == number).sum() == made.samples_in(number) > 0
    assert (places == -1).sum() == made.samples - sum(map(made.samples_in, range(len(made.placements))))


def test_every_stretch_of_any_order_meets_all_tiers_in_proportion() -> None:
    made = planned()
    places = made.assignment(np.arange(made.samples))
    shares = np.array([made.samples_in(number) for number in range(len(made.placements))]) / made.samples
    for order in (np.arange(made.samples), np.random.default_rng(1).permutation(made.samples)):
        batches = places[order].reshape(-1, 100)
        for number, share in enumerate(shares):
            found = (batches == number).sum(1)
            deviation = np.sqrt(100 * share * (1 - share))
            assert abs(found - 100 * share).max() < 5 * deviation + 1  # of a hundred batches none is five sigmas off
            assert found.std() < 1.5 * deviation


def test_the_assignment_is_the_same_in_another_process() -> None:
    made = planned()
    at = np.array([3, 9_999, 3])
    made.assignment(at)
    sent = pickle.dumps(made)
    assert pickle.loads(sent).assignment(at).tolist() == made.assignment(at).tolist()
    assert len(sent) < 10_000  # the table of all samples stays here


def test_a_little_more_room_moves_few_samples() -> None:
    small, large = (planned(disk=disk).assignment(np.arange(10_000)) for disk in ("8MB", "9MB"))
    assert (small != large).mean() < 0.1


def test_a_sample_that_is_not_there_is_an_error() -> None:
    with pytest.raises(IndexError, match="sample 10000 is out of range: the plan has 10,000 samples"):
        planned().assignment([10_000])
    with pytest.raises(IndexError, match="sample -1"):
        planned().assignment([-1])


def test_buckets_have_their_own_counts() -> None:
    source = [bytes(1 + number % 2) for number in range(1000)]
    found = profile([0, (0.001, 0.01)], [(1, 2), (1000, 1000)], counts=(500, 500))
    found = replace(found, edges=(2,))
    made = plan(Pipeline(source).step(kept).chain, found, memory=300_000 + (1 << 20))
    places = made.assignment(np.arange(1000))
    # What costs ten times as much for the same bytes goes first.
    assert made.counts[0][0] == (places[::2] >= 0).sum() == 0
    assert made.counts[0][1] == (places[1::2] >= 0).sum() in range(290, 301)
