"""A state knows its data: what has only grown is gone on with, and what has moved is refused."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data as torch_data

import warmstore as ws

COUNT = 23
SAMPLERS = [ws.Shuffle(seed=3), ws.Sequential()]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[ws.RecordStore]:
    with ws.RecordStore.create(tmp_path / "store", {"x": ws.Array("int64")}) as store:
        store.extend({"x": np.arange(COUNT)})
        store.flush()
        yield store


def numbers(batches: Any) -> list[int]:
    return [at for batch in batches for at in batch["x"].tolist()]


def begun(path: Path, sampler: Any) -> tuple[list[int], dict[str, Any]]:
    """The samples of two batches of epoch 1, and the state after them."""
    with ws.RecordStore.open(path) as store:
        loader = ws.Loader(store, 4, sampler)
        list(loader)
        taken = iter(loader)
        return numbers([next(taken), next(taken)]), json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_store_that_has_grown_finishes_its_epoch_over_what_it_was_begun_with(
    writer: ws.RecordStore, sampler: Any
) -> None:
    taken, state = begun(writer.path, sampler)
    writer.extend({"x": np.arange(COUNT, 30)})
    writer.update(3, {"x": 3})
    writer.flush()
    loader = ws.Loader(writer.path, 4, sampler)
    loader.load_state_dict(state)
    rest = iter(loader)
    taken += numbers([next(rest)])
    again = ws.Loader({"x": ws.RecordStore.open(writer.path)["x"]}, 5, sampler)
    with pytest.raises(ws.BadState, match="identity"):  # another form of source is another one
        again.load_state_dict(loader.state_dict())
    again = ws.Loader(writer.path, 5, sampler)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    taken += numbers(again)
    assert sorted(taken) == list(range(COUNT))
    assert sorted(numbers(again)) == list(range(30))
    assert again.epoch == 3


def test_what_has_moved_is_refused_or_begins_its_epoch_anew(writer: ws.RecordStore) -> None:
    _, state = begun(writer.path, "shuffle")
    writer.delete(2)
    writer.append({"x": 99})
    writer.flush()
    loader = ws.Loader(writer.path, 4, "shuffle")
    with pytest.raises(
        ws.BadState, match=r"'deletes': 0.*here it is.*'deletes': 1.*strict=False to begin epoch 1 again"
    ):
        loader.load_state_dict(state)
    assert loader.epoch == 0
    loader.load_state_dict(state, strict=False)
    assert (loader.epoch, loader.state_dict()["place"]) == (1, 0)
    assert sorted(numbers(loader)) == sorted({*range(COUNT), 99} - {2})
    loader.load_state_dict(state, check_identity=False)  # whoever knows better
    assert loader.state_dict()["place"] == 8


@pytest.mark.parametrize(
    "around",
    [
        lambda store: store,
        lambda store: {"s": store},
        lambda store: (store, store["x"]),
        lambda store: ws.Mixture([store], [1.0]),
        lambda store: ws.Subset(store, np.arange(20)),
        lambda store: torch_data.ConcatDataset([store]),
    ],
    ids=["alone", "dict", "tuple", "mixture", "subset", "joined"],
)
def test_deletes_under_a_living_loader_are_seen(writer: ws.RecordStore, around: Callable[[Any], Any]) -> None:
    loader = ws.Loader(around(writer), 4, "shuffle")
    next(iter(loader))
    state = loader.state_dict()
    writer.delete(2)
    writer.append({"x": 99})
    writer.flush()
    with pytest.raises(ws.BadState, match=r"'deletes': 0.*here it is.*'deletes': 1"):
        loader.load_state_dict(state)


def test_a_rebalance_is_not_known_to_have_kept_positions(writer: ws.RecordStore) -> None:
    _, state = begun(writer.path, "shuffle")
    writer.rebalance()
    with pytest.raises(ws.BadState, match=r"'generation': 1.*here it is.*'generation': 2"):
        ws.Loader(writer.path, 4, "shuffle").load_state_dict(state)


def test_a_state_of_other_options_begins_its_epoch_anew() -> None:
    loader = ws.Loader(np.arange(10), 4, "shuffle")
    list(loader)
    next(iter(loader))
    other = ws.Loader(np.arange(10), ws.TokenBudget(8, np.full(10, 2)), "shuffle")
    with pytest.raises(ws.BadState, match="the state has the batches None"):
        other.load_state_dict(loader.state_dict())
    other.load_state_dict(loader.state_dict(), strict=False)
    assert (other.epoch, other.state_dict()["place"]) == (1, 0)


def test_fewer_samples_than_a_state_has_are_refused(writer: ws.RecordStore) -> None:
    _, state = begun(writer.path, "shuffle")
    writer.delete(list(range(5)))
    writer.flush()
    with pytest.raises(ws.BadState, match="the state is of 23 samples; here there are 18"):
        ws.Loader(writer.path, 4, "shuffle").load_state_dict(state)


def test_other_arrays_of_the_same_shape_are_refused() -> None:
    loader = ws.Loader({"x": np.arange(10), "y": np.arange(10)}, 4)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(ws.BadState, match="identity"):
        ws.Loader({"x": np.arange(10), "y": np.arange(10) + 1}, 4).load_state_dict(state)
    with pytest.raises(ws.BadState, match="the state is of 10 samples; here there are 11"):
        ws.Loader({"x": np.arange(11), "y": np.arange(11)}, 4).load_state_dict(state)
    same = ws.Loader({"x": np.arange(10), "y": np.arange(10)}, 4)
    same.load_state_dict(state)
    assert numbers(same) == [4, 5, 6, 7, 8, 9]


def test_batch_samplers_know_their_data_too(writer: ws.RecordStore) -> None:
    taken, state = begun(writer.path, "shuffle")
    writer.extend({"x": np.arange(COUNT, 30)})
    writer.flush()
    store = ws.RecordStore.open(writer.path)
    sampler = ws.BatchSampler(store, 4, "shuffle")
    sampler.load_state_dict(state)
    drawn = iter(sampler)
    taken += store["x"][next(drawn)].tolist()
    other = ws.BatchSampler(store, 3, "shuffle")
    other.load_state_dict(sampler.state_dict())
    taken += [at for batch in other for at in store["x"][batch].tolist()]
    assert sorted(taken) == list(range(COUNT))
    assert len([at for batch in other for at in batch]) == 30
    with pytest.raises(ws.BadState, match="the state is of 23 samples; here there are 30"):
        ws.BatchSampler(30, 3, "shuffle").load_state_dict(state)  # nobody knows of what
    store.close()
    with pytest.raises(ws.BadState, match="identity"):
        ws.BatchSampler(ws.Dataset(np.arange(30)), 3, "shuffle").load_state_dict(state | {"samples": 30})


def test_collated_data_sets_know_their_data() -> None:
    loader = ws.Loader(ws.Dataset([b"a", b"bc"], collate="pad"), 1)
    next(iter(loader))
    ws.Loader(ws.Dataset([b"a", b"bc"], collate="pad"), 1).load_state_dict(loader.state_dict())
    with pytest.raises(ws.BadState, match="identity"):
        ws.Loader(ws.Dataset([b"a", b"xy"], collate="pad"), 1).load_state_dict(loader.state_dict())
