"""cache.fill: every sample of a loader is computed once, ahead of training."""

import pytest
import torch
from torch.utils.data import DataLoader

import warmstore as ws

X = torch.rand(20, 3)
BATCHES = [(X[at : at + 5], range(at, at + 5)) for at in range(0, 20, 5)]


def test_computes_once_and_skips_what_is_there(cached, tmp_path):
    module = cached()
    assert module.cache.fill(module, BATCHES[:2]) == ws.FillResult(2, 10, 0)
    module.cache.close()
    module = cached()
    reads = module.cache.stats().bytes_read
    assert module.cache.fill(module, iter(BATCHES)) == ws.FillResult(4, 10, 10)
    assert module.rows == [5, 5]
    assert module.cache.stats().bytes_read == reads
    assert module.cache.stats().pending == 0
    with ws.FeatureCache(tmp_path, "id", read_only=True) as cache:
        assert torch.equal(cache.get_batch(range(20))[0], X * 2)


def test_batches_partly_there_and_ids_twice(cached):
    module = cached()
    module(X[:3], cache_ids=range(3))
    assert module.cache.fill(module, [(X[:5], [0, 1, 7, 7, 2])]) == ws.FillResult(1, 1, 4)
    assert module.rows == [3, 1]


def test_batches_that_are_dicts(tmp_path, counting):
    module = counting(lambda x: x)
    module.forward = lambda batch: batch["x"] * 2
    batch = {"x": X, "names": [str(at) for at in range(20)]}
    with ws.FeatureCache(tmp_path, "id") as cache:
        assert cache.fill(module, [batch | {"cache_ids": range(20)}]).computed == 20
        wrapped = ws.CachedModule(module, cache, key_from_batch=lambda batch: batch["names"])
        assert cache.fill(wrapped, [batch]).computed == 20
        assert cache.fill(module, [batch | {"cache_ids": range(20)}]).found == 20


def test_batches_of_any_other_kind(cached):
    module = cached(lambda x, scale: x * scale)
    loader = DataLoader(list(zip(X, range(20), strict=True)), batch_size=6)

    def call(batch):
        x, ids = batch
        return (x,), {"scale": 3, "cache_ids": ids}

    assert module.cache.fill(module, loader, call=call) == ws.FillResult(4, 20, 0)
    assert torch.equal(module.cache.get_batch(range(20))[0], X * 3)
    assert module.cache.fill(module, loader, call=call).found == 20


def test_the_version_of_the_module_is_filled(tmp_path, linear):
    with ws.FeatureCache(tmp_path, "id", versions="new") as cache:
        assert cache.fill(linear, BATCHES).computed == 20
        linear.bias.add_(1)
        assert cache.fill(linear, BATCHES).computed == 20
        assert cache.fill(linear, BATCHES).found == 20


def test_a_bar_is_shown_where_asked(cached, capsys):
    module = cached()
    module.cache.fill(module, BATCHES, progress=True)
    assert "4/4" in capsys.readouterr().err
    module.cache.fill(module, BATCHES, progress=False)
    assert capsys.readouterr().err == ""


def test_what_was_computed_before_an_error_is_kept(cached):
    module = cached()

    def broken():
        yield from BATCHES[:2]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        module.cache.fill(module, broken())
    assert module.cache.fill(module, BATCHES) == ws.FillResult(4, 10, 10)


@pytest.mark.parametrize("batch", [X, (X,), "abc", None, 3])
def test_batches_without_ids(cached, batch):
    module = cached()
    with pytest.raises(ws.BadIds, match="call="):
        module.cache.fill(module, [batch])


def test_fewer_ids_than_samples(cached):
    module = cached()
    with pytest.raises(ws.BadIds, match="one id per sample"):
        module.cache.fill(module, [(X, range(3))])
    assert module.rows == []


def test_modules_that_do_not_fit(cached, tmp_path):
    module = cached()
    with ws.FeatureCache(tmp_path, "other") as other, pytest.raises(ValueError, match="other"):
        other.fill(module, BATCHES)
    module.enabled = False
    with pytest.raises(ValueError, match="enabled"):
        module.cache.fill(module, BATCHES)
    with ws.FeatureCache(tmp_path, "id", read_only=True) as cache, pytest.raises(ws.ReadOnly):
        cache.fill(module.module, BATCHES)


def test_ranks_that_do_not_write_compute_nothing(cached, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    module = cached(writer_ranks=[0])
    assert module.cache.fill(module, BATCHES) == ws.FillResult(0, 0, 0)
    assert module.rows == []
