"""Records of very different sizes: no batch is larger than a chunk, and no more is read at once than memory holds.

Everything is at 1/1024 of its size: chunks of 1 MiB, batches of 64 KiB.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warmstore as ws
from warmstore.errors import SchemaMismatch
from warmstore.records import local_store, store_session
from warmstore.records.maintenance import filtering, rewrite
from warmstore.records.read import chunk_files, snapshot
from warmstore.records.read.gather import Gatherer
from warmstore.records.write import generation
from warmstore.records.write.chunk_eviction import evict
from warmstore.storage.files import Files
from warmstore.storage.memory.address_space import AddressSpace

CHUNK, BATCH = 1 << 20, 64 << 10
SMALL, LARGE, BYTES = 4000, 60, 25_000  # records, and bytes of each of the large ones
FIELDS = {"label": ws.Array("int64"), "image": ws.Bytes()}


@pytest.fixture(autouse=True)
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each read of values of varying length."""
    for module in (snapshot, chunk_files, generation):
        monkeypatch.setattr(module, "SLOT", CHUNK)
    monkeypatch.setitem(AddressSpace.__init__.__kwdefaults__, "slot", CHUNK)  # type: ignore[misc]
    monkeypatch.setitem(ws.RecordStore.create.__kwdefaults__, "chunk_size", CHUNK)
    for other in (store_session, local_store, rewrite, filtering):
        monkeypatch.setattr(other, "BATCH_BYTES", BATCH)
    seen: list[int] = []
    gather = Gatherer.gather

    def watched(gatherer: Gatherer, *arguments: Any) -> Any:
        gathered = gather(gatherer, *arguments)
        if gathered.spans is not None:
            seen.append(0 if len(gathered.spans) == 1 else int(gathered.spans.lengths.sum()))
        return gathered

    monkeypatch.setattr(Gatherer, "gather", watched)
    return seen


def image(at: int) -> bytes:
    return b"caption" if at < SMALL else bytes([at - SMALL]) * BYTES


def made(path: Path) -> ws.RecordStore:
    """Small records in one batch, then large ones, each in a batch."""
    store = ws.RecordStore.create(path, FIELDS, chunk_size=CHUNK)
    store.extend({"label": np.arange(SMALL), "image": [b"caption"] * SMALL})
    for at in range(SMALL, SMALL + LARGE):
        store.append({"label": at, "image": image(at)})
        store.flush()
    return store


def images(batch: dict[str, Any]) -> list[bytes]:
    return [bytes(value) for value in batch["image"]]


WAYS: dict[str, Callable[[ws.RecordStore], Any]] = {
    "rebalance": lambda store: store.rebalance(progress=False),
    "add a field": lambda store: store.add_field("copy", ws.Bytes(), images, progress=False),
    "map a field": lambda store: store.map_field("image", images, progress=False),
    "map another field": lambda store: store.map_field("label", lambda b: b["label"], progress=False),
    "update": lambda store: store.update(slice(SMALL, None), {"label": np.arange(SMALL, SMALL + LARGE)}),
    "update again": lambda store: store.update([SMALL] * LARGE, {"label": [SMALL] * LARGE}),
    "update all": lambda store: store.update(
        slice(None), {"label": np.arange(len(store)), "image": [image(at) for at in range(len(store))]}
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_batch_is_larger_than_a_chunk(way: str, tmp_path: Path, read: list[int]) -> None:
    with made(tmp_path / "s") as store:
        read.clear()
        WAYS[way](store)
        assert max(read, default=0) <= 4 * BATCH
        bodies = store._session.generation.log.read(0)["body"]
        assert bodies.max() <= 2 * BATCH
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert again.verify(progress=False).ok
        assert again["label"][:].tolist() == list(range(SMALL + LARGE))
        assert again.gather(slice(SMALL - 1, None))["image"] == [image(at) for at in range(SMALL - 1, SMALL + LARGE)]


def test_a_new_field_may_be_larger_than_all_others(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")}, chunk_size=CHUNK) as store:
        store.extend({"x": np.arange(300)})
        store.add_field("y", ws.Array("uint8", (BYTES,)), lambda batch: np.zeros((len(batch["x"]), BYTES), np.uint8))
        assert store._session.generation.log.read(0)["body"].max() <= 2 * BATCH
        assert store.verify(progress=False).ok


def test_evicted_rows_take_no_bytes(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("uint8", (1000,))}, chunk_size=CHUNK) as store:
        for number in range(60):
            store.extend({"x": np.full((900, 1000), number, np.uint8)})
            store.seal()
        chunks = np.unique(store._snapshot.chunk)
        evict(tmp_path / "s", "g0001", chunks[: 57 * len(chunks) // 60].tolist(), Files())
        store.refresh()
        expected = store["x"][:]
        store.rebalance(progress=False)
        assert store.verify(progress=False).ok
        assert np.array_equal(store["x"][:], expected)


@pytest.mark.parametrize("how", ["positions", "function"])
def test_a_filter_reads_no_more_than_memory_holds(how: str, tmp_path: Path, read: list[int]) -> None:
    with made(tmp_path / "s") as store:
        read.clear()
        keep = range(1, SMALL + LARGE) if how == "positions" else lambda batch: batch["label"] > 0
        with store.filter(tmp_path / "t", keep, progress=False) as kept:
            assert kept["label"][:].tolist() == list(range(1, SMALL + LARGE))
        assert max(read) <= 4 * BATCH


def test_a_record_that_no_chunk_can_hold_is_refused_by_all(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", FIELDS, chunk_size=CHUNK) as store:
        store.extend({"label": [0, 1], "image": [b"a", b"b"]})
        with pytest.raises(SchemaMismatch, match="too large for a chunk"):
            store.update(0, {"image": bytes(CHUNK)})
        with pytest.raises(SchemaMismatch, match="too large for a chunk"):
            store.map_field("image", lambda batch: [bytes(CHUNK) for _ in batch["image"]], progress=False)
        store.append({"label": 2, "image": b"c"})
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert again["image"][:] == [b"a", b"b", b"c"]
        assert again.verify(progress=False).ok
