"""The record store as its users see it: appending, reading, sharing between processes, opening and closing."""

import contextlib
import errno
import json
import multiprocessing
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pytest
from tests.faults import processes
from tests.faults.children import FIELDS, check, columns, in_child, record, well
from tests.faults.seam import Calling, Counting, FullDisk, Refusing
from tests.faults.stories import STORIES
from tests.slow import thinned

import warmstore as ws
from warmstore.errors import (
    Closed,
    Damaged,
    NewerFormat,
    NotAStore,
    ReadOnly,
    SchemaMismatch,
    StoreExists,
    UnsupportedType,
    WriteFailed,
)
from warmstore.records.format.manifest import FORMAT, write_manifest
from warmstore.records.write.write_buffer import WriteBuffer, block_of, largest_record
from warmstore.storage import checked_json
from warmstore.storage.files import Files

pytestmark = pytest.mark.forks

NUMBER = {"x": ws.Array("int64")}


@pytest.fixture
def store(tmp_path: Path) -> ws.RecordStore:
    return ws.RecordStore.create(tmp_path / "s", FIELDS)


def numbers(store: ws.RecordStore) -> list[int]:
    return store[:]["x"].tolist()  # type: ignore[no-any-return]


# Appending


def test_append_and_extend_are_readable_at_once_and_after(store: ws.RecordStore) -> None:
    for number in range(3):
        store.append(record(number))
        check(store, range(number + 1))
    store.extend(columns(range(3, 9)))
    check(store, range(9))
    assert store._snapshot.rows == 0
    store.flush()
    assert store._snapshot.rows == 9
    check(store, range(9))
    store.append(record(9))
    check(store, range(10))
    store.close()
    check(ws.RecordStore.open(store.path), range(10))


def test_an_empty_store(store: ws.RecordStore) -> None:
    store.flush()
    for one in (store, ws.RecordStore.open(store.path)):
        assert len(one) == 0
        assert [len(values) for values in one[:].values()] == [0] * len(FIELDS)
        assert one[:]["image"].shape == (0, 3, 2)
        with pytest.raises(IndexError):
            one[0]
        assert one.to_arrow().num_rows == 0


def test_a_batch_of_no_records_adds_none(store: ws.RecordStore) -> None:
    store.extend(columns([]))
    assert len(store) == 0
    store.flush()
    store.extend(columns([0]))
    store.extend(columns([]))
    store.extend({**columns([]), "image": np.zeros((0, 3, 2), np.uint8), "nothing": np.zeros((0, 0))})
    store.extend(columns([1]))
    check(store, range(2))
    store.flush()
    check(store, range(2))


@pytest.mark.parametrize("by", ["this object", "another"])
def test_a_batch_of_no_records_before_a_new_field(tmp_path: Path, by: str) -> None:
    """It kept the fields of its time, so later records could not be written, and were lost at close."""
    with ws.RecordStore.create(tmp_path / "s", NUMBER) as store:
        store.extend({"x": np.zeros(0, np.int64)})
        with (
            contextlib.nullcontext(store) if by == "this object" else ws.RecordStore.open(tmp_path / "s", "a") as other
        ):
            other.add_field("y", ws.Array("int64"), progress=False)
        store.refresh()
        store.extend({"x": [1, 2], "y": [3, 4]})
        assert store["y"][:].tolist() == [3, 4]
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert again["x"][:].tolist() == [1, 2]
        assert again["y"][:].tolist() == [3, 4]


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        {"more": [1, 2]},
        {"number": [1]},
        {"number": [1.5, 2]},
        {"number": np.zeros(2, np.int32)},
        {"number": 5},
        {"image": np.zeros((2, 2, 3), np.uint8)},
        {"image": np.zeros((2, 3, 2), np.int8)},
        {"points": [np.zeros((1, 2)), np.zeros((1, 2))]},
        {"points": [np.zeros(1, np.float32)] * 2},
        {"points": 3},
        {"blob": ["text", "text"]},
        {"blob": b"ab"},
        {"text": [b"a", b"b"]},
        {"text": "ab"},
        {"nothing": np.zeros((3, 0))},
    ],
    ids=str,
)
def test_what_does_not_fit_adds_nothing(store: ws.RecordStore, change: dict[str, Any], flushed: bool) -> None:
    store.extend(columns(range(2)))
    if flushed:
        store.flush()
    batch: dict[str, Any] = {**columns([7, 8]), **change}
    with pytest.raises(SchemaMismatch):
        store.extend(batch)
    check(store, range(2))
    store.close()
    check(ws.RecordStore.open(store.path), range(2))


