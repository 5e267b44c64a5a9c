"""Exports: whole or not at all, checked on the way, any number of batches on the disk."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warmstore as ws
from warmstore.records.convert import export as export_module


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ws.RecordStore:
    """300 records in batches of very different sizes, read in spans of very few bytes."""
    module = __import__("sys").modules["warmstore.records.convert.export"]
    monkeypatch.setattr(module, "BATCH_BYTES", 700)
    monkeypatch.setattr(module, "BATCH_ROWS", 20)
    monkeypatch.setattr(module, "_REOPEN", 2000)
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
    assert table["p::shape"].to_pylist() == [[n % 3, 2] for n in range(300)]
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
    with ws.RecordStore.create(tmp_path / "empty", {"none": ws.Array("int8", 0)}) as other:
        other.append({"none": np.zeros(0, np.int8)})
        with pytest.raises(ws.UnsupportedType, match="takes no bytes"):
            ws.export(other, tmp_path / "x.arrow")
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


def test_the_module_is_not_hidden_by_its_function() -> None:
    assert export_module is ws.export
