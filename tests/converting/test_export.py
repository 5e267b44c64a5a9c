"""Exports: whole or not at all, checked on the way, any number of batches on the disk."""

import dataclasses
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.converting.common import holds, present
from tests.converting.formats.test_numpy import bits

import warmstore as ws
from warmstore.converting import export, record_source


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ws.RecordStore:
    """300 records in batches of very different sizes, read in spans of very few bytes."""
    monkeypatch.setattr(record_source, "BATCH_BYTES", 700)
    monkeypatch.setattr(record_source, "BATCH_ROWS", 20)
    monkeypatch.setattr(export, "_MAPPED", 2000)
    made = ws.RecordStore.create(
        tmp_path / "store", {"x": ws.Array("int64"), "t": ws.Text(), "p": ws.Ragged("int8", 2)}
    )
    at = 0
    for count in (1, 1, 1, 150, 2, 45, 100):
        numbers = range(at, at + count)
        made.extend(
            {
                "x": list(numbers),
                "t": ["é" * (n % 50) for n in numbers],
                "p": [np.ones((n % 3, 2), np.int8) for n in numbers],
            }
        )
        at += count
        if at < 300:
            made.flush()
    return made


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_all_records_come_in_order_and_pending_ones_too(store: ws.RecordStore, tmp_path: Path, suffix: str) -> None:
    path = ws.export(store, tmp_path / "new" / f"x.{suffix}")
    table = pa.ipc.open_file(path).read_all() if suffix == "arrow" else pq.read_table(path)
    assert table["x"].to_pylist() == list(range(300))
    assert table["t"].to_pylist() == ["é" * (n % 50) for n in range(300)]
    assert [value["shape"] for value in table["p"].to_pylist()] == [[n % 3, 2] for n in range(300)]
    store.close()


def test_a_target_that_is_there_stays(store: ws.RecordStore, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(b"mine")
    (tmp_path / "folder").mkdir()
    for target in ("x.npy", "folder"):
        with pytest.raises(ws.TargetExists, match="overwrite=True"):
            ws.export(store, tmp_path / target, fields=["x"])
    assert (tmp_path / "x.npy").read_bytes() == b"mine"
    ws.export(store, tmp_path / "x.npy", fields=["x"], overwrite=True)
    ws.export(store, tmp_path / "folder", fields=["x"], overwrite=True)
    for path in (tmp_path / "x.npy", tmp_path / "folder" / "x.npy"):
        assert np.array_equal(np.load(path), np.arange(300))
    store.close()


@pytest.mark.parametrize("link", [None, "gone", "another"])
def test_a_folder_replaces_a_file_or_a_link(store: ws.RecordStore, tmp_path: Path, link: str | None) -> None:
    (tmp_path / "another").mkdir()
    if link is None:
        (tmp_path / "target").write_bytes(b"mine")
    else:
        (tmp_path / "target").symlink_to(link)
    ws.export(store, tmp_path / "target", format="npy", fields=["x"], overwrite=True)
    assert np.array_equal(np.load(tmp_path / "target" / "x.npy"), np.arange(300))
    assert not (tmp_path / "target").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"store", "another", "target"}
    assert not list((tmp_path / "another").iterdir())
    store.close()


def test_a_name_in_capitals_is_that_of_a_file(store: ws.RecordStore, tmp_path: Path) -> None:
    assert np.array_equal(np.load(ws.export(store, tmp_path / "X.NPY", fields=["x"])), np.arange(300))
    store.close()


@pytest.mark.parametrize("target", ["store", ".", "store/g0001", "store/store.json", "link", "other"])
def test_stores_are_never_replaced(store: ws.RecordStore, tmp_path: Path, target: str) -> None:
    ws.RecordStore.create(tmp_path / "other", {"x": ws.Text()}).close()
    (tmp_path / "link").symlink_to("store")
    store.flush()
    with pytest.raises(ws.TargetExists, match="name another"):
        ws.export(store, tmp_path / target, format="npy", fields=["x"], overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"store", "other", "link"}
    assert store.verify(progress=False).ok
    store.close()


@pytest.mark.parametrize("target", ["store/x.parquet", "store/g0001/x.parquet", "store/new/x.parquet", "link/x.npy"])
def test_nothing_is_written_into_a_store(store: ws.RecordStore, tmp_path: Path, target: str) -> None:
    (tmp_path / "link").symlink_to("store")
    store.flush()
    before = {*tmp_path.rglob("*")}
    with pytest.raises(ws.TargetExists, match="lies in it"):
        ws.export(store, tmp_path / target, fields=["x"])
    assert {*tmp_path.rglob("*")} == before
    store.close()


