"""Stores that several have open: edits and rewrites by one who did not look, and looks while another rewrites."""

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.seam import Calling, Refusing

import warmstore as ws
from warmstore.errors import PositionError, SchemaMismatch, WriteFailed
from warmstore.records.format.chunk_names import chunk_bytes, chunk_path
from warmstore.records.write.generation import Generation
from warmstore.records.write.write_buffer import block_of

X = {"x": ws.Array("int64")}


class Countdown:
    """Rebalances a store when it is called for the n-th time, counted from 0."""

    def __init__(self, left: int, store: ws.RecordStore) -> None:
        self.left = left
        self.store = store

    def __call__(self) -> None:
        self.left -= 1
        if self.left == -1:
            self.store.rebalance()


def test_a_stale_edit_is_refused_also_after_a_rebalance(tmp_path: Path) -> None:
    one = ws.RecordStore.create(tmp_path / "s", X)
    one.extend({"x": range(10)})
    one.flush()
    other = ws.RecordStore.open(tmp_path / "s", "a")
    one.delete(0)
    one.rebalance()
    with pytest.raises(PositionError, match="find the position again"):
        other.delete(0)  # it is record 9 now
    assert sorted(one["x"][:]) == list(range(1, 10))


def test_no_positions_are_never_stale(tmp_path: Path) -> None:
    one = ws.RecordStore.create(tmp_path / "s", X)
    one.extend({"x": range(10)})
    one.flush()
    other = ws.RecordStore.open(tmp_path / "s", "a")
    one.delete(0)
    other.delete([])
    assert len(other) == 9


def test_a_rebalance_keeps_fields_that_others_added(tmp_path: Path) -> None:
    one = ws.RecordStore.create(tmp_path / "s", X)
    other = ws.RecordStore.open(tmp_path / "s", "a")
    one.append({"x": 1})
    one.add_field("y", ws.Array("int64"), [2])
    other.rebalance()
    assert ws.RecordStore.open(tmp_path / "s")[0] == {"x": 1, "y": 2}


def test_a_chunk_that_a_rebalance_closed_needs_no_footer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = ws.RecordStore.create(tmp_path / "s", X, chunk_size=1)
    one.append({"x": 1})
    one.flush()
    ws.RecordStore.open(tmp_path / "s", "a").rebalance()
    one.append({"x": 2})
    one.flush()
    assert not caplog.messages


def test_positions_of_rows_that_a_failing_disk_took_back(tmp_path: Path) -> None:
    class Slow(Refusing):
        def before(self, name: str) -> None:
            if self.at == 0:
                two.refresh()
            super().before(name)

    files = Slow()
    one = ws.RecordStore.create(tmp_path / "s", X, files=files)
    one.extend({"x": [0, 1]})
    one.flush()
    two = ws.RecordStore.open(tmp_path / "s", "a")
    one.extend({"x": [2, 3]})
    files.at = 4
    with pytest.raises(WriteFailed):
        one.flush()
    assert len(two) == 4
    with pytest.raises(PositionError):
        two.update(3, {"x": 9})
    assert ws.RecordStore.open(tmp_path / "s")["x"][:].tolist() == [0, 1]


