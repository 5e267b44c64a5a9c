"""Bucketed orders: permutations whose groups have samples of like lengths, computed pool by pool."""

import json
import pickle
import tracemalloc
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import warmstore as ws
from warmstore.loading.samplers.sampler import Sampler

SOME = np.random.default_rng(0).lognormal(5, 0.8, 20_000).astype(np.int64) + 1


def epoch_of(sampler: Sampler, n: int, epoch: int = 0) -> Any:
    return sampler.indices(0, n, n, epoch)


def padding(order: Any, lengths: Any, size: int) -> float:
    """The share of a padded epoch that is padding."""
    batches = [lengths[order[at : at + size]] for at in range(0, len(order), size)]
    return 1 - sum(int(batch.sum()) for batch in batches) / sum(int(batch.max()) * len(batch) for batch in batches)


LENGTHS = st.integers(0, 200).flatmap(lambda n: st.lists(st.integers(0, 9), min_size=n, max_size=n))


@given(LENGTHS, st.integers(1, 20), st.integers(1, 6), st.integers(0, 2), st.booleans())
def test_every_pool_is_sorted_and_cut_into_groups(
    lengths: list[int], size: int, groups: int, epoch: int, shuffle: bool
) -> None:
    n = len(lengths)
    order = epoch_of(ws.Bucketed(lengths, size, seed=5, groups=groups, shuffle=shuffle), n, epoch)
    assert sorted(order.tolist()) == list(range(n))
    for first in range(0, n, size * groups):
        pool = order[first : first + size * groups]
        whole = len(pool) // size * size
        cut = [[lengths[at] for at in pool[start : start + size]] for start in range(0, whole, size)]
        # Put in order of length, the groups are the sorted pool.
        assert list(chain.from_iterable(sorted(cut))) == sorted(lengths[at] for at in pool[:whole])
        if not shuffle:
            assert cut == sorted(cut, reverse=True)
            assert sorted(pool.tolist()) == list(range(first, first + len(pool)))
        rest = [lengths[at] for at in pool[whole:]]
        assert rest == sorted(rest)
        assert not rest or first + size * groups >= n


def test_values_are_kept_for_good() -> None:
    """A checkpoint of an earlier version goes on exactly: these values may never change."""
    lengths = np.arange(20) * 7 % 11
    assert epoch_of(ws.Bucketed(lengths, 3, seed=1, groups=2), 20, 4).tolist() == [
        *[7, 12, 9, 8, 5, 18, 2, 10, 4, 6, 3, 14, 13, 1, 17, 0, 11, 16, 19, 15]
    ]
    assert epoch_of(ws.Bucketed(lengths, 3, groups=2, shuffle=False), 20).tolist() == [
        *[4, 1, 3, 0, 5, 2, 7, 9, 6, 11, 8, 10, 12, 17, 14, 16, 13, 15, 19, 18]
    ]
    assert ws.Bucketed(SOME, 64, seed=3).indices(6_000, 6_004, len(SOME), 2).tolist() == [17317, 13048, 1033, 7738]


