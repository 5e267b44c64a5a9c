"""An interrupt at any place of an operation leaves its object usable: nothing is lost, nothing waits for ever.

A tracing function sends this process a SIGINT at the n-th place of the operation, for many n, as Ctrl-C or a notebook's
interrupt may. The operation is then repeated, with the same object.
"""

import contextlib
import functools
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.compiling.hosts import host, threads_end
from tests.faults.interrupters import MANY, CallInterrupter, Interrupter
from tests.pipeline.making import numbered_files, plan_of
from tests.slow import either, thinned
from torch import nn

import warmstore as ws
from warmstore.records.maintenance.sealing import seal_abandoned
from warmstore.records.read import snapshot
from warmstore.storage import registry
from warmstore.storage.interrupts import uninterrupted

FIELDS = {"x": ws.Array("int64"), "t": ws.Text("zstd")}
INTERRUPTS = either(10, 200)
"""Places of an operation that are interrupted, about."""


def rows(first: int, last: int) -> dict[str, Any]:
    return {"x": np.arange(first, last), "t": [str(at) for at in range(first, last)]}


def made(path: Path) -> ws.RecordStore:
    """A store of five records, and two that are pending."""
    store = ws.RecordStore.create(path, FIELDS)
    store.extend(rows(0, 5))
    store.flush()
    store.extend(rows(5, 7))
    return store


def check(path: Path, expected: list[int]) -> None:
    with ws.RecordStore.open(path) as store:
        assert store["x"][:].tolist() == expected
        assert store["t"][:] == [str(at) for at in expected]
        assert not store.verify(progress=False).problems


def flush(interrupter: Interrupter, path: Path) -> None:
    store = made(path)
    interrupter.interrupt(store.flush)
    assert store["x"][:].tolist() == list(range(7))
    store.extend(rows(7, 8))
    store.close()
    check(path, list(range(8)))


def extend(interrupter: Interrupter, path: Path) -> None:
    store = made(path)
    interrupter.interrupt(lambda: store.extend(rows(7, 9)))
    found = store["x"][:].tolist()
    assert found in (list(range(7)), list(range(9)))
    store.extend(rows(9, 12))
    store.close()
    check(path, [*found, 9, 10, 11])


def update(interrupter: Interrupter, path: Path) -> None:
    store, new = made(path), {"x": [10, 60], "t": ["10", "60"]}
    interrupter.interrupt(lambda: store.update([1, 6], new))
    assert store["x"][:].tolist() in (list(range(7)), [0, 10, 2, 3, 4, 5, 60])
    store.update([1, 6], new)
    store.close()
    check(path, [0, 10, 2, 3, 4, 5, 60])


def delete(interrupter: Interrupter, path: Path) -> None:
    store = made(path)
    interrupter.interrupt(lambda: store.delete([1]))
    found = store["x"][:].tolist()
    assert found in (list(range(7)), [0, 6, 2, 3, 4, 5])
    store.delete([len(found) - 1])
    store.close()
    check(path, found[:-1])


def close(interrupter: Interrupter, path: Path) -> None:
    store = made(path)
    interrupter.interrupt(store.close)
    store.close()
    check(path, list(range(7)))


def rebalance(interrupter: Interrupter, path: Path) -> None:
    store = made(path)
    store.delete([0])
    expected = store["x"][:].tolist()
    interrupter.interrupt(lambda: store.rebalance(progress=False))
    assert store["x"][:].tolist() == expected
    store.rebalance(progress=False)
    store.close()
    check(path, expected)


