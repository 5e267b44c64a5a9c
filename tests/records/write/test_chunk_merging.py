"""Merging small chunks: many sessions leave few files, and every row keeps its number."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import warmstore as ws
from warmstore.errors import Damaged
from warmstore.records.log.log_entries import MERGED
from warmstore.records.maintenance.chunk_states import chunk_states
from warmstore.records.write import chunk_merging
from warmstore.storage.files import Files

FIELDS = {
    "x": ws.Array("int64"),
    "pair": ws.Array("float32", (2,)),
    "text": ws.Text("zstd"),
    "ragged": ws.Ragged("int16"),
    "json": ws.Json(),
}


@pytest.fixture(autouse=True)
def fan_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_merging, "FAN_IN", 4)


def record(number: int) -> dict[str, object]:
    """A record that follows from its number; some of its values are absent."""
    return {
        "x": number,
        "pair": np.full(2, number, np.float32),
        "text": None if number % 3 == 0 else f"text {number}",
        "ragged": np.arange(number % 5, dtype=np.int16),
        "json": {"number": number} if number % 2 else None,
    }


def session(path: Path, number: int, files: Files | None = None) -> None:
    with ws.RecordStore.open(path, "a", files=files) as store:
        store.append(record(number))


def check(store: ws.RecordStore, numbers: list[int]) -> None:
    assert store["x"][:].tolist() == numbers
    for at, number in enumerate(numbers):
        shown, expected = store[at], record(number)
        assert shown["text"] == expected["text"]
        assert shown["json"] == expected["json"]
        assert shown["pair"].tolist() == [number, number]
        assert shown["ragged"].tolist() == list(range(number % 5))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ws.RecordStore.create(tmp_path / "s", FIELDS).close()
    return tmp_path / "s"


def test_sessions_leave_few_chunks_and_rows_are_rewritten_once_a_level(path: Path) -> None:
    reader = ws.RecordStore.open(path)
    for number in range(70):
        session(path, number)
        reader.refresh()
        assert len(reader) == number + 1
    check(reader, list(range(70)))
    store = ws.RecordStore.open(path)
    check(store, list(range(70)))
    assert len(list((path / "g0001").glob("*.arrow"))) == 1 + 0 + 1 + 2  # 64 rows, 4 and two
    assert store._session.generation.batches.levels[int(store._snapshot.chunk[0])] == 3
    log = store._session.generation.log.read(0)
    rewritten = log["rows"][log["kind"] == MERGED].sum()
    assert rewritten <= 3 * 70
    assert store.verify().ok
    for file in (path / "g0001").glob("*.arrow"):
        assert pa.ipc.open_file(file).read_all().validate(full=True) is None
    assert sum(state.records for state in chunk_states(path)) == 70
    assert {state.state for state in chunk_states(path)} == {"sealed"}


def test_who_has_not_looked_reads_on(path: Path) -> None:
    for number in range(3):
        session(path, number)
    reader = ws.RecordStore.open(path)
    held = reader["ragged"][2]
    session(path, 3)
    assert len(list((path / "g0001").glob("*.arrow"))) == 1
    check(reader, [0, 1, 2])  # rows that it had not read before, of files that have gone
    assert held.tolist() == [0, 1]
    reader.refresh()
    check(reader, [0, 1, 2, 3])


def test_edits_before_and_after_a_merge(path: Path) -> None:
    for number in range(3):
        session(path, number)
    with ws.RecordStore.open(path, "a") as store:
        store.update(1, {"x": 10})
        store.delete(0)
    assert store.closed
    for number in range(20, 25):
        session(path, number)
    store = ws.RecordStore.open(path, "a")
    assert store["x"][:].tolist() == [2, 10, 20, 21, 22, 23, 24]
    store.update([0, 2], {"x": [5, 6]})
    store.delete(1)
    assert store["x"][:].tolist() == [5, 24, 6, 21, 22, 23]
    assert store.verify().ok
    store.rebalance()
    assert store["x"][:].tolist() == [5, 24, 6, 21, 22, 23]


def test_a_live_writer_between_them_keeps_its_chunk(path: Path) -> None:
    """Rows of the sessions and of one long-lived writer alternate: each run of rows is a batch of the merged chunk."""
    long = ws.RecordStore.open(path, "a")
    for number in range(0, 16, 2):
        long.append(record(number))
        long.flush()
        session(path, number + 1)
    check(ws.RecordStore.open(path), list(range(16)))
    assert len(list((path / "g0001").glob("*.arrow"))) == 3
    long.close()
    check(ws.RecordStore.open(path), list(range(16)))


def test_chunks_of_dead_writers_are_merged(path: Path) -> None:
    for number in range(3):
        store = ws.RecordStore.open(path, "a")
        store.append(record(number))
        store.close(seal=False)
    session(path, 3)
    assert len(list((path / "g0001").glob("*.arrow"))) == 1
    check(ws.RecordStore.open(path), list(range(4)))


def test_large_chunks_and_small_chunk_sizes_are_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_merging, "_LARGE", 1)
    for number in range(9):
        session(path, number)
    assert len(list((path / "g0001").glob("*.arrow"))) == 9
    monkeypatch.undo()
    monkeypatch.setattr(chunk_merging, "FAN_IN", 4)
    with ws.RecordStore.open(path, "a", chunk_size=3) as store:
        store.append(record(9))
    assert len(list((path / "g0001").glob("*.arrow"))) == 10


def test_damage_is_not_written_anew(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        session(path, number)
    store = ws.RecordStore.open(path, "a")
    check(store, [0, 1, 2])  # it knows all rows as whole
    file = path / "g0001/000001.arrow"
    data = bytearray(file.read_bytes())
    at = data.index(np.float32(1).tobytes() * 2)
    data[at] ^= 1
    file.write_bytes(data)
    store.append(record(3))
    store.close()
    assert len(list((path / "g0001").glob("*.arrow"))) == 4
    session(path, 4)
    assert len(list((path / "g0001").glob("*.arrow"))) == 2  # the others are merged
    assert not caplog.messages
    with pytest.raises(Damaged):
        ws.RecordStore.open(path)["pair"][:]
    assert ws.RecordStore.open(path)["x"][:].tolist() == [0, 1, 2, 3, 4]
    report = ws.RecordStore.open(path).verify(progress=False)
    assert [(problem.field, problem.positions) for problem in report.problems] == [("pair", (1,))]


def test_a_disk_that_refuses_leaves_the_store_as_it_was(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Full(Files):
        left = -1

        def write(self, descriptor: int, buffers: object, offset: int) -> int:
            self.left -= 1
            if self.left == 0:
                raise OSError(28, "No space left on device")
            return super().write(descriptor, buffers, offset)  # type: ignore[arg-type]

    for number in range(3):
        session(path, number)
    refused = 0
    for at in range(1, 40):
        files = Full()
        store = ws.RecordStore.open(path, "a", files=files)
        store.append(record(3))
        store.flush()
        before = len(caplog.records)
        files.left = at
        store.close()
        check(ws.RecordStore.open(path), [0, 1, 2, 3])
        assert ws.RecordStore.open(path).verify().ok
        if files.left > 0:
            break
        refused += len(caplog.records) > before
        with ws.RecordStore.open(path, "a") as again:
            again.delete(3)
            again.rebalance()
        for number in range(3):
            with ws.RecordStore.open(path, "a", chunk_size=3) as again:
                again.update(number, {"x": number})
    assert refused > 3


def test_a_merged_log_is_checked_by_one_hash(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash that a `merged` entry has of the log before it stands for those of the entries, and finds damage too."""
    from warmstore.records.log import log_entries

    monkeypatch.setattr(log_entries, "_WORTH_A_PASS", 1)
    for number in range(6):
        session(path, number)
    check(ws.RecordStore.open(path), list(range(6)))
    file = path / "g0001/log"
    data = bytearray(file.read_bytes())
    for at in (5, 64 * 3 + 30, 64 * 10 + 41, len(data) - 1):
        data[at] ^= 4
        file.write_bytes(data)
        store = ws.RecordStore.open(path)
        check(store, list(range(6)))
        assert store._session.generation.log.is_damaged
        data[at] ^= 4


def test_a_merged_store_there_and_back(path: Path, tmp_path: Path) -> None:
    """Pushed before and after a merge: a copy that was pulled before goes on, and a lazy one too."""
    remote = tmp_path / "remote"
    for number in range(3):
        session(path, number)
    ws.RecordStore.open(path).push(remote)
    copy = ws.RecordStore.clone(remote, tmp_path / "copy")
    lazy = ws.RecordStore.open(remote.as_uri(), cache_dir=tmp_path / "cache")
    check(lazy, [0, 1, 2])
    session(path, 3)
    session(path, 4)
    with ws.RecordStore.open(path, "a") as store:
        store.update(0, {"x": 0})
        store.push(remote)
    copy.pull(remote)
    lazy.refresh()
    for store in (copy, lazy, ws.RecordStore.open(tmp_path / "copy"), ws.RecordStore.clone(remote, tmp_path / "new")):
        check(store, [0, 1, 2, 3, 4])
        assert store.verify().ok