def test_members_of_a_pool_change_with_the_epoch_and_the_seed() -> None:
    lengths = np.zeros(5_000, np.int64)
    orders = [
        epoch_of(ws.Bucketed(lengths, 10, seed=seed, groups=5), 5_000, epoch)
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    for at, order in enumerate(orders):
        for other in orders[at + 1 :]:
            # Two pools of 50 out of 5,000 share half a sample on average.
            assert len(np.intersect1d(order[:50], other[:50])) < 10
    assert ws.Bucketed(lengths, 10).shuffles


def test_groups_of_a_pool_are_shuffled() -> None:
    lengths = np.arange(40_000)
    order = epoch_of(ws.Bucketed(lengths, 10, groups=20), 40_000)
    ranks = np.argsort(lengths[order].reshape(200, 20, 10).min(2), axis=1)
    # Every group of a pool is equally often at each of its places.
    counts = np.stack([np.bincount(column, minlength=20) for column in ranks.T])
    expected = 200 / 20
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = 19 * 19
    assert abs(statistic - freedom) < 5 * (2 * freedom) ** 0.5


def test_it_pads_a_fraction_of_what_plain_shuffling_pads() -> None:
    n = len(SOME)
    plain = padding(epoch_of(ws.Shuffle(), n), SOME, 32)
    bucketed = padding(epoch_of(ws.Bucketed(SOME, 32), n), SOME, 32)
    assert plain > 0.7
    assert bucketed < 0.15
    # More groups in a pool waste less.
    assert bucketed < padding(epoch_of(ws.Bucketed(SOME, 32, groups=10), n), SOME, 32) < 0.4


def test_what_does_not_fill_a_group_favours_no_length() -> None:
    """The last group of a pool in order of length would always be the longest of 25."""
    lengths = np.arange(25)
    last = [epoch_of(ws.Bucketed(lengths, 10), 25, epoch)[20:] for epoch in range(400)]
    assert abs(np.concatenate(last).mean() - 12) < 1


def test_a_pool_is_what_a_place_costs() -> None:
    n = 2_000_000
    sampler = ws.Bucketed(np.arange(n) % 1000, 32, groups=20)
    tracemalloc.start()
    for first in (n - 100, n // 2, 0):
        sampler.indices(first, first + 100, n, 3)
    assert tracemalloc.get_traced_memory()[1] < 200_000
    tracemalloc.stop()


def test_the_pool_that_is_kept_is_of_its_epoch() -> None:
    sampler = ws.Bucketed(SOME, 32)
    for epoch in (0, 1, 0):
        fresh = ws.Bucketed(SOME, 32).indices(100, 200, len(SOME), epoch)
        assert np.array_equal(sampler.indices(100, 200, len(SOME), epoch), fresh)


def test_ranks_and_resuming() -> None:
    lengths = np.arange(103) * 7 % 13
    sampler = ws.Bucketed(lengths, 12, groups=3)
    whole = epoch_of(sampler, 103).tolist()
    loader = ws.Loader(np.arange(103), 4, sampler)
    found = [at for batch in loader for at in batch.tolist()]
    assert found == whole
    ranks = [iter(ws.Loader(np.arange(103), 4, sampler, rank=rank, world_size=3)) for rank in range(3)]
    for at in range(0, 96, 12):
        assert [x for rank in ranks for x in next(rank).tolist()] == whole[at : at + 12]


def test_a_description_is_json_and_tells_orders_apart() -> None:
    kinds = [
        ws.Bucketed([1, 2, 3], 2),
        ws.Bucketed([1, 3, 2], 2),
        ws.Bucketed([1, 2, 3], 3),
        ws.Bucketed([1, 2, 3], 2, seed=1),
        ws.Bucketed([1, 2, 3], 2, groups=51),
        ws.Bucketed([1, 2, 3], 2, shuffle=False),
    ]
    for at, kind in enumerate(kinds):
        described = kind.describe()
        assert json.loads(json.dumps(described)) == described
        assert [other.describe() == described for other in kinds] == [other == kind for other in kinds]
        assert [other == kind for other in kinds].index(True) == at
        again = pickle.loads(pickle.dumps(kind))
        assert again == kind
        assert hash(again) == hash(kind)
        assert again.shuffles == kind.shuffle
    assert kinds[0] != ws.Shuffle()
    assert kinds[0].describe() == {
        "kind": "bucketed",
        "lengths": {"count": 3, "digest": "abccad42d03c940bc2b249bf5a4e1e3d"},
        "size": 2,
        "seed": 0,
        "groups": 50,
        "shuffle": True,
    }


def test_a_mix_gives_each_source_its_seed() -> None:
    buckets = {"a": ws.Bucketed(np.arange(7), 2), "b": ws.Bucketed(np.arange(5), 2)}
    mix = ws.Mixture({"a": np.arange(7), "b": 100 + np.arange(5)}, [7, 5], samplers=buckets)
    (batch,) = ws.Loader(mix, 12)
    assert sorted(batch.tolist()) == [*range(7), *range(100, 105)]
    assert [at for at in batch.tolist() if at < 100] == epoch_of(buckets["a"], 7).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [1, -1]}, "length 1 is -1"),
        ({"lengths": [1.5]}, "lengths must be integers"),
        ({"size": 0}, "size of a group must be an integer from 1 to .*; got 0"),
        ({"size": 2.0}, "size of a group must be an integer"),
        ({"groups": 0}, "groups of a pool must be an integer"),
        ({"seed": -1}, "seed must be an integer"),
        ({"shuffle": 1}, "shuffle must be True or False; got 1"),
    ],
)
def test_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ws.Bucketed(**{"lengths": [1, 2, 3], "size": 2, **options})


def test_refuses_another_number_of_samples() -> None:
    with pytest.raises(ValueError, match="got 3 lengths for 4 samples"):
        ws.Bucketed([1, 2, 3], 2).length(4)
