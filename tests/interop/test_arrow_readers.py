"""Chunks and tables of a store as pyarrow, polars, DuckDB and pandas see them, without help from warmstore."""

import base64
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import duckdb
import lz4.block
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest
import zstandard
from tests.faults.children import FIELDS, columns, record

import warmstore as ws

NUMBERS = range(25)
RECORDS = [record(number) for number in NUMBERS]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of two batches in one sealed chunk."""
    with ws.RecordStore.create(tmp_path / "s", FIELDS) as store:
        store.extend(columns(NUMBERS[:20]))
        store.flush()
        store.extend(columns(NUMBERS[20:]))
    return tmp_path / "s"


def chunk_of(path: Path) -> Path:
    (chunk,) = path.rglob("*.arrow")
    return chunk


@pytest.fixture
def table(path: Path) -> pa.Table:
    return pa.ipc.open_file(chunk_of(path)).read_all()


@pytest.fixture
def duck() -> Any:
    """DuckDB that loads nothing from anywhere."""
    config = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    with duckdb.connect(config=config) as connection:
        yield connection


def bits(field: str) -> list[Any]:
    """Values as the numbers that lie in the file, flat."""
    dtype = np.uint16 if field == "half" else np.uint8
    return [one[field].reshape(-1).view(dtype).tolist() for one in RECORDS]


def test_pyarrow_reads_a_sealed_chunk(table: pa.Table) -> None:
    table.validate(full=True)
    assert table["number"].to_pylist() == list(NUMBERS)
    assert table["text"].to_pylist() == [one["text"] for one in RECORDS]
    assert table["blob"].to_pylist() == [one["blob"] for one in RECORDS]
    assert list(map(json.loads, table["tag"].to_pylist())) == [one["tag"] for one in RECORDS]
    assert table["image"].chunk(0).to_numpy_ndarray().tolist() == [one["image"].tolist() for one in RECORDS[:20]]
    assert table.schema.field("half").metadata == {
        b"warmstore": b'{"kind": "array", "dtype": "bfloat16", "shape": [2]}'
    }


def test_polars_reads_a_sealed_chunk(path: Path) -> None:
    frame = pl.read_ipc(chunk_of(path))
    assert frame["number"].to_list() == list(NUMBERS)
    assert frame["text"].to_list() == [one["text"] for one in RECORDS]
    assert frame["blob"].to_list() == [one["blob"] for one in RECORDS]
    assert frame["image"].to_list() == bits("image")
    assert frame["half"].to_list() == bits("half")
    points = [
        np.frombuffer(data, np.float32).reshape(shape).tolist()
        for data, shape in zip(frame["points"], frame["points::shape"].to_list(), strict=True)
    ]
    assert points == [one["points"].tolist() for one in RECORDS]
    lazy = pl.scan_ipc(chunk_of(path)).filter(pl.col("number") > 22).select("number", "text").collect()
    assert lazy.rows() == [(23, RECORDS[23]["text"]), (24, RECORDS[24]["text"])]


def test_duckdb_reads_a_sealed_chunk(table: pa.Table, duck: Any) -> None:
    rows = duck.sql(
        'select number, image, half, points, "points::shape", blob, text, tag from "table" order by number desc'
    ).fetchall()
    for number, image, half, points, shape, blob, text, tag in rows:
        expected = RECORDS[number]
        assert list(image) == bits("image")[number]
        assert list(half) == bits("half")[number]
        assert np.frombuffer(points, np.float32).reshape(shape).tolist() == expected["points"].tolist()
        assert (blob, text, json.loads(tag)) == (expected["blob"], expected["text"], expected["tag"])
    assert [row[0] for row in rows] == list(NUMBERS[::-1])


def test_duckdb_filters_chunks_while_it_reads_them(tmp_path: Path, duck: Any) -> None:
    """As a data set of files, of which only the wanted columns are read."""
    with ws.RecordStore.create(tmp_path / "s", FIELDS, chunk_size="12KB") as store:
        for first in range(0, 200, 20):
            store.extend(columns(range(first, first + 20)))
            store.flush()
    chunks = sorted((tmp_path / "s").rglob("*.arrow"))
    assert len(chunks) > 2
    photos = pyarrow.dataset.dataset(chunks, format="ipc")
    query = "select number, length(text) from photos where number % 50 = 3 order by number"
    duck.register("photos", photos)
    assert duck.sql(query).fetchall() == [(number, len(record(number)["text"])) for number in (3, 53, 103, 153)]
    assert duck.sql("select count(*), sum(number) from photos").fetchall() == [(200, sum(range(200)))]


def test_no_import_of_warmstore_is_needed(path: Path) -> None:
    script = """