@pytest.mark.parametrize("batch", [None, [], 5, "x", [{"x": 1}]])
def test_a_batch_is_a_dict(store: ws.RecordStore, batch: Any) -> None:
    with pytest.raises(SchemaMismatch):
        store.extend(batch)
    with pytest.raises(SchemaMismatch):
        store.append(batch)
    assert len(store) == 0


def test_json_that_cannot_be_kept_adds_nothing(store: ws.RecordStore) -> None:
    with pytest.raises(UnsupportedType):
        store.append({**record(0), "tag": {1: 2}})
    assert len(store) == 0


def test_appended_arrays_are_not_aliased(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"a": ws.Array("float64", (3,)), "r": ws.Ragged("float64"), "b": ws.Bytes()}
    store = ws.RecordStore.create(tmp_path / "s", fields)
    a, r, b = np.ones((2, 3)), [np.ones(2), np.ones(3)], [bytearray(b"abc"), bytearray(b"de")]
    store.extend({"a": a, "r": r, "b": b})
    store.append({"a": a[0], "r": r[0], "b": b[0]})
    a[:] = 7
    r[0][:] = 7
    b[0][:] = b"xyz"
    for _ in range(2):
        values = store[:]
        assert values["a"].tolist() == [[1.0] * 3] * 3
        assert [one.tolist() for one in values["r"]] == [[1, 1], [1, 1, 1], [1, 1]]
        assert list(map(bytes, values["b"])) == [b"abc", b"de", b"abc"]
        store.flush()


def test_what_is_read_of_pending_rows_is_not_aliased(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64", (2,))})
    store.extend({"x": [[1, 2], [3, 4]]})
    for index in (slice(None), [0], [1, 0]):
        store[index]["x"][:] = 9
    store[0]["x"][:] = 9
    assert store[:]["x"].tolist() == [[1, 2], [3, 4]]


def test_many_pending_bytes_are_flushed_by_themselves(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("uint8", (1 << 20,))})
    block = np.zeros((16, 1 << 20), np.uint8)
    for _ in range(4):
        assert store._snapshot.rows == 0
        store.extend({"x": block})
    assert store._snapshot.rows == 64
    assert store._session.pending.nbytes == 0


def test_a_large_flush_is_cut_into_batches(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("uint8", (1 << 20,)), "n": ws.Array("int64")})
    store.extend({"x": np.zeros((100, 1 << 20), np.uint8), "n": np.arange(100)})
    assert store._snapshot.batches == 2
    assert store.gather(slice(None), ["n"])["n"].tolist() == list(range(100))


def test_pending_drops_from_the_front() -> None:
    pending = WriteBuffer()
    pending.add(block_of(FIELDS, columns(range(5))))
    pending.add(block_of(FIELDS, columns(range(5, 9))))
    whole = pending.nbytes
    count, block = pending.head(whole // 2)
    assert 1 <= count < 9
    assert sum(rows.nbytes for rows in block.values()) <= whole // 2
    assert pending.head(1)[0] == 1
    pending.drop(6)
    assert pending.count == 3
    assert 0 < pending.nbytes < whole
    assert pending.joined()["number"].data.view(np.int64).ravel().tolist() == [6, 7, 8]
    pending.drop(3)
    assert (pending.count, pending.nbytes) == (0, 0)


def test_the_size_of_a_record_is_that_of_all_its_fields() -> None:
    fields: dict[str, Any] = {"a": ws.Array("uint8", (10,)), "b": ws.Bytes(), "c": ws.Bytes()}
    values = {"a": np.zeros((3, 10), np.uint8), "b": [b"", b"x" * 50, b""], "c": [b"y" * 40, b"y" * 30, b""]}
    assert largest_record(block_of(fields, values)) == 90
    assert largest_record(block_of(fields, {"a": [], "b": [], "c": []})) == 10
    assert largest_record(block_of(NUMBER, {"x": [1]})) == 8


@pytest.mark.slow
def test_a_record_that_no_chunk_can_hold_is_refused(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"a": ws.Bytes(), "b": ws.Bytes()})
    half = bytes(300 << 20)
    with pytest.raises(SchemaMismatch, match="too large"):
        store.extend({"a": [b"", half, b"", b""], "b": [b"", half, b"", b""]})
    assert len(store) == 0


