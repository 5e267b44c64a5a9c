"""Blocks of one cache filled by several processes: each sample once, none acknowledged before it is stored."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import warmstore as ws
from warmstore.errors import AmbiguousBatch
from warmstore.features.block_filling import BlockFiller
from warmstore.features.leases import Claim, Leases

X = torch.arange(1200.0).view(400, 3)  # each value once: samples are told apart by it


class Shared:
    """Leases for threads, which note what was granted."""

    def __init__(self) -> None:
        self.table = Leases(60)
        self.lock = threading.Lock()

    def claim(self, owner: str, samples: Any) -> Claim:
        with self.lock:
            return self.table.claim(owner, samples)

    def finish(self, owner: str, samples: Any, *, stored: bool) -> None:
        with self.lock:
            self.table.finish(owner, samples, stored=stored)

    def lost(self, samples: Any) -> None:
        with self.lock:
            self.table.lost(samples)


class Double(torch.nn.Module):
    """Counts the values that it computes in a list that belongs to the test."""

    def __init__(self, seen: list[float]) -> None:
        super().__init__()
        self.seen = seen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.extend(x[:, 0].tolist())
        return x * 2


def filler(
    cache: ws.FeatureCache, seen: list[float], leases: Any, owner: str, store: Any = None, look_again: Any = None
) -> BlockFiller:
    # Named dimensions: else two first batches of three samples, with three values each, run the module once more.
    cached = ws.CachedModule(Double(seen), cache, ignore="module.seen", out_dims=0)
    call = lambda batch: ((torch.from_numpy(np.array(batch["x"])),), {})  # noqa: E731
    return BlockFiller(cached, leases, owner, "id", call, 16, store or cache.flush, look_again or (lambda: None))


def block(*numbers: int) -> dict[str, Any]:
    return {"id": np.array(numbers), "x": X[list(numbers)].numpy()}


def test_a_block_is_stored_when_it_is_done(tmp_path: Path) -> None:
    seen: list[float] = []
    with ws.FeatureCache(tmp_path, "id") as cache, ws.FeatureCache(tmp_path, "id") as other:
        one = filler(cache, seen, Shared(), "a")
        assert one.fill(block(*range(50), 3, 3)) == ws.FillResult(1, 50, 2)
        assert len(seen) == 50
        assert torch.equal(other.get_batch(range(50))[0], X[:50] * 2)  # before anybody closed the cache
        assert one.fill(block(*range(40, 60))) == ws.FillResult(1, 10, 10)
        assert torch.equal(other.get_batch(range(60))[0], X[:60] * 2)


def test_two_that_fill_the_same_blocks_compute_each_sample_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    blocks = [block(*rng.choice(400, 64, replace=False).tolist()) for _ in range(30)]
    leases, seen = Shared(), [[], [], []]
    caches = [ws.FeatureCache(tmp_path, "id") for _ in seen]
    fillers = [filler(cache, mine, leases, f"{at}") for at, (cache, mine) in enumerate(zip(caches, seen, strict=True))]
    results: list[ws.FillResult] = []

    def work(one: BlockFiller, order: Any) -> None:
        results.extend(one.fill(blocks[at]) for at in order)

    orders = [range(30), reversed(range(30)), range(0, 30, 2)]
    threads = [threading.Thread(target=work, args=args) for args in zip(fillers, orders, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = Counter(value for mine in seen for value in mine)
    ids = np.unique(np.concatenate([one["id"] for one in blocks]))
    assert len(results) == 75
    assert sum(result.computed for result in results) == len(ids) == len(counts)
    assert set(counts.values()) == {1}
    assert sum(1 for mine in seen if mine) > 1
    for cache in caches:
        assert torch.equal(cache.get_batch(ids)[0], X[ids] * 2)
        cache.close()
    assert leases.table.count == 0


def test_samples_of_another_host_are_fetched_and_not_computed(tmp_path: Path) -> None:
    url, leases, seen = f"file://{tmp_path}/team", Shared(), []
    caches = [ws.FeatureCache(url, "id", cache_dir=tmp_path / f"{at}") for at in range(2)]
    one, other = (
        filler(cache, seen, leases, cache.path.name + f"{at}", cache.push, cache.pull)
        for at, cache in enumerate(caches)
    )
    assert one.fill(block(*range(30))).computed == 30
    assert other.fill(block(*range(20, 50))) == ws.FillResult(1, 20, 10)
    assert len(seen) == 50
    for cache in caches:
        cache.close()
    with ws.FeatureCache(url, "id", cache_dir=tmp_path / "reader") as reader:
        assert torch.equal(reader.get_batch(range(50))[0], X[:50] * 2)


def test_samples_that_were_stored_and_are_gone_are_computed(tmp_path: Path) -> None:
    leases, seen = Shared(), []
    with ws.FeatureCache(tmp_path / "lost", "id") as cache:
        filler(cache, seen, leases, "a").fill(block(*range(30)))
    with ws.FeatureCache(tmp_path / "here", "id") as cache:
        assert filler(cache, seen, leases, "b").fill(block(*range(40))).computed == 40


def test_a_block_that_fails_is_not_done_and_can_be_filled_by_others(tmp_path: Path) -> None:
    leases, seen = Shared(), []

    def refuse() -> None:
        raise ws.RemoteUnavailable("no")

    with ws.FeatureCache(tmp_path / "a", "id") as cache, ws.FeatureCache(tmp_path / "b", "id") as other:
        with pytest.raises(ws.RemoteUnavailable):
            filler(cache, seen, leases, "a", refuse).fill(block(*range(10)))
        assert leases.table.count == 0
        assert filler(other, seen, leases, "b").fill(block(*range(10))).computed == 10


def test_outputs_that_cannot_be_stored_are_not_acknowledged(tmp_path: Path) -> None:
    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum(0)  # one value for the batch

    with ws.FeatureCache(tmp_path, "id") as cache:
        cached = ws.CachedModule(Sum(), cache)
        call = lambda batch: ((torch.from_numpy(batch["x"]),), {})  # noqa: E731
        one = BlockFiller(cached, Shared(), "a", "id", call, 16, cache.flush, lambda: None)
        with pytest.raises((AmbiguousBatch, ws.SchemaMismatch)):
            one.fill(block(*range(10)))