import json, sys
import duckdb, polars, pyarrow
chunk = sys.argv[1]
chunk_table = pyarrow.ipc.open_file(chunk).read_all()
frame = polars.read_ipc(chunk)
found = [
    chunk_table["number"].to_pylist(),
    frame["number"].to_list(),
    [row[0] for row in duckdb.sql("select number from chunk_table order by number").fetchall()],
]
assert not any(name.startswith("warmstore") for name in sys.modules)
print(json.dumps(found))
"""
    command = [sys.executable, "-I", "-W", "error", "-c", script, str(chunk_of(path))]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == [list(NUMBERS)] * 3


@pytest.fixture
def edited(tmp_path: Path) -> ws.RecordStore:
    """Its order is not that of the file, and some values are absent."""
    fields = {"number": ws.Array("int64"), "text": ws.Text(), "image": ws.Array("uint8", (3, 2))}
    store = ws.RecordStore.create(tmp_path / "edited", fields)
    store.extend({name: [one[name] for one in RECORDS] for name in fields})
    store.update([3, 4], {"text": ["three", None]})
    store.delete([0, 7])
    return store


def wanted(store: ws.RecordStore) -> list[tuple[int, Any]]:
    values = store.gather(slice(None), ["number", "text"])
    rows = list(zip(values["number"].tolist(), values["text"], strict=True))
    assert rows[:5] == [
        (24, RECORDS[24]["text"]),
        *((at, RECORDS[at]["text"]) for at in (1, 2)),
        (3, "three"),
        (4, None),
    ]
    assert len(rows) == 23
    return rows


QUERY = "select number, text from records where text is null or number >= 3 order by number"


def test_sql_of_duckdb_over_a_store(edited: ws.RecordStore, duck: Any) -> None:
    duck.register("records", edited.to_arrow())
    assert duck.sql("select number, text from records").fetchall() == wanted(edited)
    assert duck.sql(QUERY).fetchall() == sorted(row for row in wanted(edited) if row[0] >= 3)
    images = duck.sql("select number, image from records").fetchall()
    assert all(list(image) == bits("image")[number] for number, image in images)
    back = duck.sql("select number, text from records").to_arrow_table()
    assert back.to_pydict() == edited.to_arrow().select(["number", "text"]).to_pydict()


def test_sql_of_polars_over_a_store(edited: ws.RecordStore) -> None:
    frame = pl.DataFrame(pl.from_arrow(edited.to_arrow()))
    assert frame.select("number", "text").rows() == wanted(edited)
    found = pl.SQLContext(records=frame).execute(QUERY, eager=True)
    assert found.rows() == sorted(row for row in wanted(edited) if row[0] >= 3)


def test_pandas_and_sql_over_it(edited: ws.RecordStore, duck: Any) -> None:
    frame = edited.to_arrow().to_pandas()
    rows = wanted(edited)
    assert frame["number"].tolist() == [number for number, _ in rows]
    assert [None if pd.isna(text) else text for text in frame["text"]] == [text for _, text in rows]
    assert all(
        image.tolist() == bits("image")[number] for number, image in zip(frame["number"], frame["image"], strict=True)
    )
    duck.register("records", frame[["number", "text"]])
    assert duck.sql(QUERY).fetchall() == sorted(row for row in rows if row[0] >= 3)


def test_compressed_values_are_what_their_libraries_made(tmp_path: Path, duck: Any) -> None:
    """Each value is a zlib stream, a zstd frame, or an lz4 block behind its length; the dictionary is in store.json."""
    texts = [f"record {number} of a few that resemble each other " * 3 for number in range(300)]
    dictionary = ws.train_dictionary([text.encode() for text in texts], 256)
    fields = {
        "deflate": ws.Text("deflate"),
        "zstd": ws.Text("zstd"),
        "trained": ws.Text("zstd", dictionary=dictionary),
        "lz4": ws.Text("lz4"),
        "array": ws.Array("int16", (4, 4), "zstd"),
    }
    arrays = np.arange(300 * 16, dtype=np.int16).reshape(300, 4, 4)
    with ws.RecordStore.create(tmp_path / "s", fields) as store:
        store.extend({**dict.fromkeys(list(fields)[:4], texts), "array": arrays})
    table = pa.ipc.open_file(chunk_of(tmp_path / "s")).read_all()
    described = {one["name"]: one for one in json.loads((tmp_path / "s/store.json").read_bytes())["fields"]}
    trained = zstandard.ZstdCompressionDict(base64.b64decode(described["trained"]["dictionary"]))
    decompress = {
        "deflate": zlib.decompress,
        "zstd": zstandard.ZstdDecompressor().decompress,
        "trained": zstandard.ZstdDecompressor(dict_data=trained).decompress,
        "lz4": lz4.block.decompress,
    }
    frame = pl.read_ipc(chunk_of(tmp_path / "s"))
    for name, function in decompress.items():
        values = {
            "pyarrow": table[name].to_pylist(),
            "polars": frame[name].to_list(),
            "duckdb": [value for (value,) in duck.sql(f'select {name} from "table"').fetchall()],
        }
        for reader, found in values.items():
            assert [function(value).decode() for value in found] == texts, (reader, name)
    values = [np.frombuffer(decompress["zstd"](value), np.int16).reshape(4, 4) for value in frame["array"]]
    assert np.array_equal(values, arrays)
