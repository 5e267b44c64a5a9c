"""Mixes: every source has its share at every prefix, and any place is found without those before it."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmstore.errors import PositionError
from warmstore.loading.samplers.mixture_schedule import MOST_PLACES, MixtureSchedule


def farthest(mix: MixtureSchedule, length: int) -> float:
    """The most any source is off its share at any prefix."""
    source, _ = mix.sources(0, length)
    ideal = np.arange(1, length + 1)
    return max(
        float(np.abs((source == k).cumsum() - ideal * share / mix.period).max()) for k, share in enumerate(mix.shares)
    )


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any))
def test_shares_hold_at_every_prefix(weights: list[int]) -> None:
    mix = MixtureSchedule(weights)
    coming = sum(weight > 0 for weight in weights)
    bound = 1 - 1 / (2 * coming - 2) if coming > 1 else 0
    assert farthest(mix, 2 * mix.period + 3) <= bound + 1e-9
    assert [share * sum(weights) for share in mix.shares] == [weight * mix.period for weight in weights]


@settings(max_examples=15)  # each lays out 100,000 places
@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6))
def test_shares_of_any_numbers_hold(weights: list[float]) -> None:
    mix = MixtureSchedule(weights)
    assert farthest(mix, mix.period) < 1
    assert np.abs(np.array(mix.shares) / mix.period - np.array(weights) / sum(weights)).max() <= 1 / MOST_PLACES


@pytest.mark.parametrize("weights", [[0.5] + [0.01] * 50, [0.98, 0.01, 0.01], [10**5, 1, 1], range(1, 300)])
def test_shares_hold_where_rounding_each_source_alone_would_not(weights: Any) -> None:
    mix = MixtureSchedule(weights)
    assert farthest(mix, mix.period) < 1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any), st.integers(0, 10))
def test_a_source_of_weight_zero_is_as_if_it_were_not_there(weights: list[int], scale: int) -> None:
    numbers = [weight * (1 + scale / 3) for weight in weights] if scale else weights
    mix, without = MixtureSchedule(numbers), MixtureSchedule([number for number in numbers if number])
    source, before = mix.sources(0, 100)
    coming = np.flatnonzero(weights)
    assert np.array_equal(source, coming[without.sources(0, 100)[0]])
    assert np.array_equal(before, without.sources(0, 100)[1])
    assert [share for share in mix.shares if share] == list(without.shares)
    assert [share > 0 for share in mix.shares] == [weight > 0 for weight in weights]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any), st.integers(0, 300))
def test_counts_are_of_the_places_before(weights: list[int], length: int) -> None:
    mix = MixtureSchedule(weights)
    assert mix.counts(length) == tuple(np.bincount(mix.sources(0, length)[0], minlength=len(weights)).tolist())
    again = mix.counts(length + 10**20 * mix.period)
    assert again == tuple(c + s * 10**20 for c, s in zip(mix.counts(length), mix.shares, strict=True))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(0, 300), st.integers(0, 300))
def test_any_part_equals_that_part_of_the_whole(weights: list[int], first: int, count: int) -> None:
    mix = MixtureSchedule(weights)
    source, before = mix.sources(0, first + count)
    assert source.dtype == before.dtype == np.int64
    for k in range(len(weights)):
        assert before[source == k].tolist() == list(range((source == k).sum()))
    part = mix.sources(first, first + count)
    assert np.array_equal(part[0], source[first:])
    assert np.array_equal(part[1], before[first:])


def test_the_farthest_places() -> None:
    mix = MixtureSchedule([3, 2])
    source, before = mix.sources(2**62 - 4, 2**62)
    periods, rest = divmod(2**62 - 4, 5)
    near_source, near_before = mix.sources(rest, rest + 4)
    assert source.tolist() == near_source.tolist()
    assert before.tolist() == [k + periods * (3, 2)[s] for s, k in zip(near_source, near_before.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([0.7, 0.2, 0.1], (7, 2, 1)),
        ([70, 20, 10], (7, 2, 1)),
        ([1 / 3, 1 / 3, 1 / 3], (1, 1, 1)),
        ([0.12345, 0.87655], (2469, 17531)),
        ([1, 1e-3], (1000, 1)),
        ([5], (1,)),
        ((np.float32(0.5), np.int64(1)), (1, 2)),
        ([10**30, 10**30], (1, 1)),
        ([0, 4, 0, 2], (0, 2, 0, 1)),
        ([0.0, 0.7, 0.3], (0, 7, 3)),
        ([0, 2**0.5, 1], (0, 58579, 41421)),
    ],
)
def test_simple_ratios_are_exact(weights: Any, shares: tuple[int, ...]) -> None:
    assert MixtureSchedule(weights).shares == shares


def test_values_are_kept_for_good() -> None:
    """A checkpoint of an earlier version goes on exactly: these values may never change."""
    assert MixtureSchedule([0.5, 0.3, 0.2]).sources(0, 10)[0].tolist() == [0, 1, 0, 2, 0, 1, 0, 2, 0, 1]
    assert MixtureSchedule([5, 1, 1]).sources(0, 7)[0].tolist() == [0, 0, 1, 0, 0, 2, 0]
    assert MixtureSchedule([2**0.5, 1, 0.1]).shares == (56249, 39774, 3977)
    assert MixtureSchedule([0.5, 0.3, 0.2]).describe() == {"kind": "mix", "shares": [5, 3, 2]}


def test_a_mix_is_json_equal_by_weights_and_survives_a_pickle() -> None:
    mix = MixtureSchedule([2, 1])
    again = pickle.loads(pickle.dumps(mix))
    assert again == mix
    assert hash(again) == hash(mix)
    assert again != MixtureSchedule([1, 2])
    assert json.loads(json.dumps(mix.describe())) == mix.describe()
    assert again.sources(5, 9)[1].tolist() == mix.sources(5, 9)[1].tolist()


@pytest.mark.parametrize(
    "weights", [[], [0, 0], [-1, 2], [np.nan], [np.inf, 1], [1e308, 1e308], None, 3, ["a"], [[1, 2]], [1, 10**400]]
)
def test_refuses(weights: Any) -> None:
    with pytest.raises(ValueError, match="weights of a mix must be"):
        MixtureSchedule(weights)


def test_refuses_a_share_that_would_round_to_nothing() -> None:
    with pytest.raises(ValueError, match="weight 1, 1e-07, is 1e-07 of the sum"):
        MixtureSchedule([1, 1e-7])
    with pytest.raises(ValueError, match="weight 2, 1e-07, is 1e-07 of the sum"):
        MixtureSchedule([0, 1, 1e-7])


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (3, 2), (0, 2**62 + 1)])
def test_refuses_places(first: int, last: int) -> None:
    with pytest.raises(PositionError, match="places must be from 0"):
        MixtureSchedule([1, 1]).sources(first, last)