def refresh(interrupter: Interrupter, path: Path, mode: Literal["r", "a"], *, edited: bool, others: str) -> None:
    """What others have appended and edited, and the generation that they have begun. `edited`: some edits are known."""
    full = path.parent / "full"
    if not full.exists():
        with ws.RecordStore.create(full, FIELDS) as new:
            for at in range(62):  # there is room for two more batches
                new.extend(rows(at, at + 1))
                new.flush()
    shutil.copytree(full, path)
    other = ws.RecordStore.open(path, "a")
    if edited:
        other.update([1], {"x": [61], "t": ["61"]})
    store = ws.RecordStore.open(path, mode)

    def change() -> None:
        first = int(other["x"][:].max()) + 1
        other.extend(rows(first, first + 3))
        other.flush()
        other.update([2, 5], {"x": [first + 3, first + 4], "t": [str(first + 3), str(first + 4)]})
        other.delete([0, 3])
        other.extend(rows(first + 5, first + 6))
        other.flush()

    change()
    if others == "rebalance":
        other.rebalance(progress=False)
    interrupter.interrupt(store.refresh)
    for _ in range(2):
        store.refresh()
        assert store["x"][:].tolist() == other["x"][:].tolist()
        change()
    expected = other["x"][:].tolist()
    other.close()
    if mode == "a":
        store.rebalance(progress=False)
        check(path, expected)
    store.close()


def seal(interrupter: Interrupter, path: Path) -> None:
    """A writer has ended without a footer for its chunk."""
    made(path).close(seal=False)
    with ws.RecordStore.open(path, "a") as store:
        interrupter.interrupt(lambda: seal_abandoned(store))
        seal_abandoned(store)
    check(path, list(range(7)))
    with ws.RecordStore.open(path, "a") as store:
        assert not seal_abandoned(store).sealed


def put(interrupter: Interrupter, path: Path, **options: Any) -> None:
    def values(first: int, last: int) -> Any:
        return np.arange(first, last, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)

    def store() -> None:
        cache.put_batch([3, 4], values(3, 5))
        cache.flush()

    with ws.FeatureCache(path, "c", flush_every=4, **options) as cache:
        cache.put_batch([0, 1, 2], values(0, 3))
        interrupter.interrupt(store)
        for at in range(3):
            found, missing = cache.get_batch([at])
            assert not len(missing)
            assert found[0, 0] == at
        cache.put_batch([3, 4, 5], values(3, 6))
        cache.flush()
        assert not cache.stats().pending
    with ws.FeatureCache(path, "c") as cache:
        found, missing = cache.get_batch(list(range(6)))
        assert not len(missing)
        assert found[:, 0].tolist() == list(range(6))


def module(interrupter: Interrupter, path: Path) -> None:
    x = torch.arange(6.0)[:, None]
    with ws.FeatureCache(path, "c", async_write=False, flush_every=4) as cache:
        features = ws.CachedModule(nn.Identity(), cache)
        features(x[:3], cache_ids=[0, 1, 2])
        interrupter.interrupt(lambda: features(x[1:5], cache_ids=[1, 2, 3, 4]))
        for _ in range(2):
            assert torch.equal(features(x, cache_ids=list(range(6))), x)


def epoch(interrupter: Interrupter, path: Path, workers: int) -> None:
    with ws.Loader(np.arange(12), 3, ws.Shuffle(seed=0), transform=lambda batch: batch, workers=workers) as loader:
        interrupter.interrupt(lambda: list(loader))
        assert sorted(np.concatenate(list(loader)).tolist()) == list(range(12))
    for thread in threading.enumerate():
        if "warmstore-loader" in thread.name:
            thread.join(60)  # an interrupt amid the end leaves it to the collector, and nobody waits
            assert not thread.is_alive()


def rank(interrupter: Interrupter, path: Path, *, is_drawn: bool) -> None:
    """A loader or a batch sampler looks up its rank, which it has from now on."""
    with ws.Loader(np.arange(12), 3, ws.Sequential()) as loader, pytest.MonkeyPatch.context() as patch:
        batches: Any = ws.BatchSampler(12, 3, ws.Sequential()) if is_drawn else loader
        patch.setenv("RANK", "1")
        patch.setenv("WORLD_SIZE", "2")
        interrupter.interrupt(lambda: next(iter(batches)))
        assert [np.asarray(batch).tolist() for batch in batches] == [[3, 4, 5], [9, 10, 11]]


