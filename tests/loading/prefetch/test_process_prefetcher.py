"""Batches made by worker processes: the same, in order, with errors that arrive, and nobody left behind."""

import os
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.slow import unforked

import warmstore as ws
from warmstore.loading.prefetch import process_prefetcher
from warmstore.loading.prefetch.process_prefetcher import MOST

pytestmark = pytest.mark.forks


class Numbers:
    """Samples that are made by Python code."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, at: int) -> Any:
        if at == 49:
            raise LookupError("sample 49 is broken")
        time.sleep(1e-3)  # faster batches travel several at a time, from one process
        return {"x": np.full((40, 50), at, np.float64), "name": str(at), "raw": bytes([at]), "process": os.getpid()}


@pytest.mark.parametrize("end", ["error", "held"])
def test_nobody_is_left_though_something_holds_the_batches(end: str) -> None:
    before = {child.pid for child in psutil.Process().children()}
    loader = ws.Loader(Numbers(), 8, processes=2)
    batches = iter(loader)
    if end == "held":
        next(batches)
    else:
        with pytest.raises(LookupError, match="sample 49 is broken") as held:
            list(batches)
        assert held.value.__traceback__ is not None
    loader.close()
    assert {child.pid for child in psutil.Process().children()} == before


class Sound(Numbers):
    def __len__(self) -> int:
        return 49


@pytest.mark.parametrize("start_method", ["fork", unforked()])
def test_the_same_batches(start_method: str) -> None:
    with ws.Loader(Sound(), 8, ws.Shuffle(seed=1), processes=2, start_method=start_method, prefetch=3) as loader:
        assert loader.workers == 0
        for _ in range(2):
            here = ws.Loader(Sound(), 8, ws.Shuffle(seed=1), workers=0)
            here.load_state_dict(loader.state_dict())
            seen = set()
            for got, wanted in zip(loader, here, strict=True):
                seen |= set(got.pop("process").tolist())
                wanted.pop("process")
                assert got["x"].flags.writeable
                np.testing.assert_array_equal(got.pop("x"), wanted.pop("x"))
                assert got == wanted
            assert len(seen) == 2
            assert os.getpid() not in seen


def test_batches_leave_as_what_they_are(tmp_path: Path) -> None:
    import torch

    store = ws.RecordStore.create(tmp_path / "store", {"raw": ws.Bytes(), "x": ws.Array("bfloat16", (100, 100))})
    values = np.ones((9, 100, 100), np.float32).astype(store.fields["x"].numpy)
    store.extend({"raw": [b"a"] * 9, "x": values})
    store.flush()
    for to, kind in (("numpy", np.ndarray), ("torch", torch.Tensor)):
        with ws.Loader(store, 4, processes=1, to=to) as loader:
            batches = list(loader)
        assert [type(batch["x"]) for batch in batches] == [kind] * 3
        assert batches[0]["raw"] == [b"a"] * 4
        assert str(batches[0]["x"].dtype).endswith("bfloat16")
    with ws.Loader(np.arange(9), 4, processes=1, transform=lambda batch: torch.from_numpy(batch)) as loader:
        assert [type(batch) for batch in loader] == [torch.Tensor] * 3
    store.close()


@pytest.mark.parametrize("bad", [0, 1, 2, 6])
def test_an_error_whose_class_cannot_be_sent_arrives(bad: int) -> None:
    missing = type(
        "NoSuchKey", (Exception,), {"__init__": lambda error, key, bucket: None}
    )  # as botocore makes its own

    def transform(batch: Any) -> Any:
        if batch[0] == bad:
            raise missing("key", "bucket")
        return batch

    with ws.Loader(np.arange(9), 1, transform=transform, processes=1, start_method="fork") as loader:
        got: list[int] = []
        with pytest.raises(RuntimeError, match="NoSuchKey"):
            got.extend(int(batch[0]) for batch in loader)
        assert got == list(range(bad))
        assert loader.state_dict()["place"] == bad


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_arrive() -> None:
    import torch

    def transform(batch: Any) -> Any:
        return torch.eye(len(batch)).to_sparse()

    with ws.Loader(np.arange(4), 2, transform=transform, processes=1, start_method="fork") as loader:
        assert [batch.to_dense().tolist() for batch in loader] == [[[1, 0], [0, 1]]] * 2


def test_arrays_that_torch_has_no_tensors_of_arrive_as_they_are() -> None:
    def transform(batch: Any) -> Any:
        record = np.zeros(len(batch) * 3000, [("wide", "f8"), ("narrow", "u1")])
        record["wide"] = np.arange(len(record))
        long = batch.astype(np.longdouble) + np.longdouble(1) / 3
        return {"flipped": batch[:, ::-1], "turned": batch.T, "field": record["wide"], "long": long}

    def batches(**workers: Any) -> list[Any]:
        with ws.Loader(np.arange(12000.0).reshape(4, 3000), 2, transform=transform, **workers) as loader:
            return list(loader)

    for batch, expected in zip(batches(processes=1, start_method="fork"), batches(workers=0), strict=True):
        assert batch.keys() == expected.keys()
        for name, values in expected.items():
            assert batch[name].dtype == values.dtype
            assert (batch[name] == values).all()


def test_an_error_arrives_and_the_loader_goes_on() -> None:
    with ws.Loader(Numbers(), 7, processes=2) as loader:
        for _ in range(2):
            with pytest.raises(LookupError, match="sample 49 is broken"):
                list(loader)
            assert loader.state_dict()["place"] == 49
        loader.load_state_dict({**loader.state_dict(), "place": 0})
        assert len(list(islice(loader, 7))) == 7


class Quick(Sound):
    """Batches that are built in less time than a message takes; the last sample is broken."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, at: int) -> Any:
        if at == 390:
            raise LookupError("sample 390 is broken")
        return at, np.full(3000, at % 256, np.uint8)