@pytest.mark.parametrize("edits", [False, True])
@pytest.mark.parametrize("how", ["open", "refresh"])
def test_a_rebalance_while_somebody_looks(
    tmp_path: Path, edits: bool, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At any operation of the one who looks, another rebalances, and with that removes the folder that is read."""
    for at in range(60):
        one = ws.RecordStore.create(tmp_path / str(at), X)
        one.extend({"x": range(3)})
        one.flush()
        files = Calling()
        if how == "refresh":
            reader = ws.RecordStore.open(tmp_path / str(at), files=files)
        one.extend({"x": range(3, 6)})
        one.flush()
        if edits:
            one.update([0, 5], {"x": [0, 5]})
        countdown = Countdown(at, one)
        files.check = countdown
        if how == "open":
            reader = ws.RecordStore.open(tmp_path / str(at), files=files)
        else:
            reader.refresh()
        assert reader["x"][:].tolist() == list(range(6)), at
        if countdown.left >= 0:
            break
        reader.close()
        one.close()
    assert at > 1
    assert not caplog.messages


def test_a_refresh_while_another_thread_follows_a_rebalance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log that a thread is about to look at is closed by then, and its descriptor is another file's, or none's."""
    with ws.RecordStore.create(tmp_path / "s", X) as writer, ws.RecordStore.open(tmp_path / "s") as reader:
        for opened in (0, 8):
            writer.append({"x": opened})
            writer.rebalance(progress=False)
            log, others = reader._session.generation.log, []
            real = log.ends_with

            def ends_with(entries: int, last: bytes) -> bool:
                reader.refresh()
                others.extend(open(tmp_path / "s" / "store.json") for _ in range(opened))  # noqa: B023, SIM115
                return real(entries, last)  # noqa: B023

            def once(entries: int, last: bytes) -> bool:
                monkeypatch.undo()
                return ends_with(entries, last)

            monkeypatch.setattr(log, "ends_with", once)
            reader.refresh()
            assert reader["x"][:].tolist() == writer["x"][:].tolist()
            for other in others:
                other.close()


@pytest.mark.parametrize("wanted", [-1, [1], np.array([1])])
def test_a_gather_that_waits_for_a_flush_which_follows_a_rebalance(tmp_path: Path, wanted: Any) -> None:
    """Read in the generation before, the row that was flushed was outside the store, or -1 was another one."""
    with ws.RecordStore.create(tmp_path / "s", X) as other, ws.RecordStore.open(tmp_path / "s", "a") as store:
        other.append({"x": 1})
        other.rebalance(progress=False)
        store.append({"x": 2})
        lock = store._session.lock

        class Late:
            """A lock that another thread holds until it has flushed."""

            def __enter__(self) -> None:
                store._session.lock = lock
                store.flush()

            def __exit__(self, *exception: object) -> None: ...

        store._session.lock = Late()  # type: ignore[assignment]
        assert store[wanted]["x"] == 2


def test_rows_after_an_interrupt_as_another_added_a_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the session went on with the buffer of the fields before, rows lacked the new one."""
    with ws.RecordStore.create(tmp_path / "s", X) as other, ws.RecordStore.open(tmp_path / "s", "a") as store:
        other.append({"x": 1})
        other.add_field("y", ws.Array("int64"), [2], progress=False)

        def interrupt(generation: Generation) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(Generation, "release", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.refresh()
        for number in (3, 5):
            store.append({"x": number, "y": number + 1})
        assert store["y"][:].tolist() == [2, 4, 6]
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert again.gather([1, 2])["y"].tolist() == [4, 6]


class _Awaited:
    """float32 values that set an event when they are read."""

    def __init__(self, event: threading.Event, values: list[float]) -> None:
        self.event, self.values = event, values

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        self.event.set()
        return np.array(self.values, np.float32)


@pytest.mark.parametrize("change", ["map", "add"])
def test_records_that_a_thread_adds_while_another_changes_the_fields(tmp_path: Path, change: str) -> None:
    """They were encoded by the fields before: float32 was read as int32, and rows without a field never written."""
    encoded = threading.Event()
    fields = {"x": ws.Array("float32")}
    with ThreadPoolExecutor(1) as thread, ws.RecordStore.create(tmp_path / "s", fields) as store:
        store.extend({"x": np.float32([1, 2])})
        calls: list[Future[None]] = []

        def function(batch: dict[str, Any]) -> Any:
            calls.append(thread.submit(store.extend, {"x": _Awaited(encoded, [3.0])}))
            assert encoded.wait(60)
            return batch["x"].astype(np.int32)

        if change == "map":
            store.map_field("x", function, ws.Array("int32"), progress=False)
            with pytest.raises(SchemaMismatch, match="holds int32; got float32"):
                calls[0].result()
        else:
            store.add_field("y", ws.Array("int32"), function, progress=False)
            calls[0].result()
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert again["x"][:].tolist() == ([1, 2] if change == "map" else [1.0, 2.0, 3.0])
        assert change == "map" or again[2]["y"] is None


def test_a_filter_beside_another_process(tmp_path: Path) -> None:
    """Its flush reads what others have committed: positions then meant other records, and a field was left out."""
    names = iter("abcdefg")
    with ws.RecordStore.create(tmp_path / "s", X) as other, ws.RecordStore.open(tmp_path / "s", "a") as store:
        other.extend({"x": [0, 1, 2, 3]})
        other.flush()
        store.refresh()
        mask = store["x"][:] > 1
        other.append({"x": 4})
        other.flush()
        assert store.filter(tmp_path / next(names), mask)["x"][:].tolist() == [2, 3]
        assert store.filter(tmp_path / next(names), [2, -1])["x"][:].tolist() == [2, 4]
        store.append({"x": 5})
        other.append({"x": 6})
        other.flush()
        everything = store.filter(tmp_path / next(names), slice(None))["x"][:]
        assert everything.tolist() == [0, 1, 2, 3, 4, 6, 5]
        other.refresh()
        other.delete([0, 6])
        with pytest.raises(PositionError, match="find the position again"):
            store.filter(tmp_path / next(names), [0])
        other.add_field("y", ws.Array("int64"), [5, 6, 7, 8, 9], progress=False)
        assert store.filter(tmp_path / next(names), lambda batch: batch["x"] < 9)["y"][:].tolist() == [5, 6, 7, 8, 9]
        other.drop_field("x", progress=False)
        assert list(store.filter(tmp_path / next(names), []).fields) == ["y"]


def test_fields_that_change_just_after_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flush said that the records were still pending, and are to be added anew: then they were there twice."""
    with ws.RecordStore.create(tmp_path / "s", X) as store, ws.RecordStore.open(tmp_path / "s", "a") as other:
        real = Generation.commit

        def commit(generation: Generation, *args: Any, **options: Any) -> None:
            monkeypatch.undo()
            real(generation, *args, **options)
            other.add_field("y", ws.Array("int64"), [5], progress=False)

        monkeypatch.setattr(Generation, "commit", commit)
        store.append({"x": 1})
        store.flush()
        assert {name: values.tolist() for name, values in store[:].items()} == {"x": [1], "y": [5]}


def test_files_that_another_process_removes_while_they_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ws.RecordStore.create(tmp_path / "s", X) as store:
        store.append({"x": 1})
    generation = tmp_path / "s" / "g0001"
    real = os.scandir

    class Late(list[Any]):
        """The entries of a folder, one of which is gone by now, and the next time the folder."""

        def __init__(self, folder: Any) -> None:
            chunk = chunk_path(generation, 0)
            if Path(folder) == generation and not chunk.exists():
                generation.rename(tmp_path / "removed")
            with real(folder) as entries:
                super().__init__(entries)
            if Path(folder) == generation:
                chunk.unlink()

        def __enter__(self) -> list[Any]:
            return self

        def __exit__(self, *exception: object) -> None: ...

    with ws.RecordStore.open(tmp_path / "s") as store:
        monkeypatch.setattr(os, "scandir", Late)
        assert chunk_bytes(generation) == 0
        assert store.nbytes > 0
    assert not generation.exists()


def test_stored_rows_are_not_committed_behind_a_change_of_fields(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", X) as store, ws.RecordStore.open(tmp_path / "s", "a") as other:
        block = block_of(store.fields, {"x": [5]})
        other.map_field("x", lambda batch: batch["x"].astype(np.float64), ws.Array("float64"), progress=False)
        with pytest.raises(SchemaMismatch, match="were changed by another process"):
            store._commit_rows(block)
        store.refresh()
        assert len(store) == 0
