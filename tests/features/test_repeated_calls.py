"""A call that is like the last one takes a short way: whatever differs must be noticed on it all the same."""

import numpy as np
import pytest
import torch
from tests.faults.seam import Calling
from tests.slow import thinned
from torch import nn

import warmstore as ws


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(8.0), requires_grad=False)
        self.calls = []

    def forward(self, x, scale=1.0):
        self.calls.append(len(x))
        return x * self.weight * scale


@pytest.fixture
def module():
    return Counting().eval()


@pytest.fixture
def features(tmp_path, module):
    """A cached module that has served a whole batch."""
    with ws.FeatureCache(tmp_path, "c", versions="new") as cache:
        features = ws.CachedModule(module, cache)
        features(X, cache_ids=np.arange(20))
        cache.flush()
        features(X[:6], cache_ids=np.arange(6))
        assert features._last is not None
        del module.calls[:]
        yield features


X = torch.randn(20, 8)


def ids(*numbers):
    return torch.tensor(numbers)


@pytest.mark.parametrize("which", thinned(3, [[3], [19, 0, 3], list(range(20)), [5, 5, 5]]))
@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_samples_that_are_known(features, module, which, make):
    for _ in range(3):
        assert torch.equal(features(X[which], cache_ids=make(which)), X[which] * module.weight)
    assert not module.calls


def test_samples_of_which_some_are_new(features, module):
    x = torch.randn(3, 8)
    assert torch.equal(features(x, cache_ids=["a", "b", "c"]), x * module.weight)
    assert module.calls == [3]
    assert torch.equal(features(X[:2], cache_ids=[0, 1]), X[:2] * module.weight)
    assert module.calls == [3]


def test_weights_that_changed(features, module):
    module.weight.data += 1
    torch.add(module.weight, 1, out=module.weight)
    assert torch.equal(features(X[:4], cache_ids=ids(0, 1, 2, 3)), X[:4] * module.weight)
    assert module.calls


def test_an_attribute_that_changed(features, module):
    module.mode = "other"
    features(X[:4], cache_ids=ids(0, 1, 2, 3))
    assert module.calls


def test_autocast(features, module):
    with torch.autocast("cpu", torch.bfloat16):
        features(X[:4], cache_ids=ids(0, 1, 2, 3))
    assert len(module.calls) == 1
    features(X[:4], cache_ids=ids(0, 1, 2, 3))
    assert len(module.calls) == 1


def test_settings(features, module):
    assert torch.equal(features(X[:4], 2.0, cache_ids=ids(0, 1, 2, 3)), X[:4] * module.weight * 2)
    assert torch.equal(features(X[:4], scale=3.0, cache_ids=ids(0, 1, 2, 3)), X[:4] * module.weight * 3)
    assert len(module.calls) == 2
    features(X[:4], cache_ids=ids(0, 1, 2, 3))
    assert len(module.calls) == 2


def test_ids_that_do_not_fit(features):
    with pytest.raises(ws.BadIds, match="3 cache_ids for 4 samples"):
        features(X[:4], cache_ids=ids(0, 1, 2))
    with pytest.raises(ws.BadIds):
        features(X[:4])
    with pytest.raises(ws.BadIdType):
        features(X[:2], cache_ids=[0, 1.5])
    assert features(X[:0], cache_ids=[]).shape == (0, 8)


def test_hits_are_counted_once(features):
    before = features.cache.stats().hits
    features(X[:4], cache_ids=ids(0, 1, 2, 3))
    assert features.cache.stats().hits == before + 4


def test_a_closed_cache(features):
    features.cache.close()
    with pytest.raises(ws.Closed):
        features(X[:4], cache_ids=ids(0, 1, 2, 3))


def test_rows_that_were_evicted(tmp_path, module):
    """They go between two calls, and are computed again."""
    with ws.FeatureCache(tmp_path, "c", max_size="6MB") as cache:
        features = ws.CachedModule(module, cache)
        for first in range(0, 200_000, 2000):
            x = torch.full((2000, 8), float(first))
            numbers = np.arange(first, first + 2000)
            assert torch.equal(features(x, cache_ids=numbers), x * module.weight)
            cache.flush()
            assert torch.equal(features(x, cache_ids=numbers), x * module.weight)
            old = torch.full((10, 8), float(max(first - 40_000, 0) // 2000 * 2000))
            assert torch.equal(features(old, cache_ids=np.arange(10) + int(old[0, 0])), old * module.weight)
        assert cache.stats().evicted


def test_a_tensor_that_is_a_setting_by_batch_args(tmp_path):
    class Total(nn.Module):
        def forward(self, x):
            return x.sum() * torch.ones(3, 1)

    with ws.FeatureCache(tmp_path, "c", versions="new") as cache:
        features = ws.CachedModule(Total(), cache, batch_args=[])
        for value in (1.0, 1.0, 1.0, 2.0):
            assert features(torch.full((3,), value), cache_ids=range(3)).tolist() == [[3 * value]] * 3
            cache.flush()


def test_a_wrapped_module_that_was_replaced(features, module):
    other = Counting().eval()
    other.weight.data += 1
    features.module = other
    assert torch.equal(features(X[:6], cache_ids=np.arange(6)), other(X[:6]))
    features.module = module
    assert torch.equal(features(X[:6], cache_ids=np.arange(6)), X[:6] * module.weight)
    assert module.calls == []


def test_a_replica_of_data_parallel_is_the_module(features, module):
    replica, inner = features._replicate_for_data_parallel(), module._replicate_for_data_parallel()
    inner.weight = module.weight.data  # as torch.nn.parallel.replicate does
    replica._modules["module"] = inner
    assert torch.equal(replica(X[:8], cache_ids=np.arange(8)), X[:8] * module.weight)
    assert module.calls == []


def test_another_cache_is_used_from_the_next_call_on(features, module, tmp_path):
    before, kept = features.cache, len(features.cache)
    with ws.FeatureCache(tmp_path, "other") as features.cache:
        for _ in range(3):
            features(X[:6], cache_ids=np.arange(6))
            features.cache.flush()
        assert (len(before), len(features.cache), module.calls) == (kept, 6, [6])
        before.close()
        features(X[:8], cache_ids=np.arange(8))
        assert len(features.cache) == 8


def test_a_module_that_changes_while_its_samples_are_looked_up(features, module, tmp_path):
    """As another thread may change it: the next call took the samples of before for those of the changed module."""
    files = Calling()
    with ws.FeatureCache(tmp_path, "c", versions="new", files=files) as cache:
        again = ws.CachedModule(module, cache)
        cache.put_batch([99], X[:1])  # is committed before the samples are looked up
        files.check = lambda: module.weight.fill_(5)
        again(X[:6], cache_ids=np.arange(6))
        files.check = None
        assert torch.equal(again(X[:6], cache_ids=np.arange(6)), X[:6] * 5)
