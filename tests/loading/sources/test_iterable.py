"""Iterable sources give every sample once an epoch, over any ranks, and go on by count."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slow import either

import warmstore as ws


class Numbers:
    """Counts to n, in an order of its own for each epoch."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        order = np.random.default_rng(self.epoch).permutation(self.count)
        return ({"x": int(at), "name": f"sample {at}"} for at in order)


class Torchs(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def ten() -> Iterator[int]:
    yield from range(10)


def numbers(batches: Any) -> list[int]:
    return [at for batch in batches for at in (batch["x"] if isinstance(batch, dict) else batch).tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_end_with_their_last_batch(workers: int) -> None:
    loader = ws.Loader(Numbers(10), 4, workers=workers)
    orders = []
    for epoch in range(3):
        batches = list(islice(loader, 3))
        assert (loader.epoch, loader.state_dict()["place"]) == (epoch + 1, 0)
        orders.append(numbers(batches))
        assert sorted(orders[-1]) == list(range(10))
        assert batches[0]["name"] == [f"sample {at}" for at in orders[-1][:4]]
    assert orders[0] != orders[1]
    next(iter(loader))
    assert sorted(numbers(loader)) == list(range(10))
    assert loader.epoch == 5
    with pytest.raises(TypeError, match="number of batches of an iterable source"):
        len(loader)


@settings(max_examples=either(30, 60))
@given(
    st.integers(0, 30), st.integers(1, 5), st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.integers(1, 5),
    st.sampled_from(["pad", "full"]),
)  # fmt: skip
def test_any_step_resumes_on_other_ranks(
    count: int, size: int, world: int, other_size: int, other_world: int, steps: int, uneven: Any
) -> None:
    found: list[int] = []
    state: Any = None
    for taken, batch_size, ranks in ((steps, size, world), (10**6, other_size, other_world)):
        lengths, after = set(), None
        for rank in range(ranks):
            loader = ws.Loader(Numbers(count), batch_size, rank=rank, world_size=ranks, uneven=uneven)
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            batches = list(islice(loader, taken))
            lengths.add(len(batches))
            for batch in batches:
                found += batch["x"][batch.get("valid", np.ones(len(batch["x"]), bool))].tolist()
            after = loader.state_dict()
        assert len(lengths) == 1
        state = after
        if state["epoch"]:
            break
    assert sorted(found) == list(range(count))


def test_the_rest_is_dropped_or_allowed() -> None:
    for uneven, counts in (("drop", [3, 3]), ("allow", [4, 3])):
        ranks = [list(ws.Loader(Numbers(13), 2, rank=rank, world_size=2, uneven=uneven)) for rank in range(2)]  # type: ignore[arg-type]
        assert [len(rank) for rank in ranks] == counts


def test_what_is_iterable(tmp_path: Path) -> None:
    for source in (ten, Torchs(), dict.fromkeys(range(10)).keys()):
        loader = ws.Loader(source, 3)
        for _ in range(2):
            assert numbers(loader) == list(range(10))
    datasets = pytest.importorskip("datasets")
    streaming = datasets.Dataset.from_dict({"x": list(range(10)), "name": [f"{at}" for at in range(10)]})
    loader = ws.Loader(streaming.to_iterable_dataset().shuffle(seed=1, buffer_size=5), 4, to="torch")
    orders = [numbers(loader) for _ in range(2)]
    assert orders[0] != orders[1]
    assert all(sorted(order) == list(range(10)) for order in orders)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves a file open that is left
def test_webdataset_goes_on_by_count(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "shard.tar")) as tar:
        for at in range(10):
            tar.write({"__key__": f"{at:03}", "x.cls": str(at)})
    shards = webdataset.WebDataset(str(tmp_path / "shard.tar"), shardshuffle=False, empty_check=False).decode()
    loader = ws.Loader(shards.map(lambda sample: {"x": sample["x.cls"]}), 4)
    first = numbers(islice(loader, 2))
    resumed = ws.Loader(shards.map(lambda sample: {"x": sample["x.cls"]}), 4)
    resumed.load_state_dict(loader.state_dict())
    assert first + numbers(resumed) == list(range(10))


def test_what_an_iterable_cannot_do() -> None:
    with pytest.raises(ws.BadSource, match="an iterator or generator can be read only once"):
        ws.Loader(ten(), 2)
    with pytest.raises(ValueError, match="an iterable has no positions, so Shuffle"):
        ws.Loader(ten, 2, "shuffle")
    with pytest.raises(ValueError, match="need to know all lengths"):
        ws.Loader(ten, ws.TokenBudget(10, [1, 2]))
    with pytest.raises(ValueError, match="on_error cannot go on with it"):
        ws.Loader(ten, 2, on_error="skip")

    class Once:
        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            raise StopIteration

    with pytest.raises(ws.BadSource, match="can be read only once"):
        ws.Loader(Once(), 2)


def test_an_iterable_with_a_length_has_no_positions() -> None:
    """The positions themselves were taken for the samples."""

    class Known(Torchs):
        def __len__(self) -> int:
            return 10

    for source in (Known(), dict.fromkeys("abc").keys(), ten):
        for kind in (ws.Dataset, lambda source: ws.BatchSampler(source, 2), lambda source: ws.Subset(source, [0])):
            with pytest.raises(ws.BadSource, match="is an iterable and has no positions; convert it to a list"):
                kind(source)
    data = ws.Loader(Known(), 2).dataset
    for read in (lambda: data[2], lambda: data.__getitems__([2])):
        with pytest.raises(ws.BadSource, match="an iterable has no positions"):
            read()


def test_batches_own_their_memory() -> None:
    kept = [np.ones(count) for count in (2, 3, 4)]

    def source() -> Iterator[Any]:
        yield from kept

    for copy in (True, False):
        for batch in ws.Loader(source, 3, copy=copy):
            for value in batch:
                value += 1
        assert [int(value[0]) for value in kept] == [1 if copy else 2] * 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_of_an_iterable_without_batches_is_an_error(workers: int) -> None:
    reads: list[int] = []

    def few() -> Iterator[int]:
        assert len(reads) < 3
        reads.append(0)
        yield from range(3 if len(reads) == 1 else 2)

    batches = ws.Loader(few, 3, uneven="drop", workers=workers).stream()
    assert next(batches).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="epoch 1 has no batch for this rank"):
        next(batches)
    assert list(ws.Loader(few, 3, uneven="drop", epochs=1, workers=workers).stream()) == []
    with pytest.raises(ValueError, match="epoch 0 has no batch"):
        next(ws.Loader(lambda: iter(()), 3, workers=workers).stream())


@pytest.mark.forks
@pytest.mark.parametrize("ahead", [{"workers": 0}, {"workers": 2}, {"processes": 2, "start_method": "fork"}], ids=str)
@pytest.mark.parametrize("uneven", ["pad", "full", "drop", "allow"])
def test_batches_before_an_error_of_the_iterable_are_handed_out(uneven: Any, ahead: Any) -> None:
    breaks = [True]

    def broken() -> Iterator[int]:
        yield from range(9)
        if breaks:
            raise OSError("broken")
        yield from range(9, 12)

    with ws.Loader(broken, 2, uneven=uneven, rank=1, world_size=2, **ahead) as loader:
        got: list[Any] = []
        for _ in range(2):  # also after the loaded state
            with pytest.raises(OSError, match="broken"):
                got.extend(batch.tolist() for batch in loader)
            assert loader.state_dict()["place"] == 8
            loader.load_state_dict(loader.state_dict())
        assert got == [[2, 3], [6, 7]]
        breaks.clear()
        assert [batch.tolist() for batch in loader] == [[10, 11]]
