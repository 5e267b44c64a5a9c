"""Snapshots: batches of any sizes in any number of chunks, seen as they grow."""

import gc
import threading
import weakref
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.faults.seam import Calling
from tests.slow import either

import warmstore as ws
from warmstore.records.read import snapshot as snapshots
from warmstore.storage.memory.address_space import SLOT

NUMBER = {"x": ws.Array("int64")}


def fill(store: ws.RecordStore, sizes: list[int]) -> None:
    for size in sizes:
        first = len(store)
        store.extend({"x": np.arange(first, first + size)})
        store.flush()


@given(sizes=st.lists(st.integers(1, 4) | st.just(3), max_size=12), cuts=st.lists(st.integers(0, 12), max_size=3))
@settings(max_examples=either(20, 40))
def test_batches_of_any_sizes(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], cuts: list[int]) -> None:
    folder = tmp_path_factory.mktemp("s") / "s"
    with ws.RecordStore.create(folder, NUMBER) as store:
        live = ws.RecordStore.open(folder)
        done = 0
        for cut in sorted({*cuts, len(sizes)}):
            fill(store, sizes[done:cut])
            done = max(done, min(cut, len(sizes)))
            live.refresh()
            for one in (store, live, ws.RecordStore.open(folder)):
                assert one[:]["x"].tolist() == list(range(sum(sizes[:done])))
                snapshot = one._snapshot
                rows = np.arange(snapshot.rows)
                expected = np.repeat(np.arange(done), sizes[:done])
                assert snapshot.batch_of(rows).tolist() == expected.tolist()
                equal = len(set(sizes[: max(done - 1, 0)])) <= 1 and (done < 2 or sizes[done - 1] <= sizes[0])
                assert bool(snapshot.span) == equal  # the shorter way is taken exactly where it is right


def test_an_older_snapshot_stays_valid(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", NUMBER)
    fill(store, [3, 3])
    old = store._snapshot
    first_row = old.first_row.copy()
    fill(store, [5] * 200)
    assert old.rows == 6
    assert old.first_row.tolist() == first_row.tolist()
    rows = np.arange(6)
    gathered = store._session.generation.gatherer.gather(old, "x", rows, old.batch_of(rows))
    assert gathered.data is not None
    assert gathered.data.view(np.int64).ravel().tolist() == rows.tolist()


def test_more_chunks_than_the_first_address_space_has_slots(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", NUMBER, chunk_size=1)
    live = ws.RecordStore.open(tmp_path / "s")
    fill(store, [2] * 40)
    live.refresh()
    early = live[:]["x"]
    views = live._session.generation.batches.space.span(0, 8)
    fill(store, [2] * 160)
    assert len(list((tmp_path / "s").rglob("*.arrow"))) == 200
    live.refresh()
    assert live._session.generation.batches.space.slots == 256
    for one in (store, live, ws.RecordStore.open(tmp_path / "s")):
        assert one[:]["x"].tolist() == list(range(400))
    assert early.tolist() == list(range(80))
    assert bytes(views)[:6] == b"ARROW1"  # a view on the smaller space


def test_every_row_is_readable_at_every_moment_of_growth(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", NUMBER, chunk_size=1)
    files = Calling()
    live = ws.RecordStore.open(tmp_path / "s", files=files)
    fill(store, [1] * 64)
    live.refresh()
    assert live[:]["x"].tolist() == list(range(64))
    seen = []

    def look() -> None:
        seen.append(len(live))
        assert live[:]["x"].tolist() == list(range(seen[-1]))

    fill(store, [1] * 3)
    files.check = look
    live.refresh()
    assert len(seen) > 60  # each chunk is mapped again in the larger space
    assert len(live) == 67


def test_a_chunk_that_grows_is_seen_at_the_place_where_it_was_mapped(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("uint8", (1000,))})
    live = ws.RecordStore.open(tmp_path / "s")
    for number in range(30):
        store.extend({"x": np.full((20, 1000), number, np.uint8)})
        store.flush()
        live.refresh()
        assert live[-1]["x"].tolist() == [number] * 1000
        assert live[0]["x"].tolist() == [0] * 1000
    assert len(list((tmp_path / "s").rglob("*.arrow"))) == 1
    assert live._session.generation.batches.space.slots * SLOT == len(live._session.generation.batches.space.memory)


def test_a_thread_that_gathers_while_the_space_grows(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", NUMBER, chunk_size=1)
    fill(store, [1] * 60)
    done = threading.Event()
    wrong = []

    def read() -> None:
        while not done.is_set():
            count = len(store)
            if store[:]["x"].tolist()[:count] != list(range(count)):
                wrong.append(count)

    thread = threading.Thread(target=read)
    thread.start()
    fill(store, [1] * 80)
    done.set()
    thread.join()
    assert not wrong


def test_to_arrow_shares_the_mapped_bytes(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("float32", (3,)), "t": ws.Text()}, chunk_size=600)
    for first in range(0, 12, 4):
        values = np.arange(first * 3, (first + 4) * 3, dtype=np.float32).reshape(4, 3)
        store.extend({"x": values, "t": [str(first)] * 4})
        store.flush()
    table = store.to_arrow()
    assert table.num_rows == 12
    assert table.schema.names == ["x", "t"]
    space = store._session.generation.batches.space
    for column in table.columns:
        assert column.num_chunks == 3
        for chunk in column.chunks:
            for buffer in filter(None, chunk.buffers()):
                assert space.address <= buffer.address < space.address + space.slots * SLOT
    store.close()
    del store, space
    assert table["t"].to_pylist() == ["0"] * 4 + ["4"] * 4 + ["8"] * 4  # the mapping lives as long as the table
    assert np.concatenate([chunk.to_numpy_ndarray() for chunk in table["x"].chunks]).ravel().tolist() == list(range(36))


@pytest.mark.parametrize("mode", ["r", "a"])
def test_mapped_files_go_with_the_store(tmp_path: Path, mode: Literal["r", "a"]) -> None:
    """Without waiting for the garbage collector: mapped pages count as this process's memory."""
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64"), "t": ws.Text()}) as store:
        store.extend({"x": range(10), "t": ["a"] * 10})
    gc.collect()
    gc.disable()
    try:
        with ws.RecordStore.open(tmp_path / "s", mode) as store:
            store.gather(slice(None))
            space = weakref.ref(store._session.generation.batches.space)
        del store
        assert space() is None
    finally:
        gc.enable()


def test_batches_that_all_differ_take_no_memory_for_their_layouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_MOST_LAYOUTS", 3)
    with ws.RecordStore.create(tmp_path / "s", {"t": ws.Text()}) as writer:
        other = ws.RecordStore.open(tmp_path / "s", mode="r")
        lengths = [*range(1, 8), *range(1, 8), 1, 1, 7, 3]
        for number, length in enumerate(lengths):
            writer.extend({"t": ["x" * length]})
            writer.flush()
            if number == 5:
                other.refresh()
    expected = ["x" * length for length in lengths]
    with other, ws.RecordStore.open(tmp_path / "s", mode="r") as later:
        other.refresh()
        for store in (other, later):
            assert store["t"][:] == expected
            assert len(store._session.generation.batches._layouts) <= 3
