"""What torchcachex documents, by its class names over warmstore. Writes are asynchronous."""

import dataclasses
import gc
from typing import Any

import pytest
import torch
from torch import nn

import warmstore as ws
from warmstore.compat.torchcachex import ArrowIPCCacheBackend, CacheModuleDecorator


class Extractor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.samples = 0

    def forward(self, x: torch.Tensor) -> Any:
        self.samples += len(x)
        return {"features": x * 2, "pair": (x.sum(1), x[:, :1].to(torch.float64))}


def backend(folder: Any, **options: Any) -> ArrowIPCCacheBackend:
    return ArrowIPCCacheBackend(str(folder), "extractor_v1", async_write=True, **options)


def wrap(folder: Any, **options: Any) -> Any:
    return CacheModuleDecorator(Extractor(), backend(folder, **options))


def test_results_are_ordered_and_missing_positions_told(tmp_path):
    cache = backend(tmp_path)
    cache.put_batch({f"extractor_v1:{one}": torch.tensor([float(ord(one))]) for one in "abc"})
    for _ in range(2):
        results, missing = cache.get_batch([f"extractor_v1:{one}" for one in "cxaby"])
        assert [None if one is None else chr(int(one)) for one in results] == ["c", None, "a", "b", None]
        assert missing == [1, 4]
        cache.flush()
    assert cache.get_batch([]) == ([], [])


def test_every_run_enriches_the_cache(tmp_path):
    x = torch.rand(30, 4)
    for first, last in ((0, 10), (5, 20), (0, 30)):
        module = wrap(tmp_path)
        out = module(x[first:last], cache_ids=[f"s{at}" for at in range(first, last)])
        assert torch.equal(out["features"], x[first:last] * 2)
        assert module.module.samples == 10
        del module
    module = wrap(tmp_path)
    module(x, cache_ids=[f"s{at}" for at in range(30)])
    assert module.module.samples == 0


@pytest.mark.parametrize("flush", [False, True])
def test_the_last_of_duplicates_wins(tmp_path, flush):
    cache = backend(tmp_path)
    for value in range(4):
        cache.put_batch({"a": torch.tensor(value), "b": torch.tensor(10 * value)})
        if flush:
            cache.flush()
    assert [int(one) for one in cache.get_batch(["a", "b"])[0]] == [3, 30]
    del cache
    assert [int(one) for one in backend(tmp_path).get_batch(["b", "a"])[0]] == [30, 3]


def test_ranks_that_are_not_the_writer_never_write(tmp_path):
    x = torch.rand(4, 3)
    module = wrap(tmp_path, current_rank=1)
    for _ in range(2):
        assert torch.equal(module(x, cache_ids=range(4))["features"], x * 2)
    assert module.module.samples == 8
    reader = backend(tmp_path, current_rank=2)
    reader.put_batch({"a": torch.ones(1)})
    reader.flush()
    assert not list(tmp_path.iterdir())
    writer = wrap(tmp_path, current_rank=0)
    writer(x, cache_ids=range(4))
    writer.cache.flush()
    module(x, cache_ids=range(4))
    assert module.module.samples == 8


def test_del_flushes(tmp_path):
    module = wrap(tmp_path, flush_every=1000)
    module(torch.rand(3, 2), cache_ids=["a", "b", "c"])
    assert not list(tmp_path.iterdir())
    del module
    gc.collect()
    assert backend(tmp_path).get_batch([f"extractor_v1:{one}" for one in "abc"])[1] == []


def test_a_hit_equals_a_miss(tmp_path):
    x = torch.rand(5, 3)
    module = wrap(tmp_path)
    miss = module(x, cache_ids=range(5))
    for _ in range(2):
        hit = module(torch.zeros(5, 3), cache_ids=range(5))
        assert torch.equal(hit["features"], miss["features"])
        for one, other in zip(hit["pair"], miss["pair"], strict=True):
            assert torch.equal(one, other)
            assert one.dtype == other.dtype
        module.cache.flush()
    results, missing = backend(tmp_path).get_batch([f"extractor_v1:{at}" for at in range(5)])
    assert missing == []
    assert torch.equal(torch.stack([one["features"] for one in results]), miss["features"])


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any


@pytest.mark.parametrize(
    ("output", "of_sample"),
    [
        (lambda x: [row * 2 for row in x], lambda row: row * 2),
        (
            lambda x: {"boxes": [row * 2 for row in x], "score": x[:, 0]},
            lambda row: {"boxes": row * 2, "score": row[0]},
        ),
        (lambda x: {"x": x * 2, "none": None, "name": "a"}, lambda row: {"x": row * 2, "none": None, "name": "a"}),
        (lambda x: Pair(x * 2, x.to(torch.bfloat16)), lambda row: Pair(row * 2, row.to(torch.bfloat16))),
        (lambda x: (x.numpy() * 2, x), lambda row: (row.numpy() * 2, row)),
    ],
    ids=["list", "lists", "constants", "dataclass", "array"],
)
def test_each_key_gets_the_output_of_its_sample(tmp_path, output, of_sample):
    class Made(nn.Module):
        def forward(self, x):
            return output(x)

    x = torch.arange(20.0).reshape(5, 4)
    module = CacheModuleDecorator(Made(), backend(tmp_path))
    module(x, cache_ids=range(5))
    for _ in range(2):
        results, missing = module.cache_backend.get_batch([f"extractor_v1:{at}" for at in (3, 9, 1)])
        assert missing == [1]
        assert repr(results) == repr([of_sample(x[3]), None, of_sample(x[1])])
        module.cache_backend.flush()