@pytest.mark.slow
def test_a_full_chunk_ends_before_its_slot(tmp_path: Path) -> None:
    width = (1 << 20) - 600  # many batches whose headers are what crosses the end
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("uint8", (width,))})
    row = np.zeros((1, width), np.uint8)
    for number in range(1100):
        row[0, :8] = np.array([number]).view(np.uint8)
        store.extend({"x": row})
        store.flush()
    store.close()
    read = ws.RecordStore.open(tmp_path / "s")
    assert read._snapshot.unreadable == 0
    assert [int(read[at]["x"][:8].view(np.int64)[0]) for at in range(1100)] == list(range(1100))


# Chunks


def test_chunks_roll_over_and_are_sealed(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64", (50,))}, chunk_size="4KB") as store:
        for number in range(0, 40, 2):
            store.extend({"x": np.full((2, 50), [[number], [number + 1]])})
            store.flush()
    chunks = sorted((tmp_path / "s").rglob("*.arrow"))
    assert len(chunks) > 3
    rows = 0
    for path in chunks:
        table = pa.ipc.open_file(path).read_all()
        table.validate(full=True)
        rows += table.num_rows
        assert path.stat().st_size < 4000 + 2000  # the footer comes on top
    assert rows == 40
    with pytest.raises(ValueError, match="1 GiB"):
        ws.RecordStore.open(tmp_path / "s", "a", chunk_size="2GiB")


def test_a_foreign_file_in_the_folder_is_left_alone(store: ws.RecordStore) -> None:
    foreign = store.path / "g0001" / "notes.arrow"
    foreign.write_text("mine")
    store.append(record(0))
    store.close()
    assert foreign.read_text() == "mine"
    check(ws.RecordStore.open(store.path), [0])


# Creating and opening


def test_what_create_was_given_is_kept(tmp_path: Path) -> None:
    metadata = {"source": "é", "nested": {"list": [1, 2.5, None, True]}}
    ws.RecordStore.create(tmp_path / "s", FIELDS, metadata=metadata).close()
    read = ws.RecordStore.open(tmp_path / "s")
    assert read.fields == FIELDS
    assert list(read.fields) == list(FIELDS)
    assert read.metadata == metadata
    assert "0 records" in repr(read)
    assert read.nbytes == sum(path.stat().st_size for path in (tmp_path / "s").rglob("*") if path.is_file())


@pytest.mark.parametrize("metadata", [{1: 2}, {10: 1, 9: 2}, {"a": object()}, {"a": (1,)}, {"a": chr(0xD800)}])
def test_metadata_that_json_would_change_is_refused(tmp_path: Path, metadata: Any) -> None:
    with pytest.raises(UnsupportedType, match="metadata"):
        ws.RecordStore.create(tmp_path / "s", NUMBER, metadata=metadata)
    assert not list(tmp_path.iterdir())
    with ws.RecordStore.create(tmp_path / "s", NUMBER) as store:
        with pytest.raises(UnsupportedType, match="metadata"):
            store.annotate("k", metadata)  # store.json and its copy were damaged
        with pytest.raises(UnsupportedType, match="metadata"):
            store.annotate(1, "a")  # type: ignore[arg-type]
        with pytest.raises(UnsupportedType, match="metadata"):
            write_manifest(store.path, replace(store._manifest, metadata={9: "a", 10: "b"}), Files())
        assert store.annotate("k", "kept") == "kept"
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert again.metadata == {"k": "kept"}


def test_metadata_that_is_changed_later_in_memory(tmp_path: Path) -> None:
    given: dict[str, Any] = {"a": [1]}
    with ws.RecordStore.create(tmp_path / "s", NUMBER, metadata=given) as store:
        noted = [2]
        store.annotate("b", noted)
        for values in (given["a"], noted):
            values.append(3)
        assert store.metadata == {"a": [1], "b": [2]}


@pytest.mark.parametrize("size", [0, "2GiB", "much", 1.5])
def test_a_chunk_size_that_cannot_be_leaves_nothing_behind(tmp_path: Path, size: Any) -> None:
    with pytest.raises(ValueError, match="size"):
        ws.RecordStore.create(tmp_path / "s", NUMBER, chunk_size=size)
    assert not list(tmp_path.iterdir())


def test_create_takes_a_new_or_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ws.RecordStore.create(tmp_path / "empty", NUMBER).close()
    ws.RecordStore.create(tmp_path / "a" / "b" / "c", NUMBER).close()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "file").touch()
    for name in ("full", "file", "empty"):
        with pytest.raises(StoreExists):
            ws.RecordStore.create(tmp_path / name, NUMBER)
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "a", "full", "file"}  # no drafts left


