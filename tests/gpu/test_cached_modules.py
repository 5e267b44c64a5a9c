"""CachedModule on a GPU: what is read is what was computed, bit for bit and on the device, whichever tier has it."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import warmstore as ws

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.bool]


class Backbone(nn.Module):
    """A frozen module with an output of one dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 48).requires_grad_(False)
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.linear(x)
        return {"out": (hidden > 0) if self.dtype == torch.bool else hidden.to(self.dtype), "mean": hidden.mean(1)}


def bits(tensor: torch.Tensor) -> Any:
    return tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], device: torch.device) -> None:
    for name, tensor in one.items():
        assert tensor.device == other[name].device == device
        assert tensor.dtype == other[name].dtype
        assert tensor.shape == other[name].shape
        assert bits(tensor) == bits(other[name])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"hot_size": "8MB"}, {"codec": "zstd"}], ids=str)
def test_what_is_read_is_what_was_computed(
    gpu: torch.device, dtype: torch.dtype, options: dict[str, Any], tmp_path: Path
) -> None:
    backbone, x = Backbone(dtype).to(gpu), torch.randn(64, 32, device=gpu)
    with ws.FeatureCache(tmp_path, "c", hot_device=gpu, **options) as cache:
        features = ws.CachedModule(backbone, cache)
        computed = features(x, cache_ids=range(64))
        same(computed, backbone(x), gpu)
        for _ in range(3):  # pending, committed, and hot
            same(features(x, cache_ids=range(64)), computed, gpu)
            cache.flush()
        order = torch.randperm(64, device=gpu)
        mixed = features(x[order], cache_ids=order)  # ids on the device
        same(mixed, {name: tensor[order] for name, tensor in computed.items()}, gpu)
        assert cache.stats().misses == 64
    with ws.FeatureCache(tmp_path, "c") as cache:  # another run, whose weights come from the CPU
        again = ws.CachedModule(copy.deepcopy(backbone).cpu().to(gpu), cache)
        same(again(x, cache_ids=range(64)), computed, gpu)
        assert not cache.stats().misses


def test_some_are_read_and_some_computed(gpu: torch.device, tmp_path: Path) -> None:
    backbone, x = Backbone(torch.bfloat16).to(gpu), torch.randn(64, 32, device=gpu)
    with ws.FeatureCache(tmp_path, "c") as cache:
        features = ws.CachedModule(backbone, cache)
        first = features(x[::2], cache_ids=range(0, 64, 2))
        both = features(x, cache_ids=range(64))
        same({name: tensor[::2] for name, tensor in both.items()}, first, gpu)
        assert cache.stats().misses == 64


def test_the_stream_of_the_caller_has_its_batch(cuda: torch.device, tmp_path: Path) -> None:
    """A batch that is read on one stream while another one computes, over and over: none shows other rows."""
    backbone, x = Backbone(torch.float32).to(cuda), torch.randn(512, 32, device=cuda)
    right = backbone(x)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3)]
    with ws.FeatureCache(tmp_path, "c", hot_size="all", hot_device=cuda) as cache:
        features = ws.CachedModule(backbone, cache)
        features(x, cache_ids=range(512))
        cache.flush()
        for at in range(60):
            with torch.cuda.stream(streams[at % 3]):
                order = torch.randperm(512)[:100]
                found = features(x[order.to(cuda)], cache_ids=order)
                same(found, {name: tensor[order.to(cuda)] for name, tensor in right.items()}, cuda)


def test_results_go_where_they_are_wanted(gpu: torch.device, tmp_path: Path) -> None:
    backbone, x = Backbone(torch.float32).to(gpu), torch.randn(8, 32, device=gpu)
    with ws.FeatureCache(tmp_path, "c") as cache:
        features = ws.CachedModule(backbone, cache, map_location="cpu")
        for _ in range(2):
            assert features(x, cache_ids=range(8))["out"].device.type == "cpu"
    with ws.FeatureCache(tmp_path, "c") as cache:
        values, missing = cache.get_batch(range(8), device=gpu)
        assert values["out"].device == gpu
        assert not len(missing)


def test_autocast_is_another_computation(gpu: torch.device, tmp_path: Path) -> None:
    backbone, x = Backbone(torch.float32).to(gpu), torch.randn(8, 32, device=gpu)
    with ws.FeatureCache(tmp_path, "c", versions="new") as cache:
        features = ws.CachedModule(backbone, cache)
        plain = features(x, cache_ids=range(8))
        with torch.autocast(gpu.type, torch.bfloat16):
            cast = features(x, cache_ids=range(8))
            assert bits(cast["mean"]) == bits(backbone(x)["mean"])
        assert bits(features(x, cache_ids=range(8))["mean"]) == bits(plain["mean"])


def test_a_hot_tier_keeps_to_its_bytes(cuda: torch.device, tmp_path: Path) -> None:
    """The rows in the memory of the device take no more than was said, whatever is looked up."""
    backbone = Backbone(torch.float32).to(cuda)
    with ws.FeatureCache(tmp_path, "c", hot_size="4MB", hot_device=cuda) as cache:
        features = ws.CachedModule(backbone, cache)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for start in range(0, 50_000, 500):
            ids = range(start, start + 500)
            x = torch.randn(500, 32, device=cuda, generator=torch.Generator(cuda).manual_seed(start))
            features(x, cache_ids=ids)
        cache.flush()
        for start in range(0, 50_000, 500):
            ids = range(start, start + 500)
            x = torch.randn(500, 32, device=cuda, generator=torch.Generator(cuda).manual_seed(start))
            same(features(x, cache_ids=ids), backbone(x), cuda)
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() - before < 6_000_000


@pytest.mark.parametrize("options", [{}, {"hot_size": "all"}], ids=["page cache", "hot on the device"])
def test_a_lookup_does_not_wait_for_the_device(cuda: torch.device, options: dict[str, Any], tmp_path: Path) -> None:
    """A call whose samples all hit returns while the device still works on what was there before."""
    backbone, x = Backbone(torch.float32).to(cuda), torch.randn(512, 32, device=cuda)
    busy = torch.randn(8192, 8192, device=cuda)
    with ws.FeatureCache(tmp_path, "c", hot_device=cuda, **options) as cache:
        features = ws.CachedModule(backbone, cache)
        right = features(x, cache_ids=range(512))
        cache.flush()
        for _ in range(2):
            same(features(x, cache_ids=range(512)), right, cuda)
        for _ in range(20):  # half a second
            busy = (busy @ busy).clamp(-1, 1)
        done = torch.cuda.Event()
        done.record()
        found = features(x, cache_ids=range(512))
        assert not done.query()
        same(found, right, cuda)