def test_disabled_passes_through(tmp_path):
    module = CacheModuleDecorator(Extractor(), backend(tmp_path), enabled=False)
    for _ in range(2):
        module(torch.rand(2, 2))
    assert module.module.samples == 4
    module.cache.close()
    assert not list(tmp_path.iterdir())


def test_ids_in_the_batch_or_by_function(tmp_path):
    class OfBatch(nn.Module):
        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            return batch["input"] * 2

    batch = {"input": torch.rand(2, 2), "cache_ids": ["a", "b"], "names": ["c", "d"]}
    cache = backend(tmp_path)
    CacheModuleDecorator(OfBatch(), cache)(batch)
    CacheModuleDecorator(OfBatch(), cache, key_from_batch_fn=lambda batch: batch["names"])(batch)
    assert cache.get_batch([f"extractor_v1:{one}" for one in "abcd"])[1] == []


def test_errors(tmp_path):
    with pytest.raises(ValueError, match="cache_ids"):
        wrap(tmp_path)(torch.rand(2, 2))
    with pytest.raises(RuntimeError, match="trainable parameters"):
        CacheModuleDecorator(nn.Linear(2, 2), backend(tmp_path))
    CacheModuleDecorator(nn.Linear(2, 2), backend(tmp_path), enforce_stateless=False)


def test_map_location_and_state_dict(tmp_path):
    inner = nn.Linear(2, 2).requires_grad_(False)
    module = CacheModuleDecorator(inner, backend(tmp_path), map_location_on_read="cpu")
    assert module(torch.rand(3, 2), cache_ids=range(3)).device.type == "cpu"
    assert set(module.state_dict()) == {"weight", "bias"}
    module.load_state_dict(inner.state_dict())


def test_ids_of_tensors_and_of_lists_are_the_same(tmp_path):
    cache = backend(tmp_path)
    module = CacheModuleDecorator(Extractor(), cache)
    x = torch.rand(3, 2)
    for ids in ([1, 2, 3], torch.tensor([1, 2, 3]), ["1", "2", "3"]):
        module(x, cache_ids=ids)
    assert module.module.samples == 3
    assert cache.get_batch([f"extractor_v1:{at}" for at in (1, 2, 3)])[1] == []


def test_the_rank_is_that_of_the_launcher(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert backend(tmp_path).current_rank == 1
    module = wrap(tmp_path)
    module(torch.rand(2, 2), cache_ids=range(2))
    module.cache.close()
    assert not list(tmp_path.iterdir())
    assert backend(tmp_path, writer_rank=1)._writes


def test_folds_and_models_share_a_cache(tmp_path):
    """Two parents of one extractor, under one module id: the second computes nothing."""
    x = torch.rand(6, 4)
    first, second = (nn.Sequential(wrap(tmp_path)) for _ in range(2))
    for fold in range(3):
        ids = [at for at in range(6) if at % 3 != fold]
        first[0](x[ids], cache_ids=[f"sample_{at}" for at in ids])
    computed = first[0].module.samples
    first[0](x, cache_ids=[f"sample_{at}" for at in range(6)])
    assert first[0].module.samples == computed
    first[0].cache.flush()
    second[0](x, cache_ids=[f"sample_{at}" for at in range(6)])
    assert second[0].module.samples == 0


def test_other_weights_under_one_module_id_are_refused(tmp_path):
    """torchcachex returns the features of the old weights."""
    x = torch.rand(2, 2)
    cache = backend(tmp_path)
    CacheModuleDecorator(nn.Linear(2, 2).requires_grad_(False), cache)(x, cache_ids=range(2))
    cache.flush()
    with pytest.raises(ws.StaleCache, match="weight"):
        CacheModuleDecorator(nn.Linear(2, 2).requires_grad_(False), cache)(x, cache_ids=range(2))


def test_outputs_of_several_shapes_are_refused(tmp_path):
    cache = backend(tmp_path)
    with pytest.raises(ws.SchemaMismatch, match=r"several shapes: \(1,\), \(2,\); for those use FeatureCache"):
        cache.put_batch({"m:1": torch.ones(1), "m:2": torch.ones(2)})


def test_outputs_of_several_dtypes_are_refused(tmp_path):
    cache = backend(tmp_path)
    items = {"m:1": torch.tensor([2**24 + 1]), "m:2": torch.tensor([1.5])}
    with pytest.raises(ws.SchemaMismatch, match=r"several dtypes: torch\.int64, torch\.float32; convert"):
        cache.put_batch(items)
    assert cache.get_batch(list(items)) == ([None, None], [0, 1])