def replaced(interrupter: Interrupter, path: Path) -> None:
    """A pipeline sees that files were replaced."""
    path.mkdir()
    paths = numbered_files(path / "files", 4, 1)
    pipe = ws.Pipeline(paths).step(first_byte)
    plan = plan_of(pipe, [(1, "disk", "raw")], [4], folder=path / "plan")
    with pipe.loader(plan, 2, workers=0, sampler=ws.Sequential()) as loader:
        for _ in range(2):
            assert np.concatenate(list(loader)).tolist() == [0, 1, 2, 3]
        for number, file in enumerate(paths):
            file.write_bytes(bytes([10 + number]))
            os.utime(file, (number, number + 0.5))
        interrupter.interrupt(lambda: next(iter(loader)))
        for _ in range(2):
            assert np.concatenate(list(loader)).tolist() == [10, 11, 12, 13]
    with pipe.loader(plan, 2, workers=0, sampler=ws.Sequential()) as loader:
        assert np.concatenate(list(loader)).tolist() == [10, 11, 12, 13]


def tiers(interrupter: Interrupter, path: Path, workers: int) -> None:
    """Epochs of a pipeline that fill a tier on the disk and one in memory, and then read them."""
    path.mkdir()
    pipe = ws.Pipeline(numbered_files(path / "files", 6, 1)).step(first_byte).step(np.square)
    plan = plan_of(pipe, [(1, "disk", "raw"), (2, "memory", "raw")], [2, 2], folder=path / "plan", workers=workers)
    with pipe.loader(plan, 2, workers=workers, sampler=ws.Sequential()) as loader:
        interrupter.interrupt(lambda: [*loader, *loader])
        for _ in range(2):
            assert np.concatenate(list(loader)).tolist() == [0, 1, 4, 9, 16, 25]
    with pipe.loader(plan, 2, workers=workers, sampler=ws.Sequential()) as loader:
        assert np.concatenate(list(loader)).tolist() == [0, 1, 4, 9, 16, 25]


def first_byte(path: Path) -> Any:
    return np.frombuffer(path.read_bytes(), np.uint8)[0]


