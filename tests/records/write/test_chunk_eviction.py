"""Evicting chunks: other rows stay where they are, who has a chunk mapped reads on, nothing is ever another row."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.children import FIELDS, check, columns, record, same
from tests.faults.stories import Hasty

import warmstore as ws
from warmstore.errors import ReadOnly
from warmstore.records.format.manifest import read_manifest, write_manifest
from warmstore.records.maintenance.chunk_states import chunk_states
from warmstore.records.write.chunk_eviction import evict
from warmstore.records.write.upgrade import upgrade
from warmstore.storage.files import Files

FILES = Hasty()


def made(path: Path, chunks: int = 4) -> Path:
    """A store of chunks of three records each."""
    ws.RecordStore.create(path, FIELDS, files=FILES).close()
    for chunk in range(chunks):
        with ws.RecordStore.open(path, "a", files=FILES) as store:
            store.extend(columns(range(3 * chunk, 3 * chunk + 3)))
    assert upgrade(path, FILES, wait=True)
    return path


def test_the_rows_of_evicted_chunks_are_gone_and_all_others_are_there(tmp_path: Path) -> None:
    path = made(tmp_path / "s")
    live = ws.RecordStore.open(path)
    check(live, range(12))
    held = live["blob"][4]
    before = bytes(held)
    evict(path, "g0001", [1], FILES)
    assert not (path / "g0001/000001.arrow").exists()
    check(live, range(12))  # it has not looked: what it mapped is still right
    live.refresh()
    left = [0, 1, 2, 6, 7, 8, 9, 10, 11]
    for store in (live, ws.RecordStore.open(path)):
        check(store, left)
        assert store.to_arrow().num_rows == 9
        assert store.verify().ok
        assert store._snapshot.rows == 12
    assert bytes(held) == before
    evict(path, "g0001", [0, 2, 3], FILES)
    live.refresh()
    assert len(live) == 0
    assert live[:]["number"].tolist() == []
    assert [state.name for state in chunk_states(path)] == []


def test_steady_reading_survives_evictions(tmp_path: Path) -> None:
    """Rows read until nothing is left to check, which takes another path, also by numbers that are gone by then."""
    path = made(tmp_path / "s")
    store = ws.RecordStore.open(path)
    for chunk in (0, 2):
        evict(path, "g0001", [chunk], FILES)
        store.refresh()
        for _ in range(20):
            check(store, [number for number in range(12) if number // 3 not in (0, 2)[: 1 + chunk // 2]])
    rows = np.arange(12)
    column = store._gatherer.column("number")
    assert column is not None
    assert column.read(np.array([3, 9, 4])) is not None
    assert column.read(np.array([3, 9, 12])) is None
    (gathered,) = store._gatherer.read_rows(["number"], rows)
    assert gathered.bad is not None
    assert gathered.bad.tolist() == [row // 3 in (0, 2) for row in rows.tolist()]
    (gathered,) = store._gatherer.read_rows(["points"], rows[:3])
    assert gathered.bad is not None
    assert gathered.bad.all()


def test_writers_go_on_after_their_chunk_was_evicted(tmp_path: Path) -> None:
    path = made(tmp_path / "s", 1)
    store = ws.RecordStore.open(path, "a", files=FILES)
    store.extend(columns(range(3, 6)))
    store.flush()
    evict(path, "g0001", [0, 1], FILES)
    store.refresh()
    store.extend(columns(range(6, 9)))
    store.flush()
    for one in (store, ws.RecordStore.open(path)):
        check(one, range(6, 9))
    assert [file.name for file in (path / "g0001").glob("*.arrow")] == ["000002.arrow"]
    # Nor does one that has not looked and has no chunk take the number of one that is gone.
    late = ws.RecordStore.open(path, "a", files=FILES)
    evict(path, "g0001", [2], FILES)
    late.extend(columns(range(9, 12)))
    late.close()
    store.refresh()
    check(store, range(9, 12))
    # One that has not looked loses what it adds to the evicted chunk, and nothing else.
    store.extend(columns(range(12, 15)))
    store.flush()
    evict(path, "g0001", [3, 4], FILES)
    store.extend(columns(range(15, 18)))
    store.flush()
    assert len(store) == 0
    store.extend(columns(range(18, 21)))
    store.close()
    check(ws.RecordStore.open(path), range(18, 21))


def test_a_reader_that_comes_between_the_log_and_the_chunk(tmp_path: Path) -> None:
    """It reads a log without the eviction and finds the file gone: it reads the log again and calls nothing damage."""
    path = made(tmp_path / "s")

    class Late(Hasty):
        def open(self, path: Path | str, **options: Any) -> int:
            file = Path(path)
            if file.name == "000001.arrow" and file.exists():
                evict(file.parent.parent, "g0001", [1], FILES)
            return super().open(path, **options)

    check(ws.RecordStore.open(path, files=Late()), [0, 1, 2, 6, 7, 8, 9, 10, 11])
    path = made(tmp_path / "other", 1)
    store = ws.RecordStore.open(path, files=Late())
    with ws.RecordStore.open(path, "a", files=FILES) as writer:
        writer.extend(columns(range(3, 6)))
    store.refresh()
    check(store, range(3))
    assert store.verify().ok


def test_a_rebalance_leaves_the_gaps_out(tmp_path: Path) -> None:
    path = made(tmp_path / "s")
    evict(path, "g0001", [0, 2], FILES)
    with ws.RecordStore.open(path, "a", files=FILES) as store:
        with pytest.raises(ReadOnly, match="rebalance"):
            store.update(0, record(1))
        with pytest.raises(ReadOnly, match="rebalance"):
            store.delete(0)
        done = store.rebalance(progress=False)
        assert (done.records, done.rows_before) == (6, 12)
        check(store, [3, 4, 5, 9, 10, 11])
        assert store._snapshot.gaps is None
        store.delete(0)
        store.extend(columns([20]))
    check(ws.RecordStore.open(path), [11, 4, 5, 9, 10, 20])
    evict(path, "g0001", [0], FILES)  # of a generation that has ended: nothing happens
    check(ws.RecordStore.open(path), [11, 4, 5, 9, 10, 20])


def test_rows_evicted_while_a_rebalance_copies_are_gone_or_there(tmp_path: Path) -> None:
    path = made(tmp_path / "s")

    class Evicting(Files):
        def make_folder(self, folder: Path) -> None:
            super().make_folder(folder)
            evict(path, "g0001", [3], FILES)

    with ws.RecordStore.open(path, "a", files=Evicting()) as store:
        other = ws.RecordStore.open(path, "a", files=FILES)
        other.extend(columns(range(12, 15)))
        other.flush()
        store.rebalance(progress=False)
        numbers = store["number"][:].tolist()
        assert set(range(9)) | set(range(12, 15)) <= set(numbers) <= set(range(15))
        check(store, numbers)


def test_stores_of_earlier_formats_are_upgraded_first(tmp_path: Path) -> None:
    path = made(tmp_path / "s")
    manifest = read_manifest(path, FILES)
    write_manifest(path, replace(manifest, format=1), FILES)
    with pytest.raises(ReadOnly, match="format 1"):
        evict(path, "g0001", [0], FILES)
    assert upgrade(path, FILES, wait=True)
    evict(path, "g0001", [0], FILES)
    check(ws.RecordStore.open(path), range(3, 12))


def test_a_leftover_of_a_killed_eviction_is_removed_by_the_next(tmp_path: Path) -> None:
    path = made(tmp_path / "s")

    class Dying(Hasty):
        def remove(self, path: Path) -> None:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        evict(path, "g0001", [1], Dying())
    assert (path / "g0001/000001.arrow").exists()
    left = [0, 1, 2, 6, 7, 8, 9, 10, 11]
    check(ws.RecordStore.open(path), left)
    entries = (path / "g0001/log").stat().st_size
    evict(path, "g0001", [1], FILES)
    assert not (path / "g0001/000001.arrow").exists()
    assert (path / "g0001/log").stat().st_size == entries
    store = ws.RecordStore.open(path)
    assert all(same(store["blob"][at], record(number)["blob"]) for at, number in enumerate(left))
