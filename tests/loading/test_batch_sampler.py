"""Every source goes through torch's own DataLoader, in any kind of worker, and a batch is gathered at once."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import warmstore as ws

WORKERS = [(0, None), (2, "fork"), (2, "spawn")]
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def numbers(loader: Any) -> list[list[int]]:
    return [(batch["number"] if isinstance(batch, dict) else batch).tolist() for batch in loader]


def expected(order: Any = None, epoch: int = 0) -> list[list[int]]:
    at = (order or ws.Sequential()).indices(0, 23, 23, epoch).tolist()
    return [at[first : first + 4] for first in range(0, 23, 4)]


@pytest.mark.parametrize(("workers", "context"), WORKERS)
def test_a_store_with_our_sampler_and_collate(store: ws.RecordStore, workers: int, context: Any) -> None:
    order = ws.Shuffle(seed=2)
    loader = DataLoader(
        store,  # type: ignore[arg-type]
        batch_sampler=ws.BatchSampler(store, 4, order),
        collate_fn=ws.collate,
        num_workers=workers,
        multiprocessing_context=context,
        persistent_workers=bool(workers),
    )
    assert len(loader) == 6
    for epoch in range(2):
        batches = list(loader)
        assert numbers(batches) == expected(order, epoch)
        assert all(isinstance(batch["image"], torch.Tensor) for batch in batches)
        assert len(batches[0]["points"]) == 4
        assert [len(value) for value in batches[0]["jpeg"]] == expected(order, epoch)[0]


@pytest.mark.parametrize(("workers", "context"), WORKERS)
def test_every_source(store: ws.RecordStore, tmp_path: Any, workers: int, context: Any) -> None:
    np.save(tmp_path / "x.npy", np.arange(23))
    sources: dict[str, Any] = {
        "store": store,
        "npy": tmp_path / "x.npy",
        "list": list(range(23)),
        "field": store["number"],
        "tensor": torch.arange(23),
    }
    source = ws.Dataset(ws.Mixture([sources], [1]), fields=["number"])
    loader = DataLoader(
        source,
        batch_sampler=ws.BatchSampler(source, 4),
        collate_fn=ws.collate,
        num_workers=workers,
        multiprocessing_context=context,
    )
    found = list(loader)
    for name in sources:
        assert numbers(batch[name] for batch in found) == expected()


def test_torchs_own_sampler_and_collate(store: ws.RecordStore) -> None:
    data = ws.Dataset(store, fields=["number", "image", "title"])
    assert numbers(DataLoader(data, batch_size=4)) == expected()  # type: ignore[arg-type]
    assert numbers(DataLoader(store["number"], batch_size=4)) == expected()  # type: ignore[arg-type]
    shuffled = [at for batch in numbers(DataLoader(data, batch_size=4, shuffle=True)) for at in batch]  # type: ignore[arg-type]
    assert sorted(shuffled) == list(range(23))


def test_no_sample_is_touched_by_itself(store: ws.RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any) -> Any:
        raise AssertionError("a sample by itself")

    monkeypatch.setattr(ws.RecordStore, "__getitem__", forbidden)
    monkeypatch.setattr("warmstore.records.samples._sample", forbidden)
    loader = DataLoader(store, batch_sampler=ws.BatchSampler(store, 4), collate_fn=ws.collate)  # type: ignore[arg-type]
    assert numbers(loader) == expected()


def test_the_sampler_resumes_across_worlds_and_with_a_loader() -> None:
    order = ws.Shuffle(seed=6)
    whole = order.indices(0, 23, 23, 0).tolist()
    sampler = ws.BatchSampler(23, 3, order, rank=1, world_size=2)
    drawn = iter(sampler)
    assert next(drawn).tolist() == whole[3:6]
    state = json.loads(json.dumps(sampler.state_dict()))
    ranks = []
    for rank in range(3):
        other = ws.BatchSampler(23, 2, order, rank=rank, world_size=3)
        other.load_state_dict(state)
        ranks.append([batch.tolist() for batch in other])
        assert other.state_dict()["epoch"] == 1
    rest = [at for step in range(3) for rank in ranks for batch in rank[step : step + 1] for at in batch]
    assert whole[:6] + rest == whole
    loader = ws.Loader(np.arange(23), 17, order)
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == [whole[6:]]
    with pytest.raises(ws.BadState, match="23 samples; here there are 24"):
        ws.BatchSampler(24, 3, order).load_state_dict(state)


def test_what_workers_draw_ahead_is_not_counted(store: ws.RecordStore) -> None:
    order = ws.Shuffle(seed=6)
    sampler = ws.BatchSampler(store, 2, order)
    loader = DataLoader(store, batch_sampler=sampler, collate_fn=ws.collate, num_workers=2, prefetch_factor=4)  # type: ignore[arg-type]
    batches = iter(loader)
    seen = [at for _ in range(3) for at in next(batches)["number"].tolist()]
    assert sampler.state_dict()["place"] > 6
    state = sampler.state_dict(batches=3)
    assert state["place"] == 6
    del batches, loader
    other = ws.BatchSampler(store, 5, order)
    other.load_state_dict(state)
    assert seen + [at for batch in other for at in batch.tolist()] == order.indices(0, 23, 23, 0).tolist()


def test_the_sampler_drops_what_does_not_fill_a_batch() -> None:
    sampler = ws.BatchSampler(23, 4, drop_last=True, rank=0, world_size=2)
    assert len(sampler) == len(list(sampler)) == 2


def test_collate_takes_lists_of_samples_too() -> None:
    batch = ws.collate([{"x": np.ones(2), "name": "a"}, {"x": np.zeros(2), "name": "b"}])
    assert batch["x"].shape == (2, 2)
    assert batch["name"] == ["a", "b"]


@pytest.mark.parametrize(("size", "message"), [(0, "batch_size"), (True, "batch_size")])
def test_options_that_cannot_be(size: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ws.BatchSampler(10, size)
    with pytest.raises(ws.BadRank):
        ws.BatchSampler(10, 2, rank=3, world_size=2)