def test_small_batches_travel_together_and_arrive_one_by_one() -> None:
    sizes = []
    with ws.Loader(Quick(), 4, ws.Sequential(), processes=2) as loader:
        for _ in range(2):
            seen: list[int] = []

            def read(seen: list[int] = seen) -> None:
                for numbers, rows in loader:
                    assert (rows == (numbers % 256)[:, None]).all()
                    seen += numbers.tolist()
                    sizes.append(loader._producer._pool._tasks._size)

            with pytest.raises(LookupError, match="sample 390 is broken") as held:
                read()
            assert seen == list(range(388))  # those before it in its message, too
            assert "__getitem__" in str(held.value)  # the worker's own traceback
            loader.load_state_dict({**loader.state_dict(), "place": 0})
    assert max(sizes) == MOST


def test_batches_are_dealt_to_the_workers_in_turn() -> None:
    """Whatever travels together: a step that has a state gives the same batches in every run."""

    class Makers(Quick):
        def __getitem__(self, at: int) -> Any:
            return os.getpid()

    with ws.Loader(Makers(), 4, ws.Sequential(), processes=3) as loader:
        for _ in range(3):
            makers = [int(batch[0]) for batch in loader]
            assert len(set(makers)) == 3
            assert makers == [makers[at % 3] for at in range(100)]


def test_processes_live_as_long_as_the_loader() -> None:
    before = {child.pid for child in psutil.Process().children()}
    loader = ws.Loader(Sound(), 8, ws.Shuffle(seed=1), processes=(os.cpu_count() or 1) + 1)  # torch advises against it
    assert {child.pid for child in psutil.Process().children()} == before
    first = {pid for batch in loader for pid in batch["process"].tolist()}
    assert len(list(islice(loader, 2))) == 2  # and left in the middle
    rest = list(loader)
    assert len(rest) == 7
    assert {pid for batch in rest for pid in batch["process"].tolist()} == first
    loader.close()
    assert not first & {child.pid for child in psutil.Process().children()}
    with pytest.raises(ws.Closed):
        iter(loader)


def test_an_interrupt_that_leaves_the_lock_of_a_queue_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one at the first instruction of `Condition.__exit__` does. The end of the processes waited for it for ever."""
    monkeypatch.setattr(process_prefetcher, "_MOMENT", 0.2)
    with ws.Loader(Sound(), 2, ws.Sequential(), processes=2) as loader:
        batches = iter(loader)
        next(batches)
        assert loader._producer._pool is not None
        locks = [queue._notempty for queue in loader._producer._pool._loader._iterator._index_queues]
        leave = threading.Condition.__exit__

        def interrupted(self: threading.Condition, *exception: Any) -> None:
            if self not in locks or threading.current_thread() is not threading.main_thread():
                return leave(self, *exception)
            locks.clear()
            raise KeyboardInterrupt

        monkeypatch.setattr(threading.Condition, "__exit__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(batches)
        assert not locks
        assert len(list(loader)) == 25


def test_options_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="processes must be an integer from 0"):
        ws.Loader(Sound(), 8, processes=-1)


def test_values_of_several_types_are_a_list() -> None:
    (batch,) = ws.Loader([1, "a", None, np.ones(2)], 4)
    assert batch[:3] == [1, "a", None]
    (batch,) = ws.Loader([np.ones(2), 3], 2)
    assert batch[1] == 3


class Unsendable(Numbers):
    """Samples that cannot be pickled, from the tenth on."""

    def __getitem__(self, at: int) -> Any:
        return at if at < 10 else {"function": lambda: at}


def test_a_batch_that_cannot_be_sent_is_an_error_and_no_hang() -> None:
    with ws.Loader(Unsendable(), 5, processes=1, start_method="fork") as loader:
        batches = iter(loader)
        assert np.concatenate([next(batches), next(batches)]).tolist() == list(range(10))
        with pytest.raises(Exception, match="pickle"):
            next(batches)
