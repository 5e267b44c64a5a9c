"""BlockShuffle: each sample once, blocks fetched about once, and as random as its page says."""

import numpy as np
import pytest
from tests.loading.statistics import surprise

import warmstore as ws


def test_each_sample_comes_once_and_epochs_differ() -> None:
    for n, block, window in [(1000, 7, 5), (1000, 10, 100), (10, 20, 3), (4096, 64, 1), (5000, 1, 7), (10_000, 50, 60)]:
        order = ws.BlockShuffle(block, window=window, seed=3)
        epochs = [order.indices(0, n, n, epoch) for epoch in range(2)]
        assert all(np.array_equal(np.sort(epoch), np.arange(n)) for epoch in epochs)
        assert not np.array_equal(*epochs)
        assert not np.array_equal(epochs[0], ws.BlockShuffle(block, window=window, seed=4).indices(0, n, n, 0))
    assert ws.BlockShuffle(5).length(0) == 0


def test_samples_of_a_block_come_within_one_window() -> None:
    n, block, window = 100_000, 100, 20
    places = np.argsort(ws.BlockShuffle(block, window=window).indices(0, n, n, 0))
    of_block = places.reshape(-1, block) // (block * window)
    assert (of_block == of_block[:, :1]).all()
    batches = ws.BlockShuffle(block, window=window).indices(0, n, n, 0).reshape(-1, 50) // block
    same = np.mean([(batch[:, None] == batch).sum() - len(batch) for batch in batches]) / (50 * 49)
    assert same == pytest.approx(1 / window, rel=0.1)  # as documented


def test_blocks_are_fetched_once_where_a_shuffle_fetches_them_again() -> None:
    n, block, kept = 200_000, 100, 200  # blocks that a cache keeps, the last used ones
    fetched = {}
    for order in (ws.Shuffle(), ws.BlockShuffle(block, window=64)):
        cached: dict[int, None] = {}
        fetched[type(order)] = 0
        for number in (order.indices(0, n, n, 0) // block).tolist():
            if cached.pop(number, "") == "":
                fetched[type(order)] += 1
            cached[number] = None
            if len(cached) > kept:
                del cached[next(iter(cached))]
    assert fetched[ws.BlockShuffle] == n // block
    assert fetched[ws.Shuffle] > 80 * n // block


def test_blocks_and_samples_are_evenly_distributed() -> None:
    n, block, window, epochs = 60, 5, 3, 6000
    order = ws.BlockShuffle(block, window=window, seed=1)
    counts = np.zeros((n, n), np.int64)
    for epoch in range(epochs):
        counts[np.arange(n), order.indices(0, n, n, epoch)] += 1
    assert surprise(counts) > 1e-6


def test_values_are_kept_for_good() -> None:
    order = ws.BlockShuffle(3, window=2, seed=5)
    assert order.indices(0, 14, 14, 0).tolist() == [4, 7, 8, 6, 3, 5, 0, 2, 11, 13, 12, 9, 10, 1]
    assert order.describe() == {"kind": "blockshuffle", "block": 3, "window": 2, "seed": 5}
    with pytest.raises(ValueError, match="block"):
        ws.BlockShuffle(0)
