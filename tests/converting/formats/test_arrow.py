"""Parquet and Arrow IPC: types to fields, nulls, many files, and the way out and back bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from tests.converting.common import ALL_DTYPES, ML_DTYPES, holds, present, small_batches
from tests.converting.formats.test_numpy import bits
from tests.faults.children import columns as records_of
from tests.slow import thinned

import warmstore as ws

Save = Callable[[pa.Table, Path], None]


def save_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=13)


def save_stream(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=11)


def save_file(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=11)


def save_feather(table: pa.Table, path: Path) -> None:
    pyarrow.feather.write_feather(table, str(path), chunksize=17)


SAVES = [(save_parquet, "t.parquet"), (save_stream, "t.arrow"), (save_file, "t.arrow"), (save_feather, "t.feather")]


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(monkeypatch)


@pytest.mark.parametrize(("save", "name"), SAVES)
def test_every_kind_of_column(tmp_path: Path, save: Save, name: str) -> None:
    count = 40
    images = bits("uint8", count, 3, 2)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(images)
    lists = [np.arange(n % 4, dtype=np.float32) for n in range(count)]
    points = [np.full((n % 3, 2), n, np.int16) for n in range(count)]
    table = pa.table(
        {
            "number": pa.array(range(count), pa.uint16()),
            "flag": pa.array([n % 3 == 0 for n in range(count)]),
            "half": pa.array(bits("float16", count)),
            "tensor": tensors,
            "pair": pa.array([[n, n + 1] for n in range(count)], pa.list_(pa.int32(), 2)),
            "list": pa.array(lists, pa.list_(pa.float32())),
            "flags": pa.array([[True] * (n % 3) for n in range(count)], pa.large_list(pa.bool_())),
            "points": pa.array([p.tolist() for p in points], pa.list_(pa.list_(pa.int16(), 2))),
            "blob": pa.array([bytes(n) for n in range(count)]),
            "fixed": pa.array([b"%03d" % n for n in range(count)], pa.binary(3)),
            "text": pa.array(["é" * n for n in range(count)]),
            "class": pa.array([f"c{n % 3}" for n in range(count)]).dictionary_encode(),
            "when": pa.array([n or None for n in range(count)], pa.timestamp("us")),
            "day": pa.array(range(count), pa.date32()),
            "struct": pa.array([{"a": n, "b": [None, f"{n}"]} for n in range(count)]),
            "map": pa.array([[("k", n)] for n in range(count)], pa.map_(pa.string(), pa.int64())),
        }
    )
    save(table, tmp_path / name)
    days = np.arange(count).astype("M8[D]")
    when = [None, *np.arange(count).astype("M8[us]")[1:]]
    with ws.convert(tmp_path / name, tmp_path / "store") as store:
        holds(
            store,
            {
                "number": np.arange(count, dtype=np.uint16),
                "flag": np.arange(count) % 3 == 0,
                "half": bits("float16", count),
                "tensor": images,
                "pair": np.stack([np.arange(count), np.arange(count) + 1], 1).astype(np.int32),
                "list": lists,
                "flags": [np.ones(n % 3, bool) for n in range(count)],
                "points": points,
                "blob": [memoryview(bytes(n)) for n in range(count)],
                "fixed": [memoryview(b"%03d" % n) for n in range(count)],
                "text": ["é" * n for n in range(count)],
                "class": [f"c{n % 3}" for n in range(count)],
                "when": when,
                "day": days,
                "struct": [{"a": n, "b": [None, f"{n}"]} for n in range(count)],
                "map": [[["k", n]] for n in range(count)],
            },
        )


@pytest.mark.parametrize("suffix", thinned(4, ["arrow", "parquet"]))
@pytest.mark.parametrize("dtype", [*ALL_DTYPES, *ML_DTYPES])
def test_out_and_back_bit_for_bit(tmp_path: Path, suffix: str, dtype: str) -> None:
    def some(*shape: int) -> Any:
        values = bits(dtype, *shape)
        return (values.view(np.int64) % (1 << 30)).view(dtype) if dtype == "M8[D]" else values  # Arrow's are 32 bits

    ragged = [some(n % 3, 2) for n in range(30)]
    lists = [some(n % 4) for n in range(30)]
    columns = {"one": some(30), "many": some(30, 2, 3), "ragged": ragged, "list": lists}
    fields = {
        "one": ws.Array(dtype),
        "many": ws.Array(dtype, (2, 3)),
        "ragged": ws.Ragged(dtype, 2),
        "list": ws.Ragged(dtype),
    }
    ws.convert([columns], tmp_path / "store", fields=fields, batched=True).close()
    ws.export(tmp_path / "store", tmp_path / f"x.{suffix}")
    with ws.convert(tmp_path / f"x.{suffix}", tmp_path / "back") as store:
        assert store.fields == fields
        holds(store, columns)


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_an_export_has_values_only_and_other_readers_understand_it(tmp_path: Path, suffix: str) -> None:
    polars = pytest.importorskip("polars")
    from tests.faults.children import FIELDS

    fields = {name: field for name, field in FIELDS.items() if name != "nothing"}
    given = {name: values for name, values in records_of(range(50)).items() if name in fields}
    ws.convert([given], tmp_path / "store", fields=fields, batched=True).close()
    path = ws.export(tmp_path / "store", tmp_path / f"x.{suffix}")
    table = pq.read_table(path) if suffix == "parquet" else pa.ipc.open_file(path).read_all()
    assert table.schema.names == list(fields)
    assert table["blob"].to_pylist() == given["blob"]
    assert table["text"].to_pylist() == given["text"]
    assert table["points"].to_pylist() == [
        {"data": value.reshape(-1).tolist(), "shape": list(value.shape)} for value in given["points"]
    ]
    frame = polars.read_parquet(path) if suffix == "parquet" else polars.read_ipc(path)
    assert frame["number"].to_list() == list(range(50))
    with ws.convert(path, tmp_path / "back") as store:
        assert store.fields == fields
        holds(store, given)


@pytest.mark.parametrize(("save", "name"), SAVES)
def test_nulls_become_absent(tmp_path: Path, save: Save, name: str) -> None:
    count = 40
    gone = [n % 3 == 1 for n in range(count)]

    def column(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array([None if gone[n] else value for n, value in enumerate(values)], kind)

    columns = {
        "int": column(range(count), pa.int64()),
        "flag": column([n % 2 == 0 for n in range(count)], pa.bool_()),
        "half": column([np.float16(n) for n in range(count)], pa.float16()),
        "when": column(range(count), pa.timestamp("us")),
        "day": column(range(count), pa.date32()),
        "pair": column([[n, n] for n in range(count)], pa.list_(pa.int16(), 2)),
        "list": column([[n] * (n % 4) for n in range(count)], pa.list_(pa.float32())),
        "lists": column([[[n, n]] * (n % 4) for n in range(count)], pa.list_(pa.list_(pa.int8(), 2))),
        "blob": column([bytes(n) for n in range(count)], pa.binary()),
        "text": column([f"é{n}" for n in range(count)], pa.string()),
        "class": column([f"{n % 3}" for n in range(count)], pa.string()).dictionary_encode(),
        "struct": column([{"a": None, "b": n} for n in range(count)], pa.struct({"a": pa.int64(), "b": pa.int64()})),
        "nothing": pa.nulls(count),
    }
    if name == "t.feather":
        del columns["half"]
    save(pa.table(columns), tmp_path / name)
    with ws.convert(tmp_path / name, tmp_path / "store") as store:
        expected = {field: [not absent for absent in gone] for field in columns} | {"nothing": [False] * count}
        assert present(store) == expected
        values = store[:]
        for at in range(count):
            if not gone[at]:
                assert values["int"][at] == at
                assert values["when"][at] == np.datetime64(at, "us")
                assert values["list"][at].tolist() == [at] * (at % 4)
                assert values["lists"][at].tolist() == [[at, at]] * (at % 4)
                assert values["pair"][at].tolist() == [at, at]
                assert values["text"][at] == f"é{at}"
                assert values["struct"][at] == {"a": None, "b": at}


@pytest.mark.parametrize(("save", "name"), SAVES)
def test_nulls_inside_of_values_name_their_column_and_json_keeps_them(tmp_path: Path, save: Save, name: str) -> None:
    for values in ([[1, None]], [[[1], [None]]]):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        save(pa.table({"fine": range(len(values)), "holes": values}), folder / name)
        ragged = {"holes": ws.Ragged("int64", 1 + isinstance(values[0][0], list))}
        with pytest.raises(ws.BadSource, match=r"column 'holes' holds nulls.*ws\.Json\(\)"):
            ws.convert(folder / name, folder / "store", fields=ragged)
        assert not (folder / "store").exists()
        with ws.convert(folder / name, folder / "store", fields={"holes": ws.Json()}) as store:
            holds(store, {"holes": values})


def test_many_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        folder = tmp_path / "in" / f"sub{number}"
        folder.mkdir(parents=True)
        save_parquet(pa.table({"x": np.arange(20) + 20 * number}), folder / f"part-{number}.parquet")
    (tmp_path / "in" / "_SUCCESS.parquet").write_text("not one")
    with ws.convert(tmp_path / "in", tmp_path / "store") as store:
        holds(store, {"x": np.arange(60)})
    with ws.convert(str(tmp_path / "in" / "sub[12]" / "*.parquet"), tmp_path / "some") as store:
        holds(store, {"x": np.arange(20, 60)})
    save_parquet(pa.table({"x": pa.array([1], pa.int32())}), tmp_path / "in" / "z.parquet")
    with pytest.raises(ws.BadSource, match=r"z\.parquet has other columns.*'x' is int32 instead of int64"):
        ws.convert(tmp_path / "in", tmp_path / "mixed")


def test_lists_of_one_length_may_become_an_array(tmp_path: Path) -> None:
    save_parquet(pa.table({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [[[1], [2]], [[3], [4]]]}), tmp_path / "t.parquet")
    fields = {"x": ws.Array("float64", 2), "y": ws.Array("int64", (2, 1))}
    with ws.convert(tmp_path / "t.parquet", tmp_path / "store", fields=fields) as store:
        holds(store, {"x": np.array([[1.0, 2.0], [3.0, 4.0]]), "y": np.array([[[1], [2]], [[3], [4]]])})
    with pytest.raises(ws.SchemaMismatch, match="'x' holds float64"):
        ws.convert(tmp_path / "t.parquet", tmp_path / "b", fields={"x": ws.Array("float32", 2)})
    with pytest.raises(ws.SchemaMismatch, match="not all of the shape"):
        ws.convert(tmp_path / "t.parquet", tmp_path / "b", fields={"x": ws.Array("float64", 3)})
    with ws.convert(tmp_path / "t.parquet", tmp_path / "c", fields={"y": ws.Ragged("int64", 2)}) as store:
        holds(store, {"y": [np.array([[1], [2]]), np.array([[3], [4]])]})


def test_what_no_field_holds_names_its_column(tmp_path: Path) -> None:
    from decimal import Decimal

    save_parquet(pa.table({"x": [1], "price": [Decimal("1.5")]}), tmp_path / "t.parquet")
    with pytest.raises(ws.UnsupportedType, match=r"column 'price' is decimal.*fields="):
        ws.convert(tmp_path / "t.parquet", tmp_path / "store")
    with ws.convert(tmp_path / "t.parquet", tmp_path / "store", fields=["x"]) as store:
        holds(store, {"x": np.array([1])})


def test_a_broken_file_is_a_bad_source(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing")
    (tmp_path / "b.arrow").write_bytes(b"ARROW1 nothing")
    (tmp_path / "c.arrow").write_bytes(b"")
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(ws.BadSource, match=path.name):
            ws.convert(path, tmp_path / "store")


def test_text_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(pa.binary(), 1, pa.array([b"\xff\xfe"]).buffers()).view(pa.string())
    save_file(pa.table({"x": bad}), tmp_path / "t.arrow")
    with pytest.raises(ws.BadSource, match="UTF"):
        ws.convert(tmp_path / "t.arrow", tmp_path / "store")


def test_slices_of_larger_arrays_keep_their_own_rows(tmp_path: Path) -> None:
    lists = pa.array([[n] * (n % 5) for n in range(100)])
    table = pa.table({"x": lists, "t": [f"{n}" for n in range(100)]}).slice(37, 40)
    save_file(table, tmp_path / "t.arrow")
    with ws.convert(tmp_path / "t.arrow", tmp_path / "store") as store:
        expected: dict[str, Any] = {"x": [np.full(n % 5, n) for n in range(37, 77)]}
        holds(store, {**expected, "t": [f"{n}" for n in range(37, 77)]})
