"""Updates and deletes against a plain list, with every codec; rebalance, changed fields, repair."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.seam import FullDisk

import warmstore as ws
from warmstore.errors import Closed, Damaged, PositionError, SchemaMismatch, StoreExists, WriteFailed
from warmstore.records import store_session

CODECS = ["raw", "deflate:9", "zstd", "lz4"]


def record(number: int) -> dict[str, Any]:
    return {
        "array": np.full(4, number, np.float32),
        "bytes": b"%d" % number * number,
        "ragged": np.arange(number % 5, dtype=np.int16),
        "json": {"number": number},
        "text": "é" * number,
    }


def fields(codec: str) -> dict[str, Any]:
    return {
        "array": ws.Array("float32", (4,), codec),
        "bytes": ws.Bytes(codec),
        "ragged": ws.Ragged("int16", 1, codec),
        "json": ws.Json(codec),
        "text": ws.Text(codec),
    }


def check(store: ws.RecordStore, expected: list[dict[str, Any]]) -> None:
    assert len(store) == len(expected)
    together = store.gather(slice(None))
    for at, wanted in enumerate(expected):
        one = store[at]
        for name, value in wanted.items():
            assert same(one[name], value), (at, name)
            if value is not None:
                assert same(together[name][at], value), (at, name)


def same(found: Any, wanted: Any) -> bool:
    if wanted is None:
        return found is None
    if isinstance(wanted, np.ndarray):
        return found.dtype == wanted.dtype and np.array_equal(found, wanted)
    return bool(found == wanted)


def remove(expected: list[dict[str, Any]], positions: set[int]) -> None:
    length = len(expected) - len(positions)
    survivors = [at for at in range(length, len(expected)) if at not in positions]
    for hole in sorted(at for at in positions if at < length):
        expected[hole] = expected[survivors.pop()]
    del expected[length:]


@pytest.mark.parametrize("codec", CODECS)
def test_edits_equal_those_of_a_list(tmp_path: Path, codec: str) -> None:
    store = ws.RecordStore.create(tmp_path / "s", fields(codec))
    expected = [record(number) for number in range(15)]
    for one in expected:
        store.append(one)
    store.flush()
    store.append({"bytes": b"alone"})
    expected.append({**dict.fromkeys(fields(codec)), "bytes": b"alone"})
    check(store, expected)
    reader = ws.RecordStore.open(tmp_path / "s")
    store.update(3, record(33))
    expected[3] = record(33)
    store.update([1, 2, 1], {"text": ["a", "b", "c"]})
    expected[1]["text"], expected[2]["text"] = "c", "b"
    check(store, expected)
    for positions in ({0}, {0, 5, 12, 13}, {2}):
        store.delete(sorted(positions))
        remove(expected, positions)
        check(store, expected)
    store.append(record(8))
    expected.append(record(8))
    store.delete(-1)
    expected.pop()
    store.append(record(9))
    expected.append(record(9))
    store.close()
    reader.refresh()
    check(reader, expected)
    check(ws.RecordStore.open(tmp_path / "s"), expected)
    assert reader.to_arrow().num_rows == len(expected)


@pytest.mark.parametrize("codec", CODECS)
def test_rebalance_keeps_every_record_and_gives_room_back(tmp_path: Path, codec: str) -> None:
    store = ws.RecordStore.create(tmp_path / "s", fields(codec))
    other = ws.RecordStore.open(tmp_path / "s", "a")
    reader = ws.RecordStore.open(tmp_path / "s")
    expected = [record(number) for number in range(40)]
    for at in range(0, 40, 8):
        for one in expected[at : at + 8]:
            store.append(one)
        store.flush()
    store.delete(range(0, 40, 2))
    remove(expected, set(range(0, 40, 2)))
    store.update(0, {"bytes": None})
    expected[0]["bytes"] = None
    other.append(record(7))
    done = store.rebalance()
    assert (done.records, done.rows_before) == (20, 41)
    assert done.bytes_after < done.bytes_before
    assert [path.name for path in (tmp_path / "s").glob("g*")] == ["g0002"]
    other.flush()  # its writer meets the closed log and goes on in the new generation
    expected.append(record(7))
    for each in (store, other, reader):
        each.refresh()
        check(each, expected)
    assert store.verify().ok
    store.close()
    other.close()
    check(ws.RecordStore.open(tmp_path / "s"), expected)


def test_a_rebalance_that_died_before_its_end_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ws.RecordStore.create(tmp_path / "s", fields("raw"))
    expected = [record(number) for number in range(10)]
    for one in expected:
        store.append(one)
    store.flush()
    with monkeypatch.context() as patch:
        # After the log was closed and before store.json names the next generation.
        patch.setattr(
            "warmstore.records.maintenance.rewrite.write_manifest", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            store.rebalance()
    other = ws.RecordStore.open(tmp_path / "s", "a")
    check(other, expected)
    other.append(record(3))
    other.flush()
    store.refresh()
    check(store, [*expected, record(3)])
    store.rebalance()
    other.refresh()
    check(other, [*expected, record(3)])


def test_readers_gather_while_the_store_is_rebalanced(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64", (64,))})
    store.extend({"x": np.repeat(np.arange(2000), 64).reshape(2000, 64)})
    store.flush()
    reader = ws.RecordStore.open(tmp_path / "s")
    failures: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        rng = np.random.default_rng(0)
        try:
            while not stop.is_set():
                positions = rng.integers(0, 2000, 256)
                assert (reader.gather(positions)["x"][:, 0] == positions).all()
                reader.refresh()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(5):
        store.rebalance()
    stop.set()
    thread.join()
    assert not failures


def test_an_edit_by_another_process_is_not_overlooked(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")})
    store.extend({"x": np.arange(10)})
    store.flush()
    other = ws.RecordStore.open(tmp_path / "s", "a")
    store.delete(0)
    with pytest.raises(PositionError, match="find the position again"):
        other.delete(9)  # there is no record 9 any more, and record 0 is another
    other.refresh()
    other.delete(8)
    assert sorted(other["x"][:]) == [1, 2, 3, 4, 5, 6, 7, 9]


@pytest.mark.parametrize("index", [10, -11, [3, 10]])
def test_positions_outside_change_nothing(tmp_path: Path, index: Any) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")})
    store.extend({"x": np.arange(10)})
    with pytest.raises(PositionError):
        store.delete(index)
    with pytest.raises(PositionError):
        store.update(index, {"x": 1} if isinstance(index, int) else {"x": [1, 2]})
    with pytest.raises(SchemaMismatch):
        store.update([1, 2], {"x": [1, 2, 3]})
    assert store["x"][:].tolist() == list(range(10))


def test_fields_are_added_mapped_dropped_and_filtered(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("float32", (4,)), "text": ws.Text()})
    store.extend({"x": np.arange(40, dtype=np.float32).reshape(10, 4), "text": [str(at) for at in range(10)]})
    reader = ws.RecordStore.open(tmp_path / "s")
    store.add_field("number", ws.Array("int64"), np.arange(10))
    store.add_field("later", ws.Bytes("zstd"))
    store.map_field("x", lambda batch: (2 * batch["x"]).astype("float64"), ws.Array("float64", (4,)))
    store.drop_field("text")
    reader.refresh()
    assert list(reader.fields) == ["x", "number", "later"]
    assert not reader.present("later").any()
    assert reader["x"][3].tolist() == [24.0, 26.0, 28.0, 30.0]
    even = store.filter(tmp_path / "even", lambda batch: batch["number"] % 2 == 0, fields=["number"])
    assert even["number"][:].tolist() == [0, 2, 4, 6, 8]
    assert store.filter(tmp_path / "some", [3, 1])["number"][:].tolist() == [3, 1]
    with pytest.raises(SchemaMismatch, match="already"):
        store.add_field("number", ws.Array("int64"), np.arange(10))
    with pytest.raises(SchemaMismatch, match="one value for each"):
        store.add_field("short", ws.Array("int64"), np.arange(9))
    assert store.verify().ok


def test_verify_names_what_is_damaged_and_repair_keeps_the_rest(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64", (8,)), "y": ws.Array("int64")})
    store.extend({"x": np.repeat(np.arange(100), 8).reshape(100, 8), "y": np.arange(100)})
    store.close()
    chunk = tmp_path / "s" / "g0001" / "000000.arrow"
    data = bytearray(chunk.read_bytes())
    at = data.index(np.full(8, 42).tobytes())
    data[at] ^= 1
    chunk.write_bytes(data)
    store = ws.RecordStore.open(tmp_path / "s", "a")
    report = store.verify()
    assert [(problem.chunk, problem.field, problem.positions) for problem in report.problems] == [
        ("000000.arrow", "x", (42,))
    ]
    assert "at positions 42" in str(report)
    repaired = store.verify(repair=True)
    assert repaired.repaired
    assert repaired.bytes == report.bytes == len(data)  # of what was read, which is gone now
    assert store.verify().ok
    assert store[42] == {"x": None, "y": 42}
    assert store["x"][[41, 43]][:, 0].tolist() == [41, 43]


def test_verify_keeps_what_another_has_annotated(tmp_path: Path) -> None:
    """A whole store was damaged to it, and repaired to the metadata that this object had read."""
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")}, metadata={"a": 1}) as store:
        with ws.RecordStore.open(tmp_path / "s", "a") as other:
            other.annotate("note", "hello")
        assert store.verify(progress=False).ok
        (tmp_path / "s" / "g0001" / "store.json.copy").write_bytes(b"")
        assert store.verify(repair=True, progress=False).files == ("g0001/store.json.copy",)
        assert store.verify(progress=False).ok
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert again.metadata == {"a": 1, "note": "hello"}


def test_verify_repairs_a_description_whose_copy_is_damaged_too(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")}, metadata={"a": 1}) as store:
        store.append({"x": 1})
        store.flush()
        for path in ("store.json", "g0001/store.json.copy"):
            (tmp_path / "s" / path).write_bytes(b"")
        assert store.verify(repair=True, progress=False).files == ("store.json", "g0001/store.json.copy")
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert again.metadata == {"a": 1}


SALVAGED_EDITS: dict[str, Callable[[ws.RecordStore], object]] = {
    "update": lambda store: store.update(0, {"x": 7}),
    "delete": lambda store: store.delete(0),
    "rebalance": lambda store: store.rebalance(progress=False),
    "add": lambda store: store.add_field("y", ws.Array("int64"), progress=False),
    "drop": lambda store: store.drop_field("z", progress=False),
    "map": lambda store: store.map_field("x", lambda batch: batch["x"] + 1, progress=False),
}


@pytest.mark.parametrize("name", SALVAGED_EDITS)
def test_a_salvaged_store_is_repaired_before_it_is_edited(tmp_path: Path, name: str) -> None:
    """Updates and deletes returned, and were skipped like the damaged one; rewrites gave up the edits unasked."""
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64"), "z": ws.Array("int8")}) as store:
        store.extend({"x": [0, 1, 2], "z": [0, 1, 2]})
        store.update(1, {"x": 9})
    for file in ("numbers", "numbers.copy"):
        (tmp_path / "s" / "g0001" / file).write_bytes(bytes(8))
    with ws.RecordStore.open(tmp_path / "s", "a", salvage=True) as store:
        with pytest.raises(Damaged, match=r"verify\(repair=True\)"):
            SALVAGED_EDITS[name](store)
        assert store["x"][:3].tolist() == [0, 1, 2]
        store.verify(repair=True, progress=False)
        assert store["x"][:3].tolist() == [0, 1, 2]
        SALVAGED_EDITS[name](store)
        changed = store[:]
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert {key: value.tolist() for key, value in again[:].items()} == {
            key: value.tolist() for key, value in changed.items()
        }
        assert again.verify(progress=False).ok


def test_a_trained_dictionary_makes_small_records_smaller(tmp_path: Path) -> None:
    values = [b'{"name": "sample %d", "label": %d, "split": "train"}' % (at, at % 10) for at in range(2000)]
    dictionary = ws.train_dictionary(values, "4KB")
    plain = ws.RecordStore.create(tmp_path / "plain", {"x": ws.Bytes("zstd")})
    trained = ws.RecordStore.create(tmp_path / "trained", {"x": ws.Bytes("zstd", dictionary=dictionary)})
    for store in (plain, trained):
        store.extend({"x": values})
        store.close()
    again = ws.RecordStore.open(tmp_path / "trained")
    assert [bytes(value) for value in again["x"][:]] == values
    assert again.nbytes < 0.8 * plain.nbytes


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_a_dictionary_of_other_bytes(tmp_path: Path, kind: Any) -> None:
    """create took it, and no flush of the store succeeded."""
    given = kind(b"a dictionary of some words" * 9)
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Bytes("zstd", dictionary=given)}) as store:
        store.extend({"x": [b"some words"]})
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert bytes(again[0]["x"]) == b"some words"
        assert again.fields["x"].dictionary == bytes(given)
    with pytest.raises(SchemaMismatch, match="a dictionary is bytes, not str"):
        ws.Bytes("zstd", dictionary="some words")  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", ["gzip", "zstd:99", "raw:1x", "", 3])
def test_unknown_codecs_are_refused(codec: Any) -> None:
    with pytest.raises(SchemaMismatch, match="codec is"):
        ws.Bytes(codec)


def test_to_arrow_follows_no_damaged_offset(tmp_path: Path) -> None:
    """It copies rows where there were edits; pyarrow does not look where it copies from."""
    with ws.RecordStore.create(tmp_path / "s", {"text": ws.Text()}) as store:
        store.extend({"text": ["abc"] * 3})
        store.update(1, {"text": "def"})
        assert store.to_arrow()["text"].to_pylist() == ["abc", "def", "abc"]
    (path,) = (tmp_path / "s").rglob("*.arrow")
    offsets = np.array([0, 3, 6, 9])
    data = path.read_bytes()
    assert data.count(offsets.tobytes()) == 1
    offsets[2] = 1 << 40
    path.write_bytes(data.replace(np.array([0, 3, 6, 9]).tobytes(), offsets.tobytes()))
    store = ws.RecordStore.open(tmp_path / "s")
    with pytest.raises(Damaged, match="the batch at byte"):
        store.to_arrow()
    with pytest.raises(Damaged, match="some values are damaged"):
        store.to_arrow(verify=False)
    assert store[0] == {"text": "abc"}


FILTERED = {
    "x": ws.Array("float32", (2,)),
    "empty": ws.Array("int8", (0,)),
    "points": ws.Ragged("int16", 2, "zstd"),
    "json": ws.Json(),
    "text": ws.Text("lz4"),
}


def test_a_filter_copies_values_as_they_are_stored(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", FILTERED)
    store.append({"json": None, "x": [1, 2], "points": np.zeros((0, 3), np.int16), "empty": []})
    store.append({"text": "", "json": [None]})
    store.append({"text": None})
    store.append({"text": "pending", "json": {"a": 1}})
    for kept in (store.filter(tmp_path / "all", slice(None)), store.filter(tmp_path / "f", lambda batch: [True] * 4)):
        assert len(kept) == 4
        for name in FILTERED:
            assert kept.present(name).tolist() == store.present(name).tolist()
        assert kept.present("json").tolist() == [True, True, False, True]
        assert kept["json"][:] == [None, [None], None, {"a": 1}]
        assert kept["points"][0].shape == (0, 3)
        assert kept.verify().ok
        kept.append({"text": "more"})
        kept.close()
    only = store.filter(tmp_path / "only", [2, 0], fields=["json"])
    assert list(only.fields) == ["json"]
    assert only.present("json").tolist() == [False, True]


def test_a_filter_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")})
    store.extend({"x": np.arange(10)})

    def stop(batch: dict[str, Any]) -> Any:
        raise KeyboardInterrupt

    def edit(batch: dict[str, Any]) -> Any:
        store.delete(0)
        return batch["x"] > 3

    for keep, error in ((stop, KeyboardInterrupt), (edit, PositionError), ([10], PositionError)):
        with pytest.raises(error):
            store.filter(tmp_path / "f", keep)
    with pytest.raises(SchemaMismatch, match="one bool per record"):
        store.filter(tmp_path / "f", lambda batch: batch["x"])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["s"]
    kept = store.filter(tmp_path / "f", lambda batch: batch["x"] > 3)
    assert sorted(kept["x"][:].tolist()) == [4, 5, 6, 7, 8, 9]
    with pytest.raises(StoreExists):
        store.filter(tmp_path / "f", [0])
    store.close()
    with pytest.raises(Closed):
        store.filter(tmp_path / "g", [0])


def test_a_filter_writes_large_batches_in_parts(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Bytes()})
    store.extend({"x": [bytes(1 << 20)] * 70 + [b"x"] * 100})
    kept = store.filter(tmp_path / "f", slice(None))
    assert len(kept) == 170
    assert kept._snapshot.batches == 2
    assert kept["x"][-1] == b"x"


def test_an_update_that_fails_behind_sealed_chunks_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first chunks are full and sealed, and no entry speaks of their rows: that is no damage."""
    monkeypatch.setattr(store_session, "BATCH_BYTES", 1)
    disk = FullDisk()
    fields = {"x": ws.Array("int64"), "y": ws.Text()}
    store = ws.RecordStore.create(tmp_path / "s", fields, chunk_size=1, files=disk)
    store.extend({"x": range(6), "y": ["a"] * 6})
    store.flush()
    for room in (1000, 5000, 9000):
        disk.room = room
        with pytest.raises(WriteFailed):
            store.update(range(6), {"x": range(10, 16)})
        disk.room = None
        for seen in (store, ws.RecordStore.open(tmp_path / "s")):
            assert seen["x"][:].tolist() == list(range(6))
            assert seen.verify(progress=False).ok
    store.update(range(6), {"x": range(10, 16)})
    store.delete(0)
    store.close()
    opened = ws.RecordStore.open(tmp_path / "s")
    assert opened["x"][:].tolist() == [15, 11, 12, 13, 14]
    assert opened.verify(progress=False).ok