def test_many_processes_create_one_store(tmp_path: Path) -> None:
    def create(say: Any) -> None:
        try:
            ws.RecordStore.create(tmp_path / "s", NUMBER).close()
            say("made")
        except StoreExists:
            say("exists")

    context = multiprocessing.get_context("fork")
    said = context.SimpleQueue()
    children = [context.Process(target=create, args=(said.put,)) for _ in range(6)]
    for child in children:
        child.start()
    answers = sorted(said.get() for _ in children)
    for child in children:
        child.join()
    assert answers == ["exists"] * 5 + ["made"]
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_path_may_be_relative_and_the_folder_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = ws.RecordStore.create("s", NUMBER, chunk_size=1)
    read = ws.RecordStore.open("s")
    monkeypatch.chdir("/")
    store.append({"x": 1})
    store.flush()
    read.refresh()
    assert numbers(read) == [1]
    assert numbers(pickle.loads(pickle.dumps(read))) == [1]


def test_fields_for_another_store_are_made_of_those_of_one(tmp_path: Path) -> None:
    """The next rewrite dropped a field that was removed there, with its values; rows with an added one were lost."""
    with ws.RecordStore.create(tmp_path / "s", {**NUMBER, "y": ws.Array("int64")}) as store:
        store.append({"x": 1, "y": 2})
        fields = store.fields
        del fields["x"]
        fields["z"] = ws.Array("int64")
        assert list(ws.RecordStore.create(tmp_path / "other", fields).fields) == ["y", "z"]
        store.rebalance(progress=False)
        store.append({"x": 3, "y": 4})
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert {name: values.tolist() for name, values in again[:].items()} == {"x": [1, 3], "y": [2, 4]}


def test_the_mode_is_r_or_a(store: ws.RecordStore) -> None:
    for mode in ("w", "", None, "rb"):
        with pytest.raises(ValueError, match="mode"):
            ws.RecordStore.open(store.path, mode)  # type: ignore[arg-type]


def test_a_reader_cannot_write(store: ws.RecordStore) -> None:
    read = ws.RecordStore.open(store.path)
    for attempt in (lambda: read.append(record(0)), lambda: read.extend(columns([0])), read.flush):
        with pytest.raises(ReadOnly, match="mode='a'"):
            attempt()
    assert len(read) == 0


def test_after_close_everything_says_so(store: ws.RecordStore) -> None:
    store.append(record(0))
    store.close()
    store.close()
    attempts = [lambda: store[0], lambda: store.append(record(0)), store.flush, store.refresh, store.to_arrow]
    for attempt in (*attempts, store.verify, lambda: store.verify(repair=True)):
        with pytest.raises(Closed):
            attempt()
    check(ws.RecordStore.open(store.path), [0])


def test_reopening_goes_on_appending(store: ws.RecordStore) -> None:
    with store:
        store.extend(columns(range(3)))
    for first in (3, 6, 9):
        with ws.RecordStore.open(store.path, "a") as again:
            again.extend(columns(range(first, first + 3)))
    check(ws.RecordStore.open(store.path), range(12))


def test_an_exception_in_the_block_loses_nothing(store: ws.RecordStore) -> None:
    def work() -> None:
        with store:
            store.append(record(0))
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        work()
    check(ws.RecordStore.open(store.path), [0])


