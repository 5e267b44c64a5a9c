"""How fast a GPU is fed: figures beside the limits of the device, which `make test-gpu` prints."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import warmstore as ws

ROWS, WIDTH, BATCH = 100_000, 512, 256


def seconds(work: Callable[[], Any], device: torch.device, times: int = 100) -> float:
    """The median time of some work, with everything that it starts on the device."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def test_batches_of_a_cached_module(gpu: torch.device, tmp_path: Path) -> None:
    """A batch whose samples all hit: from a hot tier on the device, from the page cache, and by index_select alone."""
    module, x = nn.Identity().to(gpu), torch.randn(ROWS, WIDTH, device=gpu)
    every = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0)).split(BATCH)
    batches = iter(every * 10)
    found = {}
    for name, options in (("hot on the device", {"hot_size": "all", "hot_device": gpu}), ("page cache", {})):
        with ws.FeatureCache(tmp_path, "c", **options) as cache:
            features = ws.CachedModule(module, cache)
            if name == "hot on the device":
                features(x, cache_ids=range(ROWS))
                cache.flush()
            empty = x[:BATCH]

            def look_up(features: Any = features, empty: Any = empty) -> Any:
                return features(empty, cache_ids=next(batches))

            for ids in every:  # the first read of a row is checked
                assert torch.equal(features(empty[: len(ids)], cache_ids=ids), x[ids.to(gpu)])
            found[name] = seconds(look_up, gpu)
    found["index_select on the device"] = seconds(lambda: x[next(batches).to(gpu)], gpu)
    host = x[:BATCH].cpu()
    if gpu.type == "cuda":
        pinned = host.pin_memory()
        found["copy of one pinned batch"] = seconds(lambda: pinned.to(gpu, non_blocking=True), gpu)
    rows = x.cpu()
    found["memory, index_select, copy"] = seconds(lambda: rows[next(batches)].to(gpu), gpu)
    told = ", ".join(f"{name} {taken * 1e6:.0f} µs" for name, taken in found.items())
    print(f"\n{BATCH} random rows of {4 * WIDTH} bytes, median: {told}")


def test_copies_overlap_a_matrix_product(cuda: torch.device) -> None:
    """An epoch with a matrix product a batch takes little more than the longer of the two, and prints what it took."""
    source = np.random.default_rng(0).random((2048, 1 << 16), np.float32)  # 512 MB
    matrix = torch.randn(6144, 6144, device=cuda)

    def epoch(to: Any, products: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for batch in ws.Loader({"x": source}, 64, sampler=ws.Shuffle(seed=0), to=to, workers=2):
            for _ in range(products):
                torch.mm(matrix, matrix)
            if to is not None:
                batch["x"].sum()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    epoch(cuda, 1)
    copies = epoch(cuda, 0)
    torch.cuda.synchronize()
    began = time.perf_counter()
    torch.mm(matrix, matrix)
    torch.cuda.synchronize()
    products = max(1, round(copies / 32 / (time.perf_counter() - began)))
    work = epoch(None, products)
    both = epoch(cuda, products)
    pinned = torch.from_numpy(source[:64]).pin_memory()
    limit = pinned.nbytes / seconds(lambda: pinned.to(cuda, non_blocking=True), cuda) / 1e9
    print(f"\ncopies {copies:.3f} s, {source.nbytes / copies / 1e9:.1f} GB/s (one pinned batch {limit:.1f} GB/s)")
    print(f"products {work:.3f} s, both {both:.3f} s of {copies + work:.3f}")
    assert both < copies + work