@pytest.mark.parametrize("inside", ["notes.txt", "deeper/x.npy", ".hidden"])
def test_a_folder_with_other_things_than_exported_files_is_kept(
    store: ws.RecordStore, tmp_path: Path, inside: str
) -> None:
    ws.export(store, tmp_path / "folder", fields=["x"])
    (tmp_path / "folder" / inside).parent.mkdir(exist_ok=True)
    (tmp_path / "folder" / inside).write_bytes(b"mine")
    with pytest.raises(ws.TargetExists, match="Remove it yourself, or name another folder"):
        ws.export(store, tmp_path / "folder", fields=["x"], overwrite=True)
    assert (tmp_path / "folder" / inside).read_bytes() == b"mine"
    store.close()


def test_an_interrupt_leaves_the_old_export_or_the_new_one(
    store: ws.RecordStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws.export(store, tmp_path / "folder", fields=["x"])
    store.extend({"x": [300], "t": [""], "p": [np.zeros((0, 2), np.int8)]})
    plain = Path.rename

    def rename(self: Path, to: Path) -> Any:
        signal.raise_signal(signal.SIGINT)
        return plain(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        ws.export(store, tmp_path / "folder", fields=["x"], overwrite=True)
    monkeypatch.setattr(Path, "rename", _failing(plain))
    with pytest.raises(OSError, match="of this test"):
        ws.export(store, tmp_path / "folder", fields=["x"], overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "store"]
    assert len(np.load(tmp_path / "folder" / "x.npy")) == 301
    store.close()


def _failing(plain: Any) -> Any:
    """A rename that fails the second time."""
    calls: list[Path] = []

    def rename(self: Path, to: Path) -> Any:
        calls.append(to)
        if len(calls) == 2:
            raise OSError("of this test")
        return plain(self, to)

    return rename


def _replace(store: ws.RecordStore) -> None:
    store.close()
    store.path.rename(store.path.with_name("old"))
    ws.RecordStore.create(store.path, {"x": ws.Array("int64")}).close()


EDITS: dict[str, Any] = {
    "update": lambda store: store.update(slice(0, 300), {"x": np.arange(1000, 1300)}),
    "delete": lambda store: store.delete([0, 1]),
    "rewrite": lambda store: (store.delete(range(0, 300, 2)), store.rebalance(progress=False)),
    "replace": _replace,
}


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("edit", EDITS)
def test_all_records_are_those_of_one_moment(
    store: ws.RecordStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: str, is_open: bool
) -> None:
    store.flush()
    plain = export.TARGETS["npy"]

    def edited(draft: Path, single: bool, fields: Any, rows: int, blocks: Any) -> None:
        def more() -> Any:
            yield next(blocks)
            yield next(blocks)
            EDITS[edit](store)
            yield from blocks

        plain(draft, single, fields, rows, more())

    monkeypatch.setitem(export.TARGETS, "npy", edited)
    with ws.RecordStore.open(store.path) as reader:
        path = ws.export(reader if is_open else store.path, tmp_path / "x.npy", fields=["x"])
    assert np.load(path).tolist() == list(range(300))
    store.close()


def test_a_store_that_is_open_at_a_url_fetches_what_is_exported(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 1 << 60, (500, 1000))
    with ws.RecordStore.create(tmp_path / "store", {"x": ws.Array("int64", 1000)}) as store:
        store.extend({"x": values})
        store.push(f"file://{tmp_path}/remote", progress=False)
    with ws.RecordStore.open(f"file://{tmp_path}/remote", cache_dir=tmp_path / "copies") as remote:
        ws.export(remote, tmp_path / "x.npy")
    ws.export(f"file://{tmp_path}/remote", tmp_path / "y.npy")
    assert np.array_equal(np.load(tmp_path / "x.npy"), values)
    assert np.array_equal(np.load(tmp_path / "y.npy"), values)


def test_a_damaged_store_leaves_no_target(store: ws.RecordStore, tmp_path: Path) -> None:
    store.close()
    chunk = next((tmp_path / "store").rglob("*.arrow"))
    data = bytearray(chunk.read_bytes())
    position = data.rindex(b"\xa9" * 1)  # inside one of the texts
    data[position] ^= 1
    chunk.write_bytes(data)
    for target in ("x.parquet", "x.arrow"):
        with pytest.raises(ws.Damaged):
            ws.export(tmp_path / "store", tmp_path / target)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_what_cannot_be_exported_is_said(store: ws.RecordStore, tmp_path: Path) -> None:
    with pytest.raises(ws.SchemaMismatch, match=r"field 't' is Text.*\.npy holds Array fields only"):
        ws.export(store, tmp_path / "folder")
    with pytest.raises(ws.SchemaMismatch, match="no field 'y'"):
        ws.export(store, tmp_path / "x.npy", fields=["y"])
    with pytest.raises(
        ws.UnknownFormat, match=r"x\.csv' does not say the format; pass format=, one of npy, arrow, parquet"
    ):
        ws.export(store, tmp_path / "x.csv")
    with pytest.raises(ws.UnknownFormat, match="no format 'csv'"):
        ws.export(store, tmp_path / "x.csv", format="csv")
    with pytest.raises(ws.NotAStore):
        ws.export(tmp_path / "nothing", tmp_path / "x.npy")
    with ws.RecordStore.create(tmp_path / "far", {"day": ws.Array("M8[D]")}) as other:
        other.append({"day": np.datetime64(1 << 40, "D")})
        for target in ("x.arrow", "x.parquet"):
            with pytest.raises(ws.UnsupportedType, match=r"field 'day': .* is out of range for Arrow's date32"):
                ws.export(other, tmp_path / target)
    store.close()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("target", ["x.npy", "x.arrow", "x.parquet", "folder"])
def test_an_empty_store_is_an_empty_file(tmp_path: Path, target: str) -> None:
    ws.RecordStore.create(tmp_path / "store", {"x": ws.Array("int64", 3)}).close()
    path = ws.export(tmp_path / "store", tmp_path / target)
    if target.endswith("arrow"):
        assert pa.ipc.open_file(path).read_all().num_rows == 0
    elif target.endswith("parquet"):
        assert pq.read_table(path).num_rows == 0
    else:
        assert np.load(path if path.is_file() else path / "x.npy").shape == (0, 3)


KINDS: dict[str, Any] = {
    "int": (ws.Array("int64"), [1, 2, 3]),
    "flag": (ws.Array("bool"), [True, False, True]),
    "brain": (ws.Array("bfloat16"), bits("bfloat16", 3)),
    "time": (ws.Array("M8[us]"), np.array(["2026-01-01", "NaT", "1960-01-01"], "M8[us]")),
    "day": (ws.Array("M8[D]"), np.array(["2026-01-01", "NaT", "1960-01-01"], "M8[D]")),
    "span": (ws.Array("m8[ms]"), np.array([1, "NaT", -1], "m8[ms]")),
    "complex": (ws.Array("complex128", (2,)), bits("complex128", 3, 2)),
    "tensor": (ws.Array("float32", (2, 3)), bits("float32", 3, 2, 3)),
    "list": (ws.Ragged("int16"), [np.arange(n, dtype=np.int16) for n in range(3)]),
    "points": (ws.Ragged("float32", 2), [np.full((n, 2), n, np.float32) for n in range(3)]),
    "blob": (ws.Bytes(), [b"", b"a", b"bc"]),
    "text": (ws.Text(), ["", "null", "é"]),
    "json": (ws.Json(), [None, {"a": None}, "null"]),
}


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("gone", [0b010, 0b101, 0b111, 0b000])
def test_absent_values_come_back(tmp_path: Path, suffix: str, codec: str, gone: int) -> None:
    there = [not gone >> at & 1 for at in range(3)]
    fields = {name: dataclasses.replace(field, codec=codec) for name, (field, _) in KINDS.items()}
    with ws.RecordStore.create(tmp_path / "store", {**fields, "all": ws.Array("int8")}) as store:
        for at in range(3):
            record = {name: values[at] for name, (_, values) in KINDS.items()} if there[at] else {}
            store.append({**record, "all": at})
    ws.export(tmp_path / "store", tmp_path / f"x.{suffix}")
    with ws.convert(tmp_path / f"x.{suffix}", tmp_path / "back") as back:
        kept = {
            name: values if all(there) else [v if there[at] else None for at, v in enumerate(values)]
            for name, (_, values) in KINDS.items()
        }
        assert present(back) == dict.fromkeys(KINDS, there) | {"all": [True] * 3}
        holds(back, {**kept, "all": np.arange(3, dtype=np.int8)})


def test_absent_values_are_no_zeros_in_npy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_source, "BATCH_ROWS", 4)
    with ws.RecordStore.create(tmp_path / "store", {"x": ws.Array("int8"), "none": ws.Array("int8", (0,))}) as store:
        store.extend({"x": np.arange(10, dtype=np.int8), "none": np.zeros((10, 0), np.int8)})
        store.extend({"x": [None], "none": [None]})
    for name in ("x", "none"):
        with pytest.raises(
            ws.SchemaMismatch, match=f"field '{name}' has records without a value, the first at position 10,"
        ):
            ws.export(tmp_path / "store", tmp_path / "x.npy", fields=[name])
    assert not (tmp_path / "x.npy").exists()


@pytest.mark.parametrize("source", ["s3://b/{0..9}.npy", ["s3://b/*.npy"], "s3://me:secret@b/x.parquet?token=secret"])
def test_a_url_is_no_source(tmp_path: Path, source: Any) -> None:
    with pytest.raises(ws.NoSource, match=r"s3://b/\S* is a URL.*RecordStore\.open") as raised:
        ws.convert(source, tmp_path / "new")
    assert "secret" not in str(raised.value)


def test_a_url_is_no_target(store: ws.RecordStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store.flush()
    with pytest.raises(ws.ReadOnly, match=r"'s3://bucket/x\.parquet' is a URL"):
        ws.export(store, "s3://bucket/x.parquet")
    with pytest.raises(ws.ReadOnly, match="'s3://bucket/x' is a URL"):
        ws.convert({"x": [1]}, "s3://bucket/x")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    store.close()
