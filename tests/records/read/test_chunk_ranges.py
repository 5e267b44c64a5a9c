"""Ranges of positions by chunk, and Arrow tables of some records."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import warmstore as ws

FIELDS = {"n": ws.Array("int64"), "r": ws.Ragged("float32", 2), "b": ws.Bytes("zstd"), "t": ws.Text()}


def make(path: Path, chunks: list[int]) -> ws.RecordStore:
    store = ws.RecordStore.create(path, FIELDS)
    for rows in chunks:
        first = len(store)
        for at in range(first, first + rows):
            values = {"r": np.full((at % 3, 2), at, np.float32), "b": b"b" * at, "t": f"{at}"}
            store.append({"n": at, **(values if at % 5 else {})})
        store.seal()
    return store


def bounds(ranges: list[range]) -> list[int]:
    assert all(part.step == 1 and len(part) for part in ranges)
    assert all(one.stop == other.start for one, other in pairwise(ranges))
    return [0, *(part.stop for part in ranges)]


def test_ranges_end_with_chunks(tmp_path: Path) -> None:
    store = make(tmp_path / "s", [10, 20, 30, 40])
    assert bounds(store.chunk_ranges()) == [0, 10, 30, 60, 100]
    assert bounds(store.chunk_ranges(1)) == [0, 100]
    assert bounds(store.chunk_ranges(2)) == [0, 60, 100]  # 50 is moved to the nearest end
    assert bounds(store.chunk_ranges(4)) == [0, 30, 50, 75, 100]  # 25 is moved; none is near 50 and 75
    assert len(store.chunk_ranges(1000)) == 100
    with pytest.raises(ValueError, match="at least 1"):
        store.chunk_ranges(0)


def test_ranges_of_stores_without_records_and_after_edits(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "empty", FIELDS) as empty:
        assert empty.chunk_ranges() == []
        assert empty.chunk_ranges(3) == []
    store = make(tmp_path / "s", [10, 20, 30])
    store.delete(list(range(35)))
    assert bounds(store.chunk_ranges())[-1] == 25
    tables = [store.to_arrow(part, fields=["n"]) for part in store.chunk_ranges(4)]
    assert pa.concat_tables(tables)["n"].to_pylist() == store["n"][:].tolist()


def test_a_table_of_some_records_is_that_part_of_the_whole(tmp_path: Path) -> None:
    store = make(tmp_path / "s", [10, 20])
    whole = store.to_arrow(fields=["t", "n", "r", "b"])
    rows = whole.to_pylist()
    for index in (range(5, 17), [29, 0, 0, 5], slice(3, 9), np.arange(30) % 2 == 0, []):
        some = store.to_arrow(index, fields=["t", "n", "r", "b"])
        assert some.schema == whole.schema
        assert some.to_pylist() == [
            rows[at] for at in np.arange(30)[np.array(index, int) if isinstance(index, list) else index]
        ]
    with pytest.raises(ws.PositionError):
        store.to_arrow([30])
    with pytest.raises(KeyError):
        store.to_arrow([0], fields=["x"])
    with pytest.raises(ValueError, match="checksums"):
        store.to_arrow([0], checksums=True)


def test_a_table_of_some_records_reads_and_checks_no_others(tmp_path: Path) -> None:
    store = make(tmp_path / "s", [10, 10])
    store.close()
    chunk = tmp_path / "s" / "g0001" / "000001.arrow"
    data = bytearray(chunk.read_bytes())
    at = data.index(np.arange(10, 20).tobytes())
    data[at + 8] ^= 1  # the number of record 11
    chunk.write_bytes(data)
    with ws.RecordStore.open(tmp_path / "s") as reader:
        assert reader.to_arrow(range(11))["n"].to_pylist() == list(range(11))
        assert reader.to_arrow([11], fields=["t"])["t"].to_pylist() == ["11"]
        with pytest.raises(ws.Damaged):
            reader.to_arrow([11])
