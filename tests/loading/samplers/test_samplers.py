"""What stands where in each order: values, distributions, random access, and what is refused."""

import dataclasses
import json
import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.loading.statistics import surprise

from warmstore.errors import PositionError
from warmstore.loading.samplers import replacement
from warmstore.loading.samplers.block_shuffle import BlockShuffle
from warmstore.loading.samplers.bucketed import Bucketed
from warmstore.loading.samplers.replacement import Uniform, Weighted
from warmstore.loading.samplers.sampler import BLOCK, Sampler
from warmstore.loading.samplers.sampler_argument import sampler_of
from warmstore.loading.samplers.sequential import Sequential, Window
from warmstore.loading.samplers.shuffle import Shuffle

TEN = [1, 0, 2.5, 4, 1, 1, 1, 1, 1, 9]
KINDS: list[Callable[[int], Sampler]] = [
    lambda n: Sequential(),
    lambda n: Window(max(1, n // 3)),
    lambda n: Window(max(1, n // 4), step=max(1, n // 7)),
    lambda n: Shuffle(seed=3),
    lambda n: BlockShuffle(1 + n // 90, window=5, seed=3),
    lambda n: BlockShuffle(2 * n, seed=3),
    lambda n: Uniform(seed=3),
    lambda n: Uniform(seed=3, samples=2 * n + 5),
    lambda n: Weighted(np.arange(1, n + 1), seed=3),
    lambda n: Bucketed(np.arange(n) * 7 % 50, 1 + n // 7, seed=3, groups=3),
    lambda n: Bucketed(np.arange(n) * 7 % 50, 4, seed=3),
]


@given(st.sampled_from(KINDS), st.integers(1, 5000), st.integers(0, 5), st.data())
def test_any_part_of_an_epoch_equals_that_part_of_the_whole(
    kind: Callable[[int], Sampler], n: int, epoch: int, data: st.DataObject
) -> None:
    order = kind(n)
    length = order.length(n)
    whole = order.indices(0, length, n, epoch)
    assert whole.dtype == np.int64
    assert whole.min() >= 0
    assert whole.max() < n
    cuts = sorted(data.draw(st.lists(st.integers(0, length), max_size=5)))
    parts = [order.indices(a, b, n, epoch) for a, b in zip([0, *cuts], [*cuts, length], strict=True)]
    assert np.array_equal(np.concatenate(parts), whole)
    places = data.draw(st.lists(st.integers(0, length - 1), max_size=50))
    assert np.array_equal(order.at(places, n, epoch), whole[np.array(places, int)])


@pytest.mark.parametrize("order", [Shuffle(), Uniform(), Sequential(), Window(10**6, step=2**19 + 1)], ids=repr)
def test_a_batch_costs_its_own_size_and_not_the_epochs(order: Sampler) -> None:
    n = 2**61
    length = order.length(n)
    tracemalloc.start()
    for first in (0, length // 2, length - 256):
        found = order.indices(first, first + 256, n, 2**64 - 1)
        assert found.min() >= 0
        assert found.max() < n
    assert tracemalloc.get_traced_memory()[1] < 200_000
    tracemalloc.stop()


def test_values_are_kept_for_good() -> None:
    """A checkpoint of an earlier version goes on exactly: these values may never change."""
    assert Shuffle().indices(0, 10, 10, 0).tolist() == [1, 7, 5, 9, 3, 4, 0, 8, 2, 6]
    assert Shuffle(seed=2**64 - 1).indices(0, 10, 10, 1).tolist() == [7, 4, 1, 9, 0, 8, 2, 5, 3, 6]
    assert Uniform(seed=3).indices(0, 10, 10, 1).tolist() == [9, 5, 6, 6, 9, 9, 8, 7, 8, 3]
    assert Weighted(TEN, seed=3).indices(0, 10, 10, 0).tolist() == [9, 9, 9, 0, 9, 3, 9, 9, 9, 3]
    shuffled = {
        2048: [160, 875, 1270, 716],
        2049: [1147, 1090, 1842, 1192],
        400_000: [192516, 70763, 114653, 391329],
        10**9: [973225818, 812026296, 244977402, 910946266],
        2**62: [1248869962745106450, 67133654850270677, 3675051690556563877, 1026180256429449116],
    }
    uniform = {
        2048: [157, 673, 1187, 592],
        10**9: [376912197, 722762773, 50008018, 611209700],
        2**62: [3831065421111714470, 2055919306679811506, 2023918629404233021, 3818944095578796221],
    }
    for order, kept in ((Shuffle(seed=7), shuffled), (Uniform(seed=7), uniform)):
        for n, values in kept.items():
            assert order.indices(n // 2, n // 2 + 4, n, 5).tolist() == values


def test_sequential() -> None:
    assert Sequential().indices(2, 5, 6, 9).tolist() == [2, 3, 4]


@given(st.integers(1, 60), st.data())
def test_a_window_slides_over_a_ring(n: int, data: st.DataObject) -> None:
    size, step = data.draw(st.integers(1, n)), data.draw(st.integers(1, n))
    order = Window(size, step=step)
    length = order.length(n)
    assert length == -(-n // step) * size
    ring = [(w * step + j) % n for w in range(3 * length // size) for j in range(size)]
    epochs = [order.indices(0, length, n, epoch) for epoch in range(3)]
    assert np.concatenate(epochs).tolist() == ring
    if step <= size:
        assert all(set(epoch) == set(range(n)) for epoch in epochs)


def test_windows_touch_unless_told_otherwise() -> None:
    assert Window(4).indices(0, 12, 10, 0).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert Window(4).indices(0, 12, 10, 1).tolist() == [2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3]
    assert Window(4) == Window(4, step=4)


@pytest.mark.parametrize("order", [Uniform(seed=5, samples=500_000), Weighted(np.ones(1000), seed=5, samples=500_000)])
def test_uniform_draws_are_even_and_unrelated(order: Sampler) -> None:
    found = order.indices(0, 500_000, 1000, 2)
    assert surprise(np.bincount(found, minlength=1000)) > 1e-6
    pairs = found[:-1] // 50 * 20 + found[1:] // 50
    assert surprise(np.bincount(pairs, minlength=400)) > 1e-6
    following = order.indices(0, 500_000, 1000, 3)
    assert surprise(np.bincount(found // 50 * 20 + following // 50, minlength=400)) > 1e-6


@pytest.mark.parametrize("n", [3, 2**31 + 2**30, 2**32, 2**32 + 12345, 3 * 2**60])
def test_uniform_draws_are_even_over_large_ranges(n: int) -> None:
    """3 * 2**30 is where scaling 32 random bits would make every third sample twice as likely."""
    found = Uniform(samples=300_000).indices(0, 300_000, n, 0)
    assert surprise(np.bincount(found // -(-n // 30))[:30] if n > 30 else np.bincount(found)) > 1e-6
    if n < 2**50:  # beyond, scaling 64 bits shows too: 1 / n within a factor of 1 ± n / 2**64
        assert surprise(np.bincount(found % 3)) > 1e-6


def test_weighted_draws_are_in_proportion() -> None:
    weights = np.array(TEN)
    counts = np.bincount(Weighted(TEN, samples=500_000).indices(0, 500_000, 10, 0), minlength=10)
    assert counts[weights == 0] == 0
    assert surprise(counts[weights > 0], weights[weights > 0]) > 1e-6


@pytest.mark.parametrize(
    "weights", [[0, 0, 5e-324], [1e308, 0, 1e308], [3, 0, 0], [0, 1], np.float32([0, 2]), [True, False]]
)
def test_a_weight_of_zero_is_never_drawn(weights: Any) -> None:
    found = Weighted(weights, samples=100_000).indices(0, 100_000, len(weights), 0)
    assert set(found) == set(np.flatnonzero(weights))


@pytest.mark.parametrize(("drawn", "expected"), [(0, 1), (2**64 - 1, 4)])
def test_the_least_and_the_largest_draw_have_a_weight(
    monkeypatch: pytest.MonkeyPatch, drawn: int, expected: int
) -> None:
    monkeypatch.setattr(replacement, "random_bits", lambda places, key: np.full(len(places), drawn, np.uint64))
    for weights in ([0, 1, 0, 0, 1, 0], [0, 0.1, 0.7, 0, 1 / 3, 0], [0, 1e-300, 0, 0, 3, 0]):
        assert Weighted(weights).indices(0, 3, 6, 0).tolist() == [expected] * 3


def test_weights_are_the_orders_own() -> None:
    mine = np.ones(3)
    order = Weighted(mine)
    mine[:] = 0
    assert order.weights.tolist() == [1, 1, 1]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="read-only"):
        order.weights[0] = 5  # type: ignore[index]


def test_weights_that_are_masked_are_refused() -> None:
    """As those of a field with absent values: beneath are zeros, with which a sample is never drawn."""
    masked = np.ma.MaskedArray([1, 0, 2], [False, True, False])
    with pytest.raises(ValueError, match=r"weight 1 is masked, and every sample needs one: .*\.filled"):
        Weighted(masked)
    assert Weighted(masked[[0, 2]]) == Weighted(masked.compressed())


ORDERS = [
    Sequential(),
    Window(4),
    Window(4, step=3),
    Shuffle(),
    Shuffle(seed=1),
    Uniform(),
    Uniform(samples=10),
    Weighted([1, 2]),
    Weighted([1, 3]),
    Weighted([1, 2, 3]),
    Weighted([1, 2], seed=1),
    Weighted([1, 2], samples=2),
    Weighted([1, 2], samples=3),
]


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_a_description_is_json_and_tells_orders_apart(order: Sampler) -> None:
    described = order.describe()
    assert json.loads(json.dumps(described)) == described
    same = [other for other in ORDERS if other.describe() == described]
    assert same == [order]
    assert [other for other in ORDERS if other == order] == [order]


def test_descriptions_are_kept_for_good() -> None:
    assert Window(4).describe() == {"kind": "window", "size": 4, "step": 4}
    assert Shuffle(seed=np.int64(5)).describe() == {"kind": "shuffle", "seed": 5}  # type: ignore[arg-type]
    assert Weighted(TEN, samples=7).describe() == {
        "kind": "weighted",
        "weights": {"count": 10, "digest": "b6a3a2aae87c25e3b7e614e3ec68a359"},
        "seed": 0,
        "samples": 7,
    }
    assert Weighted([1, -0.0]) == Weighted((1.0, 0))
    assert hash(Weighted([1, -0.0])) == hash(Weighted((1.0, 0)))


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_orders_are_frozen_and_survive_a_pickle(order: Sampler) -> None:
    n = len(order._sums) if isinstance(order, Weighted) else 6
    again = pickle.loads(pickle.dumps(order))
    assert again == order
    assert np.array_equal(again.indices(0, n, n, 1), order.indices(0, n, n, 1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        order.seed = 5  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "0", None, True, np.float32(1)])
@pytest.mark.parametrize("kind", [Shuffle, Uniform, lambda seed: Weighted([1], seed=seed)])
def test_refuses_a_seed(kind: Any, seed: Any) -> None:
    with pytest.raises(ValueError, match=r"seed must be an integer from 0 to 2\*\*64 - 1") as caught:
        kind(seed=seed)
    assert repr(seed) in str(caught.value)


@pytest.mark.parametrize("samples", [0, -5, 2.0, True, 2**62 + 1])
@pytest.mark.parametrize("kind", [Uniform, lambda samples: Weighted([1], samples=samples)])
def test_refuses_samples(kind: Any, samples: Any) -> None:
    with pytest.raises(ValueError, match=r"samples must be an integer from 1 to 2\*\*62") as caught:
        kind(samples=samples)
    assert repr(samples) in str(caught.value)


@pytest.mark.parametrize("size", [0, -1, 1.0, None, True])
def test_refuses_a_window(size: Any) -> None:
    with pytest.raises(ValueError, match="size of a window must be an integer from 1") as caught:
        Window(size)
    assert repr(size) in str(caught.value)
    if size is not None:
        with pytest.raises(ValueError, match="step of a window must be an integer from 1"):
            Window(4, step=size)


@pytest.mark.parametrize("order", [Window(11), Window(1, step=11)])
def test_refuses_a_window_larger_than_the_source(order: Window) -> None:
    with pytest.raises(ValueError, match=r"at most the number of samples, 10; got Window\(size=.*11"):
        order.indices(0, 1, 10, 0)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, np.nan], "weight 1 is nan"),
        ([np.inf], "weight 0 is inf"),
        ([1, -0.5], "weight 1 is -0.5"),
        ([0, 0], "at least one weight must be above zero; all 2 are 0"),
        ([], r"shape \(0,\)"),
        ([[1, 2]], r"shape \(1, 2\)"),
        (3, r"shape \(\)"),
        (["a"], r"numbers; got \['a'\]"),
        (None, r"weight|shape"),
        ([[1], [1, 2]], "numbers; got"),
    ],
)
def test_refuses_weights(weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Weighted(weights)


def test_refuses_another_number_of_samples_than_weights() -> None:
    with pytest.raises(ValueError, match="got 10 weights for 11 samples"):
        Weighted(TEN).length(11)


@pytest.mark.parametrize("order", [Sequential(), Shuffle(), Uniform(), Uniform(samples=10), Weighted(TEN), Window(5)])
@pytest.mark.parametrize(("first", "last"), [(-1, 3), (0, 11), (11, 11), (5, 4)])
def test_refuses_places_outside_the_epoch(order: Sampler, first: int, last: int) -> None:
    with pytest.raises(PositionError, match=f"places {first} to {last} are outside the 10 of an epoch of"):
        order.indices(first, last, 10, 0)


@pytest.mark.parametrize("places", [[-1], [0, 10], [2**63], np.array([2**64 - 1], np.uint64), [1.0], [[1]], 3, [True]])
def test_refuses_places_that_are_none(places: Any) -> None:
    with pytest.raises(PositionError, match="place"):
        Shuffle().at(places, 10, 0)


@pytest.mark.parametrize("epoch", [-1, 2**64, 0.0, None])
def test_refuses_an_epoch(epoch: Any) -> None:
    with pytest.raises(ValueError, match="epoch must be an integer from 0") as caught:
        Sequential().indices(0, 1, 10, epoch)
    assert repr(epoch) in str(caught.value)


@pytest.mark.parametrize("n", [-1, 2**62 + 1, 1.0])
def test_refuses_a_number_of_samples(n: Any) -> None:
    with pytest.raises(ValueError, match=r"n must be an integer from 0 to 2\*\*62") as caught:
        Sequential().length(n)
    assert repr(n) in str(caught.value)


def test_refuses_an_epoch_that_cannot_be_counted() -> None:
    with pytest.raises(ValueError, match=r"at most 2\*\*62 places; Window"):
        Window(2**40, step=1).length(2**41)


@pytest.mark.parametrize("order", [Sequential(), Shuffle(), Uniform()])
def test_nothing_stands_in_an_epoch_of_nothing(order: Sampler) -> None:
    assert order.length(0) == 0
    assert order.indices(0, 0, 0, 0).tolist() == []
    assert order.at([], 0, 0).tolist() == []
    with pytest.raises(ValueError, match="out of 0 samples"):
        Uniform(samples=1).length(0)


def test_blocks_join() -> None:
    n = 3 * BLOCK + 5
    for order in (Shuffle(seed=1), Uniform(seed=1)):
        whole = order.indices(0, n, n, 0)
        assert np.array_equal(whole, order.at(np.arange(n), n, 0))
        assert np.array_equal(whole[3:], order.indices(3, n, n, 0))
        assert np.array_equal(whole[5:], np.concatenate([order.indices(k, k + 8, n, 0) for k in range(5, n, 8)]))


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_whether_epochs_differ_is_known(order: Sampler) -> None:
    assert order.shuffles == isinstance(order, Shuffle | Uniform | Weighted)
    if isinstance(order, Sequential):
        assert np.array_equal(order.indices(0, 100, 100, 0), order.indices(0, 100, 100, 1))
    elif isinstance(order, Shuffle | Uniform):
        length = order.length(100)
        assert not np.array_equal(order.indices(0, length, 100, 0), order.indices(0, length, 100, 1))


def test_an_order_of_ones_own_shuffles_unless_it_says_otherwise() -> None:
    class Reverse(Sampler):
        def _length(self, n: int) -> int:
            return n

        def _positions(self, places: Any, n: int, epoch: int) -> Any:
            return np.uint64(n - 1) - places

    assert Reverse().shuffles
    assert sampler_of(reverse := Reverse()) is reverse


def test_a_seed_may_come_first() -> None:
    assert Shuffle(7) == Shuffle(seed=7)
    assert Uniform(7) == Uniform(seed=7)
    assert Uniform(7, samples=3) == Uniform(seed=7, samples=3)
    with pytest.raises(TypeError, match="positional"):
        Uniform(7, 3)  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        Weighted([1, 2], 7)  # type: ignore[misc]


def test_a_sampler_as_a_user_says_it() -> None:
    assert sampler_of(None) == sampler_of("sequential") == Sequential()
    assert sampler_of("shuffle") == Shuffle(seed=0)
    for order in ORDERS:
        assert sampler_of(order) is order


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ("random", ValueError, "sampler='random' names no sampler"),
        ("Shuffle", ValueError, "sampler='Shuffle' names no sampler"),
        (0, TypeError, r"got 0. Did you mean Shuffle\(seed=0\)\?"),
        (np.int64(5), TypeError, r"Did you mean Shuffle\(seed=5\)\?"),
        (True, TypeError, r"got True. Did you mean Shuffle\(seed=0\)\?"),
        (False, TypeError, r"got False. Did you mean Sequential\(\)\?"),
        (Shuffle, TypeError, "must be an instance; got the class Shuffle"),
        ([0, 1], TypeError, r"got the builtins.list \[0, 1\]"),
        (np.arange(3), TypeError, r"got the numpy.ndarray array\(\[0, 1, 2\]\)"),
        (
            torch.utils.data.SequentialSampler([1]),
            TypeError,
            "got the torch.utils.data.sampler.SequentialSampler <torch",
        ),
        (dataclasses, TypeError, "got the builtins.module"),
    ],
)
def test_what_is_no_sampler_is_quoted(value: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        sampler_of(value)
    for choice in ("ws.Sampler", '"sequential"', '"shuffle"', "None"):
        assert choice in str(caught.value)
