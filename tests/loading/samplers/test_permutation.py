"""Permutations computed place by place: bijections that look like random ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loading.statistics import surprise

from warmstore.loading.samplers.counter_rng import derive_keys
from warmstore.loading.samplers.permutation import SORTED, permuted


def whole(n: int, seed: int = 0) -> np.ndarray:
    return permuted(np.arange(n, dtype=np.uint64), n, derive_keys("shuffle", seed, 0, n)).astype(np.int64)


@given(st.integers(1, 5000), st.integers(0, 2**64 - 1))
def test_every_position_comes_once(n: int, seed: int) -> None:
    assert np.array_equal(np.sort(whole(n, seed)), np.arange(n))


@pytest.mark.parametrize("n", [1, 2, 3, SORTED - 1, SORTED, SORTED + 1, 46**2 - 1, 46**2, 46**2 + 1, 99_991, 1 << 17])
def test_every_position_comes_once_at_the_edges(n: int) -> None:
    assert np.array_equal(np.sort(whole(n)), np.arange(n))


def test_results_outside_are_put_through_until_they_are_inside() -> None:
    """11 cells lie outside of 2,929: in one permutation of 25 a place leads from one of them to another."""
    for seed in range(200):
        assert np.array_equal(np.sort(whole(2929, seed)), np.arange(2929)), seed


@pytest.mark.slow
def test_every_position_comes_once_for_every_small_n() -> None:
    for n in range(1, 6000):
        assert np.array_equal(np.sort(whole(n)), np.arange(n)), n


@given(st.integers(SORTED, 2**62), st.integers(0, 2**64 - 1), st.data())
def test_places_of_a_large_epoch_stay_apart_and_in_range(n: int, seed: int, data: st.DataObject) -> None:
    places = np.unique(np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1)), np.uint64))
    dense = np.arange(max(0, n - 500), n, dtype=np.uint64)
    places = np.union1d(places, dense)
    found = permuted(places, n, derive_keys("shuffle", seed, 0, n))
    assert found.max() < n
    assert len(np.unique(found)) == len(places)


def test_all_orders_of_a_few_are_alike_likely() -> None:
    seen = np.array([whole(4, seed) @ [64, 16, 4, 1] for seed in range(24_000)])
    _, counts = np.unique(seen, return_counts=True)
    assert len(counts) == 24
    assert surprise(counts) > 1e-6


@pytest.mark.parametrize("n", [37, 1000, SORTED, SORTED + 1, 50 * 50, 3001])
def test_every_sample_lands_anywhere(n: int) -> None:
    bins = 37
    counts = np.zeros((bins, bins), np.int64)
    for seed in range(400):
        counts += np.histogram2d(np.arange(n), whole(n, seed), bins=bins, range=[[0, n], [0, n]])[0].astype(np.int64)
    in_bin = np.histogram(np.arange(n), bins=bins, range=(0, n))[0]
    assert surprise(counts, np.outer(in_bin, in_bin)) > 1e-6


@pytest.mark.parametrize("n", [600, SORTED + 2, 50 * 50, 60 * 60 - 1, 100_003])
def test_what_neighbours_hold_is_unrelated(n: int) -> None:
    """Differences between places that share a row or a column of the network's rectangle: 4 rounds fail this."""
    side = int(n**0.5)
    lags = sorted({1, 2, *range(max(1, side - 12), side + 13), 50, 2 * side})
    counts = np.zeros((len(lags), 50), np.int64)
    for seed in range(max(20, 200_000 // n)):
        found = whole(n, seed)
        for row, lag in zip(counts, lags, strict=True):
            apart = (found[lag:] - found[:-lag]) % n  # 1 to n - 1, all alike likely
            row += np.bincount((apart - 1) * 50 // (n - 1), minlength=50)
    likely = np.bincount(np.arange(n - 1) * 50 // (n - 1), minlength=50)
    for row, lag in zip(counts, lags, strict=True):
        assert surprise(row, likely) > 1e-6, lag


@pytest.mark.parametrize("n", [1000, 5000])
def test_seeds_and_epochs_are_unrelated(n: int) -> None:
    """How often two permutations agree is Poisson distributed with a mean of one."""
    places = np.arange(n, dtype=np.uint64)
    table = [[permuted(places, n, derive_keys("shuffle", seed, epoch, n)) for epoch in range(20)] for seed in range(20)]
    epochs = [int((row[i] == row[i + 1]).sum()) for row in table for i in range(19)]
    seeds = [int((table[i][epoch] == table[i + 1][epoch]).sum()) for epoch in range(20) for i in range(19)]
    swapped = [int((table[i][j] == table[j][i]).sum()) for i in range(20) for j in range(i)]
    poisson = np.exp(-1) * np.array([1, 1, 1 / 2])
    for agreements in (epochs, seeds, swapped):
        counts = np.bincount(np.minimum(agreements, 3), minlength=4)
        assert surprise(counts, np.append(poisson, 1 - poisson.sum())) > 1e-6