def test_failed_opens_leak_no_descriptors(store: ws.RecordStore) -> None:
    store.extend(columns(range(3)))
    store.close()
    for name in ("log", "log.copy"):
        log = store.path / "g0001" / name
        whole = bytearray(log.read_bytes())
        whole[-1] ^= 1
        whole[-2] ^= 1
        log.write_bytes(whole)
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(Damaged):
            ws.RecordStore.open(store.path, "a")
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_closed_stores_leak_no_descriptors(tmp_path: Path) -> None:
    before = len(list(Path("/dev/fd").iterdir()))
    for number in range(3):
        with ws.RecordStore.create(tmp_path / str(number), FIELDS, chunk_size=1000) as store:
            for first in range(4):
                store.extend(columns([first]))
                store.flush()
        ws.RecordStore.open(tmp_path / str(number)).close()
    assert len(list(Path("/dev/fd").iterdir())) == before


# What is not a store


@pytest.mark.parametrize("content", [None, {}, {"notes.txt": "hello"}, {"g0001": None}])
def test_a_folder_that_holds_no_store(tmp_path: Path, content: dict[str, Any] | None) -> None:
    folder = tmp_path / "s"
    if content is not None:
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(text) if text else (folder / name).mkdir()
    for mode in ("r", "a"):
        with pytest.raises(NotAStore, match="not a warmstore store"):
            ws.RecordStore.open(folder, mode)  # type: ignore[arg-type]
    assert folder.exists() == (content is not None)


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "s").touch()
    with pytest.raises(NotAStore):
        ws.RecordStore.open(tmp_path / "s")


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "1", "null", '"text"', "{}", '{"format": "1"}', '{"format": null}', '{"format": 1}'),
        *("[" * 100_000, '{"format": 1, "checksum": "x"}', "\xff", "\0" * 100),
    ],
    ids=lambda text: text[:20],
)
def test_a_description_that_is_garbage(store: ws.RecordStore, text: str) -> None:
    store.close()
    description, copy = store.path / "store.json", store.path / "g0001" / "store.json.copy"
    whole = description.read_bytes()
    description.write_text(text, encoding="latin-1")
    with ws.RecordStore.open(store.path) as read:
        assert read.fields == store.fields
        assert read.verify(progress=False).files == ("store.json",)
    copy.unlink()
    for mode in ("r", "a"):
        with pytest.raises(Damaged, match=r"store\.json"):
            ws.RecordStore.open(store.path, mode)  # type: ignore[arg-type]
    copy.write_bytes(whole)
    with ws.RecordStore.open(store.path, "a") as written:
        written.append(record(0))
    assert description.read_bytes() == whole


def test_a_description_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "store.json").mkdir()
    with pytest.raises(Damaged):
        ws.RecordStore.open(tmp_path)


def test_a_newer_format(store: ws.RecordStore) -> None:
    path = store.path / "store.json"
    content = {**json.loads(path.read_text()), "format": FORMAT + 1, "unheard": "of"}
    del content["checksum"]
    path.write_text(json.dumps({**content, "checksum": checked_json.checksum_of(content)}))
    before = path.read_bytes()
    for mode in ("r", "a"):
        with pytest.raises(NewerFormat, match=f"format {FORMAT + 1}"):
            ws.RecordStore.open(store.path, mode)  # type: ignore[arg-type]
    assert path.read_bytes() == before


