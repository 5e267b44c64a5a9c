"""What the first commit fixes, and how shapes vary before and after it."""

import numpy as np
import pytest
import torch

import warmstore as ws


@pytest.fixture
def cache(tmp_path):
    cache = ws.FeatureCache(tmp_path, "id")
    yield cache
    cache.close()


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize(
    ("other", "leaf"),
    [
        ({"x": torch.ones(2, 3).half(), "y": torch.ones(2)}, "x"),
        ({"x": torch.ones(2, 3).double(), "y": torch.ones(2)}, "x"),
        ({"x": torch.ones(2, 3, 1), "y": torch.ones(2)}, "x"),
        ({"x": torch.ones(2, 3), "y": torch.ones(2).int()}, "y"),
        ({"x": torch.ones(2, 3)}, "keys"),
        ({"x": torch.ones(2, 3), "z": torch.ones(2)}, "keys"),
        ({"x": torch.ones(2, 3), "y": np.ones(2, np.float32)}, "y"),
        ({"x": torch.ones(2, 3), "y": 3}, "y"),
        (torch.ones(2, 3), "output"),
        ([torch.ones(2, 3), torch.ones(2)], "output"),
    ],
)
def test_output_that_does_not_fit_names_the_leaf_and_nothing_is_kept(cache, committed, other, leaf):
    """Dtypes were once widened or narrowed by the first sample's schema."""
    cache.put_batch([1, 2], {"x": torch.ones(2, 3), "y": torch.ones(2)})
    if committed:
        cache.flush()
    with pytest.raises(ws.SchemaMismatch, match=leaf):
        cache.put_batch([3, 4], other)
    assert cache.get_batch([1, 2, 3, 4])[1].tolist() == [2, 3]
    cache.put_batch([3, 4], {"x": torch.zeros(2, 3), "y": torch.zeros(2)})
    cache.flush()
    assert cache.get_batch([3, 4])[0]["x"].sum() == 0


def test_changed_constant_does_not_fit(cache):
    cache.put_batch([1], (torch.ones(1), 0.5))
    with pytest.raises(ws.SchemaMismatch, match=r"0\.5"):
        cache.put_batch([2], (torch.ones(1), 0.25))


def test_a_constant_is_the_same_bit_for_bit(cache):
    for at in range(2):
        cache.put_batch([at], (torch.ones(1), float("nan"), float("-inf"), 0.0))
        cache.flush()
    assert str(cache.get_batch([0, 1])[0][1:]) == "(nan, -inf, 0.0)"
    with pytest.raises(ws.SchemaMismatch, match=r"-0\.0"):
        cache.put_batch([2], (torch.ones(1), float("nan"), float("-inf"), -0.0))


def test_shape_that_varies_after_the_commit_needs_variable(cache):
    cache.put_batch([1], torch.ones(1, 3))
    cache.flush()
    with pytest.raises(ws.SchemaMismatch, match="variable=True"):
        cache.put_batch([2], torch.ones(1, 4))


def test_padded_batches_of_varying_length_before_the_commit(cached):
    module = cached(lambda x: x + 1)
    short, long = torch.rand(2, 3, 2), torch.rand(2, 5, 2)
    module(short, cache_ids=[1, 2])
    module(long, cache_ids=[3, 4])
    for _ in range(2):
        assert torch.equal(module(short, cache_ids=[1, 2]), short + 1)
        assert torch.equal(module(long, cache_ids=[3, 4]), long + 1)
        module.cache.flush()
    assert module.rows == [2, 2, 1]  # a second look at a matrix [2, 2]
    module(torch.rand(1, 9, 2), cache_ids=[5])  # after it too
    with pytest.raises(ws.SchemaMismatch, match="pad_value"):
        module(torch.rand(2, 5, 2), cache_ids=[1, 3])


def test_variable_after_the_commit(cached):
    module = cached(lambda x: x + 1, variable=True)
    short, long = torch.rand(2, 3), torch.rand(2, 5)
    module(short, cache_ids=[1, 2])
    module.cache.flush()
    for _ in range(2):
        assert torch.equal(module(long, cache_ids=[3, 4]), long + 1)
        assert torch.equal(module(short, cache_ids=[1, 2]), short + 1)
        module.cache.flush()
    assert module.rows == [2, 2]


@pytest.mark.parametrize("flushed", [False, True])
def test_pad_value_where_lengths_meet(cached, flushed):
    module = cached(lambda x: x + 1, variable=True, pad_value=-1.0)
    short, long = torch.rand(1, 3), torch.rand(2, 5)
    module(short, cache_ids=["short"])
    if flushed:
        module.cache.flush()
    both = module(long, cache_ids=["short", "long"])  # a hit of length 3 beside a miss of length 5
    assert both.shape == (2, 5)
    assert torch.equal(both[0, :3], short[0] + 1)
    assert both[0, 3:].tolist() == [-1, -1]
    assert torch.equal(both[1], long[1] + 1)


def test_shape_varies_while_some_are_hits(cached):
    """The first batch's shape is fixed; the second widens it between looking up and putting together."""
    module = cached(lambda x: x + 1, pad_value=0.0)
    module(torch.ones(2, 3), cache_ids=[1, 2])
    both = module(torch.ones(2, 4), cache_ids=[1, 3])
    assert both.tolist() == [[2, 2, 2, 0], [2, 2, 2, 2]]


def test_images_of_any_size_as_arrays(tmp_path):
    images = [np.random.default_rng(n).integers(0, 255, (n + 1, 2 * n + 1, 3), np.uint8) for n in range(9)]
    with ws.FeatureCache(tmp_path, "decoded") as cache:
        cache.put_batch(range(9), images)
    with ws.FeatureCache(tmp_path, "decoded") as cache:
        values, missing = cache.get_batch([8, 0, 100, 3])
    assert missing.tolist() == [2]
    for value, at in zip(values, [8, 0, 3], strict=True):
        np.testing.assert_array_equal(value, images[at], strict=True)
