"""Blocks of a mix in random order: every block holds its shares, and any place is found without those before it."""

import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loading.statistics import surprise

from warmstore.errors import PositionError
from warmstore.loading.samplers.mixture_schedule import MixtureSchedule
from warmstore.loading.samplers.random_interleave import RandomInterleave

WEIGHTS = st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(any)


def whole(mix: RandomInterleave, length: int) -> tuple[Any, Any]:
    return mix.at(np.arange(length))


@given(WEIGHTS, st.integers(0, 2**64 - 1))
def test_every_block_holds_its_shares_and_every_source_its_order(weights: list[int], seed: int) -> None:
    mix = RandomInterleave(MixtureSchedule(weights), seed)
    assert 512 < mix.block <= 1024
    source, before = whole(mix, 3 * mix.block)
    assert source.dtype == before.dtype == np.int64
    for block in source.reshape(3, -1):
        assert np.array_equal(
            np.bincount(block, minlength=len(weights)) * sum(weights), np.multiply(weights, mix.block)
        )
    for number in range(len(weights)):
        assert before[source == number].tolist() == list(range((source == number).sum()))


@given(WEIGHTS, st.integers(0, 3000), st.integers(0, 2000), st.data())
def test_any_places_equal_those_of_the_whole(weights: list[int], start: int, length: int, data: st.DataObject) -> None:
    mix = RandomInterleave(MixtureSchedule(weights), 5)
    source, before = whole(mix, start + length + 1)
    places = np.array(data.draw(st.lists(st.integers(0, length), max_size=30)), np.int64)
    found = mix.at(places, start)
    assert np.array_equal(found[0], source[start + places])
    assert np.array_equal(found[1], before[start + places])
    assert mix.counts(start) == tuple(np.bincount(source[:start], minlength=len(weights)).tolist())


@settings(max_examples=20)
@given(WEIGHTS)
def test_shares_hold_within_blocks_as_promised(weights: list[int]) -> None:
    mix = RandomInterleave(MixtureSchedule(weights), 1)
    share = np.array(weights) / sum(weights)
    source, _ = whole(mix, 40 * mix.block)
    off = np.stack([(source == k).cumsum() - np.arange(1, len(source) + 1) * share[k] for k in range(len(weights))])
    assert (np.abs(off).max(1) <= share * (1 - share) * mix.block + 1e-6).all()
    halfway = off[:, mix.block // 2 - 1 :: mix.block]
    spread = np.sqrt(share * (1 - share) * mix.block) / 2
    assert (np.sqrt((halfway**2).mean(1)) <= 1.6 * spread + 1e-6).all()  # of 40 draws


def test_a_period_longer_than_a_block_is_one() -> None:
    mix = RandomInterleave(MixtureSchedule([3001, 700, 0]), 1)
    assert mix.block == 3701
    source, before = whole(mix, 2 * 3701)
    assert np.bincount(source[:3701]).tolist() == np.bincount(source[3701:]).tolist() == [3001, 700]
    assert before[source == 1].tolist() == list(range(1400))


def test_the_farthest_places() -> None:
    mix = RandomInterleave(MixtureSchedule([3, 2]), 9)
    source, before = mix.at(np.arange(4), 2**62 - 4)
    counts = np.array(mix.counts(2**62 - 4))
    for at in range(4):
        assert before[at] == counts[source[at]]
        counts[source[at]] += 1
    assert mix.counts(2**62) == tuple(counts.tolist())
    for places, start in ((np.array([1]), 2**62), (np.array([-1]), 0)):
        with pytest.raises(PositionError, match="places of a mix must be from 0"):
            mix.at(places, start)


def test_a_place_costs_its_block() -> None:
    mix = RandomInterleave(MixtureSchedule([7, 2, 1]), 9)
    tracemalloc.start()
    mix.at(np.arange(100), 2**60)
    assert tracemalloc.get_traced_memory()[1] < 200_000
    # Of places far from each other a few blocks at a time.
    mix.at(np.arange(1000) * 10**9)
    assert tracemalloc.get_traced_memory()[1] < 8_000_000
    tracemalloc.stop()


def test_order_is_random_within_a_block() -> None:
    mix = RandomInterleave(MixtureSchedule([5, 3, 2]), 3)
    source, _ = whole(mix, 400 * mix.block)
    # A source is as likely at any place of a block, and whatever came before it.
    blocks = source.reshape(400, -1)
    for number in range(3):
        assert surprise((blocks == number).sum(0)) > 1e-6
    pairs = np.bincount(3 * source[:-1] + source[1:], minlength=9)
    likely = np.outer([5, 3, 2], [5, 3, 2]).ravel()
    assert np.abs(pairs / likely / len(source) * 100 - 1).max() < 0.02


def test_seeds_epochs_and_blocks_have_orders_of_their_own() -> None:
    mix = MixtureSchedule([1, 1])
    rows = [whole(RandomInterleave(mix, seed, epoch), 1024)[0] for seed, epoch in ((0, 0), (1, 0), (0, 1))]
    rows += [whole(RandomInterleave(mix), 2048)[0][1024:]]
    for at, row in enumerate(rows):
        for other in rows[at + 1 :]:
            assert 412 < (row == other).sum() < 612  # 512 ± 16


def test_values_are_kept_for_good() -> None:
    """A checkpoint of an earlier version goes on exactly: these values may never change."""
    mix = RandomInterleave(MixtureSchedule([5, 3, 2]), 7)
    assert mix.at(np.arange(16), 1015)[0].tolist() == [2, 1, 1, 0, 0, 2, 0, 0, 2, 1, 0, 1, 0, 0, 2, 0]
    assert mix.at(np.arange(16), 1015)[1].tolist() == [
        *[203, 304, 305, 508, 509, 204, 510, 511, 205, 306, 512, 307, 513, 514, 206, 515]
    ]


def test_it_is_equal_by_its_values_and_survives_a_pickle() -> None:
    mix = RandomInterleave(MixtureSchedule([2, 1]), 4, 3)
    again = pickle.loads(pickle.dumps(mix))
    assert again == mix
    assert again != RandomInterleave(MixtureSchedule([2, 1]), 5, 3)
    assert np.array_equal(whole(again, 99)[0], whole(mix, 99)[0])