def test_a_format_that_is_newer_by_a_wrong_bit(store: ws.RecordStore) -> None:
    path = store.path / "store.json"
    before = path.read_text()
    path.write_text(before.replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'))
    with ws.RecordStore.open(store.path) as read:
        assert read._manifest.format == FORMAT
    with ws.RecordStore.open(store.path, "a") as written:
        written.append(record(0))
    assert path.read_text() == before


def test_a_missing_log(store: ws.RecordStore) -> None:
    store.close()
    for name in ("log", "log.copy"):
        (store.path / "g0001" / name).unlink()
    for mode in ("r", "a"):
        with pytest.raises(NotAStore, match="incomplete"):
            ws.RecordStore.open(store.path, mode)  # type: ignore[arg-type]


def test_a_missing_chunk(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", FIELDS, chunk_size=1) as store:
        for number in range(4):
            store.append(record(number))
            store.flush()
    (tmp_path / "s" / "g0001" / "000001.arrow").unlink()
    read = ws.RecordStore.open(tmp_path / "s", "a")
    assert len(read) == 4
    for name in FIELDS:
        with pytest.raises(Damaged, match=r"000001\.arrow"):
            read.gather([0, 1], [name])
        with pytest.raises(Damaged):
            read.gather([1], [name])
        assert len(read.gather([3, 2, 0], [name])[name]) == 3
    with pytest.raises(Damaged):
        read.to_arrow()
    read.append(record(4))
    read.flush()
    assert [int(read[at]["number"]) for at in (0, 2, 3, 4)] == [0, 2, 3, 4]


def test_a_folder_that_others_cannot_write(seen_by_all: Path) -> None:
    tmp_path = seen_by_all
    with ws.RecordStore.create(tmp_path / "s", FIELDS) as store:
        store.extend(columns(range(5)))

    def visit(say: Any) -> None:
        check(ws.RecordStore.open(tmp_path / "s"), range(5))
        with pytest.raises(ReadOnly, match="mode='r'"):
            ws.RecordStore.open(tmp_path / "s", "a")
        with pytest.raises(ReadOnly):
            ws.RecordStore.create(tmp_path / "other", NUMBER)
        say(len(ws.RecordStore.open(tmp_path / "s").to_arrow()))

    assert well(in_child(visit, user=65534)) == [5]
    (tmp_path / "s" / "g0001" / "log").chmod(0o666)

    def append(say: Any) -> None:
        store = ws.RecordStore.open(tmp_path / "s", "a")
        store.append(record(5))
        with pytest.raises(WriteFailed):
            store.flush()
        check(store, range(6))

    well(in_child(append, user=65534))
    check(ws.RecordStore.open(tmp_path / "s"), range(5))


# Several processes


@pytest.mark.parametrize("start", thinned(2, ["fork", "spawn"]))
def test_writers_and_live_readers_in_processes(tmp_path: Path, start: str) -> None:
    context = multiprocessing.get_context(start)
    path = tmp_path / "s"
    ws.RecordStore.create(path, FIELDS).close()
    writers, each = 3, 40
    said = context.SimpleQueue()
    children = [context.Process(target=processes.write, args=(path, number, each)) for number in range(writers)]
    children += [context.Process(target=processes.read, args=(path, writers, each, said)) for _ in range(2)]
    for child in children:
        child.start()
    answers = [said.get() for _ in range(2)]
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * len(children)
    assert answers == ["well"] * 2
    store = ws.RecordStore.open(path)
    assert sorted(store[:]["number"].tolist()) == sorted(
        processes.number(w, at) for w in range(writers) for at in range(each)
    )


def test_others_see_rows_after_refresh_only(store: ws.RecordStore) -> None:
    read = ws.RecordStore.open(store.path)
    store.append(record(0))
    read.refresh()
    assert len(read) == 0
    store.flush()
    assert len(read) == 0
    read.refresh()
    check(read, [0])


def test_two_writers_interleave(tmp_path: Path) -> None:
    one = ws.RecordStore.create(tmp_path / "s", NUMBER)
    two = ws.RecordStore.open(tmp_path / "s", "a")
    for number in range(0, 20, 2):
        one.append({"x": number})
        two.append({"x": number + 1})
        one.flush()
        two.flush()
        assert numbers(two) == list(range(number + 2))
    one.refresh()
    assert numbers(one) == list(range(20))
    assert len(list((tmp_path / "s").rglob("*.arrow"))) == 2


def test_pending_rows_move_behind_what_others_commit(tmp_path: Path) -> None:
    one = ws.RecordStore.create(tmp_path / "s", NUMBER)
    two = ws.RecordStore.open(tmp_path / "s", "a")
    one.extend({"x": [1, 2]})
    two.extend({"x": [3]})
    two.close()
    one.refresh()
    assert numbers(one) == [3, 1, 2]
    assert one[[2, 0, 1]]["x"].tolist() == [2, 3, 1]


def test_a_pickled_store_reads_elsewhere(store: ws.RecordStore) -> None:
    store.extend(columns(range(4)))
    store.flush()
    store.append(record(4))
    copy = pickle.loads(pickle.dumps(store))
    assert copy.mode == "r"
    check(copy, range(4))
    check(store, range(5))
    context = multiprocessing.get_context("spawn")
    said = context.SimpleQueue()
    child = context.Process(target=processes.length, args=(store, said))
    child.start()
    assert said.get() == 4
    child.join()
    assert child.exitcode == 0


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_salvaged_store_is_one_elsewhere(tmp_path: Path, mode: Literal["r", "a"]) -> None:
    """A forked child's store was closed, and a pickled one could not be opened: its edits are damaged."""
    with ws.RecordStore.create(tmp_path / "s", NUMBER) as store:
        store.extend({"x": [0, 1, 2]})
        store.update(1, {"x": 9})
    for file in ("numbers", "numbers.copy"):
        (tmp_path / "s" / "g0001" / file).write_bytes(bytes(8))
    with ws.RecordStore.open(tmp_path / "s", mode, salvage=True) as store:
        assert numbers(pickle.loads(pickle.dumps(store)))[:3] == [0, 1, 2]
        context = multiprocessing.get_context("fork")
        said = context.SimpleQueue()
        child = context.Process(target=lambda: said.put([] if store.closed else numbers(store)[:3]))
        child.start()
        assert said.get() == [0, 1, 2]
        child.join()
        assert child.exitcode == 0


# Threads and failures seen from the inside


def test_rows_stay_in_sight_through_every_step_of_a_flush(tmp_path: Path) -> None:
    files = Calling()
    store = ws.RecordStore.create(tmp_path / "s", NUMBER, chunk_size=1, files=files)
    looks = []

    def look() -> None:
        files.check = None  # reading is made of operations too
        looks.append(len(store))
        assert store[-1]["x"] == count - 1
        files.check = look

    for count in range(1, 5):
        files.check = None
        store.append({"x": count - 1})
        files.check = look
        store.flush()
        assert set(looks) == {count}
        looks.clear()
    files.check = None


def test_a_queue_that_was_flushed_meanwhile_is_no_error(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", NUMBER)
    store.append({"x": 1})

    class Late:
        """A lock that another thread holds until it has flushed."""

        def __enter__(self) -> None:
            store._session.lock = lock
            store.flush()

        def __exit__(self, *exception: object) -> None: ...

    lock = store._session.lock
    store._session.lock = Late()  # type: ignore[assignment]
    assert store[0]["x"] == 1


def test_a_row_taken_back_by_a_failing_disk_is_replaced(tmp_path: Path) -> None:
    class Slow(Refusing):
        def before(self, name: str) -> None:
            if self.at == 0:
                read.refresh()  # the entry is written and not yet on the disk
            super().before(name)

    files = Slow()
    one = ws.RecordStore.create(tmp_path / "s", NUMBER, files=files)
    two = ws.RecordStore.open(tmp_path / "s", "a")
    read = ws.RecordStore.open(tmp_path / "s")
    one.append({"x": 1})
    one.flush()
    one.append({"x": 2})
    two.append({"x": 3})
    files.at = 4  # write and sync of the batch, writes of the entry, and its sync
    with pytest.raises(WriteFailed):
        one.flush()
    assert files.refused == ["sync"]
    assert numbers(read) == [1, 2]  # it saw what is now gone
    two.flush()
    read.refresh()
    assert numbers(read) == [1, 3]
    one.flush()
    read.refresh()
    for store in (one, read, ws.RecordStore.open(tmp_path / "s")):
        assert numbers(store) == [1, 3, 2]


def test_a_footer_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    counting = Counting()
    with ws.RecordStore.create(tmp_path / "count", NUMBER, files=counting) as store:
        store.append({"x": 1})
        store.flush()
        counting.seen.clear()
    assert counting.seen == ["write", "sync", "write", "write", "sync"]  # the footer, and its entry
    for operation in range(5):
        path = tmp_path / str(operation)
        files = Refusing()
        store = ws.RecordStore.create(path, NUMBER, files=files)
        store.append({"x": 1})
        store.flush()
        files.at = operation
        store.close()
        assert files.refused
        assert "stays without a footer" in caplog.text
        caplog.clear()
        with ws.RecordStore.open(path, "a") as again:
            assert numbers(again) == [1]
            again.append({"x": 2})
        assert numbers(ws.RecordStore.open(path)) == [1, 2]


def test_a_folder_that_was_moved_away_is_the_reason_of_a_failed_write(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", NUMBER)
    store.append({"x": 1})
    (tmp_path / "s").rename(tmp_path / "away")
    with pytest.raises(WriteFailed, match="is not a warmstore store") as failed:
        store.flush()
    assert failed.value.errno == errno.ENOENT
    (tmp_path / "away").rename(tmp_path / "s")
    store.close()
    assert numbers(ws.RecordStore.open(tmp_path / "s")) == [1]


def test_a_close_that_fails_keeps_the_rows(tmp_path: Path) -> None:
    files = FullDisk()
    store = ws.RecordStore.create(tmp_path / "s", NUMBER, files=files)
    store.append({"x": 1})
    files.room = 10
    with pytest.raises(WriteFailed):
        store.close()
    assert not store.closed
    assert numbers(store) == [1]
    files.room = None
    store.close()
    assert numbers(ws.RecordStore.open(tmp_path / "s")) == [1]


def test_an_interrupt_in_the_middle_of_a_flush(tmp_path: Path) -> None:
    """Ctrl-C at any operation: the rows are committed or pending, never both, never neither."""

    class Interrupting(Refusing):
        def before(self, name: str) -> None:
            self.step(name, "before")

        def after(self, name: str) -> None:
            self.step(name, "after")

        def step(self, name: str, moment: str) -> None:
            if self.at is not None:
                self.at -= 1
                if self.at == -1:
                    raise KeyboardInterrupt

    hits = 0
    for at in range(40):
        files = Interrupting()
        store = ws.RecordStore.create(tmp_path / str(at), NUMBER, chunk_size=1, files=files)
        store.append({"x": 0})
        store.flush()
        store.extend({"x": [1, 2]})
        files.at = at
        try:
            store.flush()
        except KeyboardInterrupt:
            hits += 1
        files.at = None
        assert numbers(store) == [0, 1, 2]
        store.append({"x": 3})
        store.flush()
        for one in (store, ws.RecordStore.open(tmp_path / str(at))):
            assert numbers(one) == [0, 1, 2, 3], at
    assert hits >= 16


def test_files_are_all_there_is(tmp_path: Path) -> None:
    """The seam is complete: what a flush does to the disk goes through it."""
    counting = Counting()
    store = ws.RecordStore.create(tmp_path / "s", NUMBER, files=counting)
    logs, descriptions, folder = (
        "make_folder create sync create sync sync_folder",
        "create write sync rename sync_folder " * 2,
        "rename sync_folder",
    )
    assert counting.seen == f"{logs} {descriptions} {folder}".split()
    counting.seen.clear()
    store.append({"x": 1})
    store.flush()
    assert counting.seen == ["create", "sync_folder", "write", "sync", "write", "write", "sync"]
    assert isinstance(counting, Files)


def test_a_generation_that_has_gone_is_verified_and_exported_as_it_was_seen(tmp_path: Path) -> None:
    story = STORIES["merged"](tmp_path / "s")
    read = ws.RecordStore.open(story.path)
    with ws.RecordStore.open(story.path, "a") as store:
        store.rebalance(progress=False)
    assert not (story.path / "g0001").exists()
    assert read.verify(progress=False).ok
    assert read.to_arrow()["number"].to_pylist() == [one["number"] for one in story.records]


@pytest.mark.parametrize("name", ["log", "store.json", "numbers"])
def test_files_in_a_bad_sector_are_read_through_their_copies(tmp_path: Path, name: str) -> None:
    class BadSector(Files):
        bad: ClassVar[set[int]] = set()

        def open(self, path: Path | str, **options: Any) -> int:
            descriptor = super().open(path, **options)
            (self.bad.add if Path(path).name == name else self.bad.discard)(descriptor)
            return descriptor

        def read(self, descriptor: int, length: int, offset: int) -> bytes:
            if descriptor in self.bad:
                raise OSError(errno.EIO, "Input/output error")
            return super().read(descriptor, length, offset)

    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")}) as made:
        made.extend({"x": range(5)})
        made.update([0, 3], {"x": [10, 13]})
    assert ws.RecordStore.open(tmp_path / "s", files=BadSector())["x"][:].tolist() == [10, 1, 2, 13, 4]