def spread(interrupter: Interrupter, path: Path) -> None:
    """Values that threads compress, and decompress."""
    texts = [str(at) * 4000 for at in range(40)]
    with ws.RecordStore.create(path, {"t": ws.Text("zstd")}, writer_threads=2) as store:

        def write() -> list[str]:
            store.extend({"t": texts})
            store.flush()
            return list(store["t"][:])

        interrupter.interrupt(write)
        before = len(store)
        assert before in (0, len(texts))
        assert write() == texts * (1 + before // len(texts))


def lookup(interrupter: Interrupter, path: Path) -> None:
    values = np.arange(20, dtype=np.float32)[:, None]
    with ws.FeatureCache(path, "c", hot_size=1 << 20) as cache:
        cache.put_batch(list(range(20)), values)
        cache.flush()
        interrupter.interrupt(lambda: cache.get_batch([3, 30, 5, 4]))
        for _ in range(2):
            found, missing = cache.get_batch([3, 30, 5, 4])
            assert [*missing] == [1]
            assert found[:, 0].tolist() == [3, 5, 4]


def fill(interrupter: Interrupter, path: Path) -> None:
    with ws.FeatureCache(path, "c") as cache:
        features = ws.CachedModule(nn.Identity(), cache)
        batches = [(torch.arange(2.0)[:, None] + at, [at, at + 1]) for at in (0, 2, 4)]

        def work() -> None:
            for batch, ids in batches:
                features(batch, cache_ids=ids)
            del cache[0]
            cache.flush()

        interrupter.interrupt(work)
        work()
        found, missing = cache.get_batch(list(range(6)))
        assert [*missing] == [0]
        assert found[:, 0].tolist() == [1, 2, 3, 4, 5]


def full(interrupter: Interrupter, path: Path) -> None:
    """A cache that evicts, beside another handle of it."""

    def values(ids: list[int]) -> Any:
        return np.repeat(np.array(ids, np.float32)[:, None], 512, axis=1)

    def put(first: int) -> list[int]:
        ids = list(range(first, first + 400))
        cache.put_batch(ids, values(ids))
        cache.flush()
        return ids

    with ws.FeatureCache(path, "c", max_size=5_000_000) as cache, ws.FeatureCache(path, "c") as other:
        for first in range(0, 2000, 400):
            put(first)
        interrupter.interrupt(lambda: put(2000))
        for holder in (cache, other):
            ids = put(2400)
            found, missing = holder.get_batch(ids)
            assert not len(missing)
            assert np.array_equal(found, values(ids))
        found, missing = cache.get_batch(list(range(2400)))
        there = np.delete(np.arange(2400), missing)
        assert np.array_equal(found, values([*there]))
        assert not cache.stats().pending


def double(value: int) -> list[int]:
    return [2 * value]


def results(interrupter: Interrupter, path: Path) -> None:
    function = ws.cached(path)(double)
    function(1)
    interrupter.interrupt(lambda: [function(2), function(1), function(3)])
    for _ in range(2):
        assert [function(at) for at in (1, 2, 3)] == [[2], [4], [6]]


def remote(interrupter: Interrupter, path: Path) -> None:
    """A push, and a pull by another host."""
    store = made(path)
    store.flush()
    interrupter.interrupt(lambda: store.push(str(path) + "-remote", progress=False))
    store.push(str(path) + "-remote", progress=False)
    store.close()
    place = path.with_name(path.name + "-copy")

    def copy() -> None:
        if not place.exists():
            ws.RecordStore.clone(str(path) + "-remote", place, progress=False).close()
        with ws.RecordStore.open(place, "a") as other:
            other.pull(str(path) + "-remote", progress=False)

    interrupter.interrupt(copy)
    copy()
    check(place, list(range(7)))


def artifacts(interrupter: Interrupter, path: Path) -> None:
    """Two hosts share what they compile."""

    def use(name: str, numbers: range) -> None:
        with host(path / name, path / "remote") as one:
            for number in numbers:
                if not one.has(number):
                    one.make(number)

    with threads_end("warmstore-remote"):
        interrupter.interrupt(lambda: use("first", range(3)))
        use("first", range(3))
        interrupter.interrupt(lambda: use("second", range(2)))
        use("second", range(4))
        with host(path / "second", path / "remote") as one:
            assert all(one.has(number) for number in range(4))


OPERATIONS: dict[str, Callable[[Interrupter, Path], None]] = {
    "flush": flush,
    "extend": extend,
    "update": update,
    "delete": delete,
    "close": close,
    "rebalance": rebalance,
    "seal": seal,
    "put": functools.partial(put, async_write=False),
    "put in the background": put,
    "module": module,
    "epoch": functools.partial(epoch, workers=0),
    "epoch with threads": functools.partial(epoch, workers=2),
    "refresh edits": functools.partial(refresh, mode="a", edited=False, others="edit"),
    "refresh further edits": functools.partial(refresh, mode="r", edited=True, others="edit"),
    "refresh a generation": functools.partial(refresh, mode="a", edited=False, others="rebalance"),
    "rank of a loader": functools.partial(rank, is_drawn=False),
    "rank of a batch sampler": functools.partial(rank, is_drawn=True),
    "replaced files": replaced,
    "tiers": functools.partial(tiers, workers=0),
    "tiers with processes": functools.partial(tiers, workers=2),
    "values in threads": spread,
    "lookup": lookup,
    "fill": fill,
    "full": full,
    "results": results,
    "remote": remote,
    "artifacts": artifacts,
}
FORKING = {"tiers with processes"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize(
    "kind", [Interrupter, functools.partial(CallInterrupter, contexts=False)], ids=["lines", "calls"]
)
@pytest.mark.parametrize(
    "name", thinned(4, [pytest.param(each, marks=[pytest.mark.forks] * (each in FORKING)) for each in OPERATIONS])
)
def test_an_operation_can_be_repeated(
    name: str, kind: Callable[[int], Interrupter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_SWEPT", 0)  # now and then an operation would go through all that other tests made
    OPERATIONS[name](kind(MANY), tmp_path / "first")  # what a process does once is no part of it
    whole = kind(MANY)
    OPERATIONS[name](whole, tmp_path / "whole")
    places, come = MANY - whole.left, 0
    for place in range(places % 7, places, max(places // INTERRUPTS, 1)):
        interrupter = kind(place)
        OPERATIONS[name](interrupter, tmp_path / str(place))
        come += interrupter.has_come
    assert come >= min(INTERRUPTS, places) // 2


@pytest.mark.parametrize("edited", thinned(2, [False, True]))
def test_entries_count_once_after_an_interrupt_at_any_line_that_reads_them(edited: bool, tmp_path: Path) -> None:
    interrupter, line = Interrupter(0, snapshot.__file__), 0
    while not line or interrupter.has_come:
        interrupter = Interrupter(line, snapshot.__file__)
        refresh(interrupter, tmp_path / str(line), "r", edited=edited, others="edit")
        line += 1
    assert line > 50


class TestUninterrupted:
    """The context manager itself."""

    def test_an_interrupt_waits_for_the_end(self) -> None:
        assert self.count(1, uninterrupted()) == 9
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    def test_the_third_comes_at_once(self) -> None:
        assert self.count(3, uninterrupted()) == 2

    def test_the_outer_one_counts(self) -> None:
        with pytest.raises(KeyboardInterrupt), uninterrupted():
            assert self.count(1, uninterrupted(), raises=False) == 9

    def count(self, interrupts: int, section: uninterrupted, *, raises: bool = True) -> int:
        """How many of nine steps are done, of which the first ones are interrupted."""
        done = 0

        def steps() -> None:
            nonlocal done
            with section:
                for at in range(9):
                    if at < interrupts:
                        signal.raise_signal(signal.SIGINT)
                    done += 1

        with pytest.raises(KeyboardInterrupt) if raises else contextlib.nullcontext():
            steps()
        return done

    def test_a_handler_of_the_program_is_called_and_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        called: list[int] = []

        def handle(number: int, frame: Any) -> None:
            called.append(number)

        before = signal.signal(signal.SIGINT, handle)
        try:
            with uninterrupted():
                signal.raise_signal(signal.SIGINT)
                assert not called
            assert called == [signal.SIGINT]
            assert signal.getsignal(signal.SIGINT) is handle
        finally:
            signal.signal(signal.SIGINT, before)

    def test_a_handler_that_is_set_inside_stays_and_calls_the_one_before(self) -> None:
        """As torch's, when its first DataLoader starts workers."""
        called: list[str] = []
        before = signal.signal(signal.SIGCHLD, lambda number, frame: called.append("outer"))
        try:
            with uninterrupted():
                older = signal.getsignal(signal.SIGCHLD)
                assert callable(older)

                def handle(number: int, frame: Any) -> None:
                    called.append("inner")
                    older(number, frame)

                signal.signal(signal.SIGCHLD, handle)
                signal.raise_signal(signal.SIGCHLD)
                assert called == ["inner"]
            assert called == ["inner", "outer"]
            signal.raise_signal(signal.SIGCHLD)
            assert called == ["inner", "outer"] * 2
        finally:
            signal.signal(signal.SIGCHLD, before)

    def test_it_may_be_used_in_any_thread(self) -> None:
        done = []

        def work() -> None:
            with uninterrupted():
                done.append(1)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert done
