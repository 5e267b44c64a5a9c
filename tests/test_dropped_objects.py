"""What is dropped is gone at once, without Python's collector of cycles: many trainers switch it off.

A cycle would keep files open and mapped, and with them the disk space of files that were replaced, until a collection.
"""

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import warmstore as ws
from warmstore.errors import NotInstalled, WarmstoreError
from warmstore.extras import stand_in
from warmstore.remote.limits import RequestLimits
from warmstore.remote.objects import Objects

FIELDS: dict[str, Any] = {"number": ws.Array("int64"), "points": ws.Ragged("float32", ndim=2), "text": ws.Text()}


def columns(numbers: range) -> dict[str, Any]:
    points = [np.full((number % 3, 2), number, np.float32) for number in numbers]
    return {"number": list(numbers), "points": points, "text": ["é" * (number % 4) for number in numbers]}


def store_of(folder: Path) -> Path:
    with ws.RecordStore.create(folder / "store", FIELDS) as store:
        store.extend(columns(range(200)))
    return folder / "store"


def held(folder: Path) -> list[str]:
    """Files below a folder that this process has open or mapped."""
    opened = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            opened.append(f"open: {descriptor.readlink()}")
        except OSError:  # the one that lists them
            continue
    mapped = [
        f"mapped: {line.split(None, 5)[5]}" for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line
    ]
    return [what for what in (*opened, *mapped) if str(folder) in what]


def opened_and_dropped(folder: Path) -> None:
    store = ws.RecordStore.open(store_of(folder))
    store.gather([5, 1])
    assert len(store.with_format("torch")[:]["number"]) == len(store.to_arrow()) == 200


def beside_rebalances(folder: Path) -> None:
    path = store_of(folder)
    reader = ws.RecordStore.open(path)
    for first in range(1000, 1100, 20):
        with ws.RecordStore.open(path, "a") as writer:
            writer.extend(columns(range(first, first + 20)))
            writer.delete([0, 1])
            writer.rebalance(progress=False)
        reader.refresh()
        assert len(reader[:]["number"]) == len(reader)


def a_cache_that_is_rebalanced(folder: Path) -> None:
    """Each time both get another key index."""
    with ws.FeatureCache(folder, "c") as one, ws.FeatureCache(folder, "c") as two:
        for turn in range(5):
            ids = np.arange(200) + 200 * turn
            one.put_batch(ids, torch.full((200, 8), float(turn)))
            one.rebalance(progress=False)
            found, missing = two.get_batch(ids)
            assert not len(missing)
            assert torch.equal(torch.as_tensor(found), torch.full((200, 8), float(turn)))
        assert len([what for what in held(folder) if ".direct" in what]) <= 4  # each has one open, and mapped


def a_module(folder: Path) -> None:
    images = torch.rand(64, 8)
    with ws.FeatureCache(folder, "m") as cache:
        features = ws.CachedModule(torch.nn.Linear(8, 8).requires_grad_(False), cache)
        for _ in range(3):
            for ids in torch.randperm(64).split(16):
                features(images[ids], cache_ids=ids)


def a_loader_that_is_left(folder: Path) -> None:
    for workers in (0, 2):
        loader = ws.Loader(ws.RecordStore.open(folder / "store" if workers else store_of(folder)), 16, workers=workers)
        for _ in range(2):
            assert len([*loader]) == 13
        next(iter(loader))


def a_remote_that_is_read(folder: Path) -> None:
    url = (folder / "remote").as_uri()
    with ws.RecordStore.open(store_of(folder)) as store:
        store.push(url, progress=False)
    with ws.RecordStore.clone(url, folder / "clone", progress=False) as clone:
        assert len(clone[:]["number"]) == 200
    with ws.RecordStore.open(url, cache_dir=folder / "blocks") as remote:
        assert remote.gather([7])["number"].tolist() == [7]


@pytest.fixture
def collector() -> Iterator[None]:
    """Off."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="tells what is mapped by /proc")
@pytest.mark.parametrize(
    "use",
    [
        opened_and_dropped,
        beside_rebalances,
        a_cache_that_is_rebalanced,
        a_module,
        a_loader_that_is_left,
        a_remote_that_is_read,
    ],
)
def test_no_file_stays_open_or_mapped(use: Callable[[Path], None], tmp_path: Path, collector: None) -> None:
    use(tmp_path)
    assert not held(tmp_path)


class Batch:
    """Something large of the caller's."""


def no_store(folder: Path) -> None:
    ws.RecordStore.open(folder)


def no_package(folder: Path) -> None:
    missing: Any = stand_in("Dali", ModuleNotFoundError("No module named 'nvidia'", name="nvidia"))
    for _ in range(2):
        with pytest.raises(NotInstalled):
            missing()
    missing()


def a_remote_that_does_not_answer(folder: Path) -> None:
    with Objects("http://127.0.0.1:9/nobody", limits=RequestLimits(retries=0)) as remote:
        remote.get("anything")


class Broken:
    """Samples that cannot be read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> Any:
        raise OSError(f"file {at} is truncated")


def a_bad_sample(folder: Path) -> None:
    [*ws.Loader(Broken(), 4)]


def a_bad_sample_in_a_thread(folder: Path) -> None:
    [*ws.Loader(Broken(), 4, workers=2)]


def a_loader_that_was_closed(folder: Path) -> None:
    loader = ws.Loader(range(8), 4)
    batches = iter(loader)
    next(batches)
    loader.close()
    next(batches)


def a_skipped_sample(folder: Path) -> None:
    def decode(number: int) -> int:
        raise ws.SampleSkipped(f"sample {number}")

    ws.Pipeline(range(8)).step(decode).dataset()[3]


def many_requests_that_fail(folder: Path) -> None:
    with Objects("http://127.0.0.1:9/nobody", limits=RequestLimits(retries=0)) as remote:
        remote.delete(["one", "two"])


def a_push_of_a_damaged_chunk(folder: Path) -> None:
    path = store_of(folder)
    (chunk,) = path.rglob("*.arrow")
    os.truncate(chunk, chunk.stat().st_size // 2)
    with ws.RecordStore.open(path) as store:
        store.push((folder / "remote").as_uri(), progress=False)


def a_clone_of_a_damaged_remote(folder: Path) -> None:
    with ws.RecordStore.open(store_of(folder)) as store:
        store.push((folder / "remote").as_uri(), progress=False)
    (head,) = (path for path in (folder / "remote" / "heads").rglob("*") if path.is_file())
    os.truncate(head, 100)
    ws.RecordStore.clone((folder / "remote").as_uri(), folder / "clone", progress=False)


@pytest.mark.parametrize(
    "fail",
    [
        no_store,
        no_package,
        a_remote_that_does_not_answer,
        a_bad_sample,
        a_bad_sample_in_a_thread,
        a_loader_that_was_closed,
        a_skipped_sample,
        many_requests_that_fail,
        a_push_of_a_damaged_chunk,
        a_clone_of_a_damaged_remote,
    ],
)
def test_an_error_does_not_keep_what_its_callers_hold(
    fail: Callable[[Path], None], tmp_path: Path, collector: None
) -> None:
    """A trainer that tries again, or goes on without, has not the batch of each try in memory."""

    def attempt() -> weakref.ref[Batch]:
        batch = Batch()
        try:
            fail(tmp_path)
        except (WarmstoreError, OSError):
            return weakref.ref(batch)
        raise AssertionError

    assert attempt()() is None
