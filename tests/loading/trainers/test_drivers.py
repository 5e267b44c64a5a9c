"""A batch sampler knows who draws from it: accelerate's wrappers in this process, as several ranks would have them."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard
from tests.slow import thinned
from torch.utils.data import DataLoader

import warmstore as ws

pytestmark = pytest.mark.forks

ORDER = ws.Shuffle(seed=6)


def data() -> ws.Dataset:
    return ws.Dataset({"x": np.arange(43)})


def numbers(batches: Any) -> list[int]:
    return [at for batch in batches for at in batch["x"].tolist()]


def stands_at(sampler: ws.BatchSampler) -> tuple[int, int]:
    state = sampler.state_dict()
    return state["epoch"], state["place"]


@pytest.mark.parametrize("workers", thinned(2, [0, 2]))
@pytest.mark.parametrize("steps", [0, 3])
def test_accelerates_own_count_goes_on_from_a_loaded_state(workers: int, steps: int) -> None:
    def make() -> tuple[ws.BatchSampler, Any]:
        sampler = ws.BatchSampler(data(), 4, ORDER)
        loader = DataLoader(data(), batch_sampler=sampler, collate_fn=ws.collate, num_workers=workers)  # type: ignore[arg-type]
        return sampler, Accelerator(cpu=True).prepare(loader)

    sampler, loader = make()
    for _ in range(2):
        list(loader)
    taken = []
    for step, batch in enumerate(loader if steps else (), 1):
        taken += batch["x"].tolist()
        assert stands_at(sampler) == (2, 4 * step)
        if step == steps:
            break
    state = sampler.state_dict()
    sampler, loader = make()
    sampler.load_state_dict(state)
    assert taken + numbers(loader) == ORDER.indices(0, 43, 43, 2).tolist()
    for epoch in (3, 4):
        assert stands_at(sampler) == (epoch, 0)
        assert numbers(loader) == ORDER.indices(0, 43, 43, epoch).tolist()
    loader.set_epoch(1)
    assert numbers(loader) == ORDER.indices(0, 43, 43, 1).tolist()


def test_batches_that_accelerate_shards_are_those_of_all_ranks(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = []
    for rank in range(2):
        sampler = ws.BatchSampler(data(), 4, ORDER, uneven="full")
        assert len(sampler) == 6
        shard = BatchSamplerShard(sampler, 2, rank)
        assert len(shard) == 6
        loader = DataLoader(data(), batch_sampler=shard, collate_fn=ws.collate)  # type: ignore[arg-type]
        steps = []
        for step, batch in enumerate(loader, 1):
            assert list(batch) == ["x"]
            steps.append(batch["x"].tolist())
            len(sampler)
            assert stands_at(sampler) == ((0, 8 * step) if step < 6 else (1, 0))
        found.append(steps)
    whole = [at for pair in zip(*found, strict=True) for batch in pair for at in batch]
    assert whole[:43] == ORDER.indices(0, 43, 43, 0).tolist()
    said = [record.getMessage() for record in caplog.records]
    assert said == ["accelerate shards the batches over its ranks, so the BatchSampler does not"] * 2


def test_a_rank_that_was_passed_is_not_sharded_again() -> None:
    sampler = ws.BatchSampler(data(), 4, rank=0, world_size=2)
    with pytest.raises(ws.BadRank, match=r"accelerate shards these batches over its 2 processes.*leave rank="):
        list(BatchSamplerShard(sampler, 2, 0))
    with pytest.raises(ws.BadRank, match="leave rank="):
        len(BatchSamplerShard(sampler, 2, 0))


def test_a_loaders_parts_that_are_sharded_again_mark_nothing_wrongly() -> None:
    def noisy(batch: Any, rng: np.random.Generator) -> Any:
        return {**batch, "noise": rng.random(len(batch["x"]))}

    loader = ws.Loader({"x": np.arange(10)}, 4, uneven="full", transform=noisy, random=True)
    noises = set()
    for rank in range(2):
        shard = BatchSamplerShard(loader.batch_sampler, 2, rank)
        for batch in DataLoader(loader.dataset, batch_sampler=shard, collate_fn=loader.collate_fn):  # type: ignore[arg-type]
            assert sorted(batch) == ["noise", "x"]
            noises.add(float(batch["noise"][0]))
    assert len(noises) == 4


class Kept:
    """Something that a program drops."""


def test_what_a_program_drops_is_gone() -> None:
    """Looking into the frames of a program would keep what they held."""

    def train() -> bool:
        held = Kept()
        gone = weakref.ref(held)
        sampler = ws.BatchSampler(data(), 4)
        len(sampler)
        next(iter(sampler))
        next(iter(DataLoader(data(), batch_sampler=sampler, collate_fn=ws.collate)))  # type: ignore[arg-type]
        del held
        gc.collect()
        return gone() is None

    assert train()
