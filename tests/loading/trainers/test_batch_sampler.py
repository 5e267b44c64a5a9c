"""Every source goes through torch's own DataLoader, in any kind of worker, and a batch is gathered at once."""

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.slow import thinned
from torch.utils.data import DataLoader, Dataset

import warmstore as ws

WORKERS = [(0, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.slow)]
pytestmark = [pytest.mark.forks, pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")]


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
    monkeypatch.setattr("warmstore.records.sample_batch._sample", forbidden)
    loader = DataLoader(store, batch_sampler=ws.BatchSampler(store, 4), collate_fn=ws.collate)  # type: ignore[arg-type]
    assert numbers(loader) == expected()


def test_the_sampler_resumes_across_worlds_and_with_a_loader() -> None:
    order = ws.Shuffle(seed=6)
    whole = order.indices(0, 23, 23, 0).tolist()
    sampler = ws.BatchSampler(23, 3, order, rank=1, world_size=2)
    drawn = iter(sampler)
    assert next(drawn) == whole[3:6]
    state = json.loads(json.dumps(sampler.state_dict()))
    ranks = []
    for rank in range(3):
        other = ws.BatchSampler(23, 2, order, rank=rank, world_size=3, uneven="allow")
        other.load_state_dict(state)
        ranks.append(list(other))
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
    state = sampler.state_dict()
    assert state == sampler.state_dict(batches=3)
    assert state["place"] == 6
    del batches, loader
    other = ws.BatchSampler(store, 5, order)
    other.load_state_dict(state)
    assert seen + [at for batch in other for at in batch] == order.indices(0, 23, 23, 0).tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_states_are_right_at_every_step_and_between_epochs(workers: int) -> None:
    data = ws.Dataset({"x": np.arange(23)})
    order = ws.Shuffle(seed=6)
    sampler = ws.BatchSampler(data, 4, order)
    loader: Any = DataLoader(data, batch_sampler=sampler, collate_fn=ws.collate, num_workers=workers)  # type: ignore[arg-type]

    def stands_at(state: Any) -> tuple[int, int]:
        return state["epoch"], state["place"]

    assert stands_at(sampler.state_dict(batches=0)) == (0, 0)
    with pytest.raises(ValueError, match="batches=2 of an epoch that has not begun"):
        sampler.state_dict(batches=2)
    for epoch in range(3):
        for step, _ in enumerate(loader, 1):
            expected = (epoch, 4 * step) if step < 6 else (epoch + 1, 0)
            assert stands_at(sampler.state_dict()) == stands_at(sampler.state_dict(batches=step)) == expected
            assert stands_at(sampler.state_dict(batches=0)) == (epoch, 0) or step == 6
        assert stands_at(sampler.state_dict(batches=0)) == stands_at(sampler.state_dict()) == (epoch + 1, 0)
    batches = iter(loader)
    next(batches)
    next(batches)
    state = sampler.state_dict()
    assert stands_at(state) == (3, 8)
    del batches
    assert stands_at(sampler.state_dict()) == (3, 8)  # left, and its DataLoader is gone
    sampler.load_state_dict(state)
    assert stands_at(sampler.state_dict(batches=0)) == (3, 8)
    iter(loader)  # nothing is taken of what workers drew ahead
    rest = [at for batch in loader for at in batch["x"].tolist()]
    assert rest == order.indices(8, 23, 23, 3).tolist()
    assert stands_at(sampler.state_dict()) == (4, 0)
    assert sorted(at for batch in loader for at in batch["x"].tolist()) == list(range(23))


class Failing:
    """Numbers, one of which cannot be read."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, at: int) -> Any:
        if at == 9:
            raise LookupError("no nine")
        return at


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_failed_was_not_handed_out(workers: int) -> None:
    data = Failing()
    sampler = ws.BatchSampler(data, 4)
    batches = iter(DataLoader(data, batch_sampler=sampler, num_workers=workers))  # type: ignore[arg-type]
    next(batches)
    next(batches)
    with pytest.raises(LookupError, match="no nine"):
        next(batches)
    assert sampler.state_dict()["place"] == 8
    assert next(batches).tolist() == [12, 13, 14, 15]  # whoever goes on all the same
    assert sampler.state_dict()["place"] == 16


@pytest.mark.parametrize("workers", thinned(2, [0, 2]))
def test_a_sample_batch_in_the_middle_disturbs_no_state(workers: int) -> None:
    data = ws.Dataset({"x": np.arange(23)})
    sampler = ws.BatchSampler(data, 4, ws.Shuffle(seed=6))
    loader: Any = DataLoader(data, batch_sampler=sampler, collate_fn=ws.collate, num_workers=workers)  # type: ignore[arg-type]
    outer = iter(loader)
    seen = [next(outer), next(outer)]
    next(iter(loader))
    assert sampler.state_dict()["epoch"] == 1
    for step, batch in enumerate(outer, 3):
        seen.append(batch)
        state = sampler.state_dict()
        assert (state["epoch"], state["place"]) == ((0, 4 * step) if step < 6 else (1, 0))
    assert sorted(at for batch in seen for at in batch["x"].tolist()) == list(range(23))
    sampler.set_epoch(5)
    assert sampler.state_dict()["epoch"] == 5
    copied = copy.deepcopy(sampler)
    batches = iter(loader)
    next(batches)
    for other in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert (other.state_dict()["epoch"], other.state_dict()["place"]) == (5, 4)
    assert copied.epoch == 5


def test_batches_out_of_order_have_no_place() -> None:
    data = ws.Dataset({"x": np.arange(23)})
    sampler = ws.BatchSampler(data, 4)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=ws.collate, num_workers=2, in_order=False)  # type: ignore[arg-type]
    batches = iter(loader)
    next(batches)
    with pytest.raises(ValueError, match="in_order=False"):
        sampler.state_dict()
    list(batches)
    assert sampler.state_dict()["epoch"] == 1  # between epochs it has


def test_resume_partial_of_a_batch_sampler_and_an_iterator_of_which_nothing_is_taken() -> None:
    data = ws.Dataset({"x": np.arange(23)})
    sampler = ws.BatchSampler(data, 4, ws.Shuffle(seed=6), resume_partial=True)
    loader: Any = DataLoader(data, batch_sampler=sampler, collate_fn=ws.collate, num_workers=2)  # type: ignore[arg-type]
    first = next(iter(loader))
    iter(loader)
    rest = list(loader)
    assert sorted(at for batch in [first, *rest] for at in batch["x"].tolist()) == list(range(23))
    assert sorted(at for batch in loader for at in batch["x"].tolist()) == list(range(23))
    sampler.set_epoch(7)
    assert sampler.epoch == 7


def test_it_is_torchs_and_says_what_trainers_ask() -> None:
    sampler = ws.BatchSampler(33, 8, ws.Shuffle(seed=1), rank=1, world_size=4)
    assert isinstance(sampler, torch.utils.data.BatchSampler)
    assert (sampler.batch_size, sampler.drop_last, len(sampler), sampler.padded) == (8, False, 2, 1)
    assert all(type(position) is int for batch in sampler for position in batch)
    assert isinstance(next(iter(sampler)), list)
    sampler.sampler.set_epoch(5)
    assert sampler.epoch == 5
    assert list(sampler.sampler) == [position for batch in sampler for position in batch]
    assert ws.BatchSampler(10, 4, uneven="drop").drop_last
    sampler.set_epoch(5)
    copy = pickle.loads(pickle.dumps(sampler))
    assert list(copy) == list(sampler)


def test_padded_rows_are_marked_by_the_collate_function() -> None:
    data = ws.Dataset({"x": np.arange(33)})
    real = []
    for rank in range(4):
        sampler = ws.BatchSampler(data, 8, ws.Shuffle(seed=1), rank=rank, world_size=4)
        for batch in DataLoader(data, batch_sampler=sampler, collate_fn=ws.collate):  # type: ignore[arg-type]
            real += batch["x"][batch["valid"]].tolist()
    assert sorted(real) == list(range(33))


def test_a_loaders_parts_give_its_batches_in_torchs_loader(store: ws.RecordStore) -> None:
    def noisy(batch: Any, rng: np.random.Generator) -> Any:
        return {**batch, "noise": rng.random(len(batch["number"]))}

    loader = ws.Loader(
        store, 4, ws.Shuffle(seed=1), fields=["number", "title"], transform=noisy, random=True,
        rank=1, world_size=2, to="torch",
    )  # fmt: skip
    list(loader)
    parts = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)  # type: ignore[arg-type]
    for got, wanted in zip(parts, loader, strict=True):
        assert got["title"] == wanted["title"]
        for name in ("number", "noise", "valid"):
            assert torch.equal(torch.as_tensor(got[name]), torch.as_tensor(wanted[name]))
    assert (loader.num_workers, loader.prefetch_factor, loader.batch_size, loader.drop_last) == (0, None, 4, False)
    assert len(loader.dataset) == 23
    assert loader.dataset[3]["number"] == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loaders_parts_have_bytes_where_workers_send_them(store: ws.RecordStore, workers: int) -> None:
    """A memoryview cannot be sent, and the program waited for ever."""
    loader = ws.Loader(store, 4, fields=["number", "jpeg"])
    parts = DataLoader(
        loader.dataset,  # type: ignore[arg-type]
        batch_sampler=loader.batch_sampler,
        collate_fn=loader.collate_fn,
        num_workers=workers,
        timeout=60 * workers,
    )
    for got, wanted in zip(parts, loader, strict=True):
        assert got["jpeg"] == wanted["jpeg"]
        assert {type(value) for value in got["jpeg"]} == {bytes if workers else memoryview}


def kept(samples: Any) -> Any:
    return samples


def by_name(samples: Any) -> Any:
    return [{"jpeg": sample["jpeg"]} for sample in samples]


@pytest.mark.parametrize("collate", [kept, by_name, list])
def test_any_collate_function_gets_bytes_where_workers_send_them(store: ws.RecordStore, collate: Any) -> None:
    """A memoryview that it keeps cannot be sent, and the program waited for ever."""
    for data in (store, store[["jpeg"]], ws.Dataset(store)):
        loader = DataLoader(data, 4, collate_fn=collate, num_workers=1, timeout=60)  # type: ignore[arg-type]
        for batch, first in zip(loader, range(0, 23, 4), strict=True):
            assert [sample["jpeg"] for sample in batch] == [store[first + at]["jpeg"] for at in range(len(batch))]
            assert {type(sample["jpeg"]) for sample in batch} == {bytes}


class Records(Dataset[Any]):
    """A data set of the program's own, over a store."""

    def __init__(self, read: Callable[[int], Any]) -> None:
        self.read = read

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> Any:
        return self.read(at)


def test_records_that_a_data_set_reads_one_by_one_have_bytes_where_workers_send_them(store: ws.RecordStore) -> None:
    for read in (store.__getitem__, store[["jpeg"]].__getitem__, lambda at: {"jpeg": store["jpeg"][at]}):
        batch = next(iter(DataLoader(Records(read), 4, collate_fn=kept, num_workers=1, timeout=60)))
        assert [sample["jpeg"] for sample in batch] == [store[at]["jpeg"] for at in range(4)]
        assert {type(sample["jpeg"]) for sample in batch} == {bytes}
        assert type(read(0)["jpeg"]) is memoryview


def test_the_sampler_drops_what_does_not_fill_a_batch() -> None:
    sampler = ws.BatchSampler(23, 4, uneven="drop", rank=0, world_size=2)
    assert len(sampler) == len(list(sampler)) == 2


def test_collate_takes_lists_of_samples_too() -> None:
    batch = ws.collate([{"x": np.ones(2), "name": "a"}, {"x": np.zeros(2), "name": "b"}])
    assert batch["x"].shape == (2, 2)
    assert batch["name"] == ["a", "b"]


def test_batches_of_lists_of_samples_do_not_change_the_data_set() -> None:
    samples = [{"x": np.ones(length), "y": torch.ones(length)} for length in (1, 2)]
    (batch,) = DataLoader(samples, 2, collate_fn=ws.collate)  # type: ignore[arg-type]
    for name, column in batch.items():
        for value, sample in zip(column, samples, strict=True):
            value += 1
            assert sample[name].tolist() == [1.0] * len(value)


@pytest.mark.parametrize(("size", "message"), [(0, "batch_size"), (True, "batch_size")])
def test_options_that_cannot_be(size: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ws.BatchSampler(10, size)
    with pytest.raises(ws.BadRank):
        ws.BatchSampler(10, 2, rank=3, world_size=2)
