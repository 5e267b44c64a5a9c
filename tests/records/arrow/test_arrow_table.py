"""Typed Arrow columns say what the stored bits mean: the same values, over the same bytes where they can be."""

import json
from pathlib import Path
from typing import Any

import duckdb
import ml_dtypes
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.faults.children import same
from tests.records.format.test_fields import DTYPES, every_bit
from tests.slow import either

import warmstore as ws
from warmstore.errors import UnsupportedType
from warmstore.records.arrow import arrow_table
from warmstore.records.arrow.arrow_schema import VariableShapeTensorType, typed_schema, variable_shape_tensor
from warmstore.records.arrow.arrow_table import typed_table
from warmstore.records.format.fields import field_has_bytes, fields_from_json, numpy_dtype

FINE = {"D": np.int64(1), "h": np.int64(3600), "m": np.int64(60)}


def element_bits(flat: pa.Array, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The values of a flat column of elements in the field's dtype, whatever Arrow type they have."""
    kind = flat.type
    if pa.types.is_boolean(kind):
        return np.array(flat.to_pylist(), bool)
    if pa.types.is_temporal(kind):
        if pa.types.is_date32(kind):
            flat = flat.cast(pa.int32()).cast(pa.int64())
            factor = 1
        else:
            unit, _ = np.datetime_data(dtype)
            factor = {"h": 3600, "m": 60, "D": 86400}.get(unit, 1)
            flat = flat.cast(pa.int64())
        none = np.array([value is None for value in flat.to_pylist()], bool)
        ticks = np.array(flat.fill_null(0).to_pylist(), np.int64) // factor
        ticks[none] = np.iinfo(np.int64).min  # NaT
        return ticks.view(dtype)
    array = np.frombuffer(flat.buffers()[1], np.uint8) if len(flat) else np.zeros(0, np.uint8)
    width = kind.bit_width // 8
    return array[flat.offset * width : (flat.offset + len(flat)) * width].view(dtype)


def values_of(column: pa.ChunkedArray, field: Any) -> list[Any]:
    """Each value of a typed column as `gather` gives it, None where null."""
    values: list[Any] = []
    for chunk in column.chunks:
        for at in range(len(chunk)):
            values.append(value_of(chunk.slice(at, 1), field))
    return values


def value_of(cell: pa.Array, field: Any) -> Any:
    if isinstance(field, ws.Array):
        scalar = not isinstance(cell.type, pa.FixedShapeTensorType)
        nat = field.numpy.kind in "mM" and scalar
        if cell.null_count and not nat:
            return None
        if cell.null_count and pa.types.is_integer(cell.type):
            return None
        flat = cell if scalar else cell.storage.flatten()
        return element_bits(flat, field.numpy).reshape(field.shape)
    if cell.null_count:
        return None
    if isinstance(field, ws.Ragged):
        struct = cell.storage
        data, shape = struct.field("data"), struct.field("shape")
        sizes = shape.flatten().to_pylist()[: field.ndim]
        return element_bits(data.flatten(), numpy_dtype(field.dtype)).reshape(sizes)
    value = cell[0].as_py()
    return json.loads(value) if isinstance(field, ws.Json) else value


def assert_same(table: pa.Table, store: ws.RecordStore) -> None:
    """The values of a table are what `gather` gives; NaT of scalars and absent ones are both null."""
    table.validate(full=True)
    for name, field in store.fields.items():
        present = store.present(name)
        expected = store.gather(slice(None), [name])[name]
        for at, value in enumerate(values_of(table[name], field)):
            if not present[at]:
                times = isinstance(field, ws.Array) and field.numpy.kind in "mM" and not field.shape
                assert value is None or (times and np.isnat(value)), (name, at)
            elif isinstance(field, ws.Array | ws.Ragged):
                found = np.ma.getdata(expected)[at] if isinstance(field, ws.Array) else expected[at]
                assert same(np.asarray(value), np.asarray(found)), (name, at)
            else:
                assert value == (bytes(expected[at]) if isinstance(field, ws.Bytes) else expected[at])


def in_range(dtype: str, bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Times that are made coarser or finer must fit."""
    if np.dtype(bits.dtype).kind in "mM" and np.datetime_data(bits.dtype)[0] in FINE:
        return (bits.view(np.int64) % (1 << 30)).view(bits.dtype)
    return bits


def example(field: Any, count: int, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    if isinstance(field, ws.Array):
        values = in_range(field.dtype, every_bit(field.dtype, count, int(np.prod(field.shape))))
        values = values.reshape(count, *field.shape)
        if field.numpy.kind in "mM" and values.size:
            values.reshape(-1)[0] = np.array("NaT", values.dtype)
        return list(values)
    if isinstance(field, ws.Ragged):
        flat = in_range(field.dtype, every_bit(field.dtype, 1, 60)[0])
        shapes = [tuple(rng.integers(0, 3, field.ndim)) for _ in range(count)]
        return [flat[: int(np.prod(shape))].reshape(shape) for shape in shapes]
    made = {
        ws.Bytes: lambda at: bytes([at]) * int(rng.integers(0, 5)),
        ws.Text: lambda at: "é" * int(rng.integers(0, 5)),
        ws.Json: lambda at: [None, at, {"a": "b"}, "x"][at % 4],
    }
    return [made[type(field)](at) for at in range(count)]


CODECS = st.sampled_from(["raw", "raw", "zstd", "lz4", "deflate"])
ANY_FIELD = (
    st.builds(ws.Array, st.sampled_from(DTYPES), st.sampled_from([(), (1,), (3,), (2, 5), (2, 0)]), CODECS)
    | st.builds(ws.Ragged, st.sampled_from(DTYPES), st.integers(1, 3), CODECS)
    | st.builds(ws.Bytes, CODECS)
    | st.builds(ws.Text, CODECS)
    | st.builds(ws.Json, CODECS)
)


@given(
    fields=st.lists(ANY_FIELD, min_size=1, max_size=3),
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
    edited=st.booleans(),
)
@settings(max_examples=either(80, 250))
def test_values_are_those_of_gather(
    tmp_path_factory: pytest.TempPathFactory, fields: list[Any], counts: list[int], seed: int, edited: bool
) -> None:
    rng = np.random.default_rng(seed)
    named = {f"f{at}": field for at, field in enumerate(fields)}
    with ws.RecordStore.create(tmp_path_factory.mktemp("s") / "s", named) as store:
        for count in counts:
            if not count:
                continue
            batch = {}
            for name, field in named.items():
                values = example(field, count, seed)
                gone = rng.random(count) < rng.choice([0, 0.4])
                if isinstance(field, ws.Json):
                    batch[name] = [
                        np.ma.masked if absent else value for absent, value in zip(gone, values, strict=True)
                    ]
                else:
                    batch[name] = [None if absent else value for absent, value in zip(gone, values, strict=True)]
            store.extend(batch)
            store.flush()
        if edited and len(store) > 3:
            store[0] = store[2]
            store.delete(1)
        table = store.to_arrow()
        assert table.schema.equals(typed_schema(named), check_metadata=True)
        assert_same(table, store)
        assert_same(table.combine_chunks(), store)
        if len(store) > 4:
            cut = store.to_arrow()  # slices that begin within a byte of the bitmap
            stored = store._session.generation.to_arrow()
            (batch,) = stored.combine_chunks().to_batches()
            with_bytes = {name: field for name, field in named.items() if field_has_bytes(field)}
            tail = typed_table(pa.Table.from_batches([batch.slice(3)]), with_bytes)
            for name, field in with_bytes.items():
                found, whole = values_of(tail[name], field), values_of(cut[name], field)[3:]
                assert len(found) == len(whole)
                for one, other in zip(found, whole, strict=True):
                    assert same(one, other) if isinstance(one, np.ndarray) else one == other


TYPES = {
    ws.Array("bool"): pa.bool_(),
    ws.Array("bool", (2,)): pa.fixed_shape_tensor(pa.bool_(), (2,)),
    ws.Array("float16"): pa.float16(),
    ws.Array("uint8", (2, 3)): pa.fixed_shape_tensor(pa.uint8(), (2, 3)),
    ws.Array("M8[s]"): pa.timestamp("s"),
    ws.Array("M8[ns]", (2,)): pa.fixed_shape_tensor(pa.timestamp("ns"), (2,)),
    ws.Array("M8[D]"): pa.date32(),
    ws.Array("M8[h]"): pa.timestamp("s"),
    ws.Array("M8[m]"): pa.timestamp("s"),
    ws.Array("M8[M]"): pa.int64(),
    ws.Array("M8[W]"): pa.int64(),
    ws.Array("M8[25s]"): pa.int64(),
    ws.Array("M8[ps]", (2,)): pa.fixed_shape_tensor(pa.int64(), (2,)),
    ws.Array("m8[us]"): pa.duration("us"),
    ws.Array("m8[D]"): pa.duration("s"),
    ws.Array("m8[Y]"): pa.int64(),
    ws.Array("timedelta64"): pa.int64(),
    ws.Array("complex64"): pa.fixed_shape_tensor(pa.float32(), (2,)),
    ws.Array("complex128", (3,)): pa.fixed_shape_tensor(pa.float64(), (3, 2)),
    ws.Array("bfloat16"): pa.uint16(),
    ws.Array("float8_e5m2", (2,)): pa.fixed_shape_tensor(pa.uint8(), (2,)),
    ws.Array("float32", (2,), "zstd"): pa.fixed_shape_tensor(pa.float32(), (2,)),
    ws.Ragged("float32", 2): variable_shape_tensor(pa.float32(), 2),
    ws.Ragged("bool"): variable_shape_tensor(pa.bool_(), 1),
    ws.Ragged("complex64", 2): variable_shape_tensor(pa.float32(), 2, (2,)),
    ws.Ragged("M8[D]"): variable_shape_tensor(pa.date32(), 1),
    ws.Bytes("lz4"): pa.large_binary(),
    ws.Text(): pa.large_string(),
    ws.Json("zstd"): pa.large_string(),
}


@pytest.mark.parametrize("field", TYPES, ids=str)
def test_types(field: Any) -> None:
    (column,) = typed_schema({"x": field})
    assert column.type == TYPES[field]
    assert column.nullable
    described = json.loads(column.metadata[b"warmstore"])
    assert fields_from_json([{"name": "x", **described}])["x"] == field


@pytest.mark.parametrize(
    "field",
    [
        *(ws.Array("float32"), ws.Array("float16", (3,)), ws.Array("M8[us]"), ws.Array("m8[s]", (2,))),
        *(ws.Array("complex64"), ws.Array("complex128", (2,)), ws.Array("bfloat16", (4,)), ws.Array("M8[25s]")),
        *(ws.Ragged("int16", 2), ws.Ragged("complex64"), ws.Ragged("M8[ns]"), ws.Bytes(), ws.Text(), ws.Json()),
    ],
    ids=str,
)
def test_values_lie_where_they_are_stored(tmp_path: Path, field: Any) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": field})
    store.extend({"x": [None, *example(field, 20, 1)]})
    store.flush()
    (stored,) = store._session.generation.to_arrow().to_batches()
    (typed,) = store.to_arrow().to_batches()
    addresses = {buffer.address for buffer in stored.column("x").buffers() if buffer is not None}
    values = [buffer for buffer in typed.column("x").buffers() if buffer is not None][-1]
    if isinstance(field, ws.Ragged):
        values = typed.column("x").storage.field("data").values.buffers()[1]
    assert values.address in addresses


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (ws.Array("M8[D]"), np.datetime64(1 << 31, "D")),
        (ws.Array("M8[h]", (2,)), np.array([0, 1 << 60], "M8[h]")),
        (ws.Ragged("m8[D]"), np.array([1, -(1 << 60)], "m8[D]")),
        (ws.Array("M8[D]", (3,), "zstd"), np.array([0, 1, -(1 << 40)], "M8[D]")),
    ],
    ids=str,
)
def test_a_time_out_of_range_is_refused_by_name(tmp_path: Path, field: Any, value: Any) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": field, "y": ws.Array("int8")})
    store.extend({"x": [np.zeros_like(value), None, value], "y": [1, 2, 3]})
    store.flush()
    with pytest.raises(UnsupportedType, match=r"field 'x': .* in record 2 of a batch is out of range for Arrow's"):
        store.to_arrow()
    assert store.to_arrow(fields=["y"])["y"].to_pylist() == [1, 2, 3]


def test_values_of_no_bytes_are_tensors_without_elements(tmp_path: Path) -> None:
    fields = {"x": ws.Array("int8", (2, 0)), "y": ws.Array("int8"), "z": ws.Array("complex64", (0,), "zstd")}
    store = ws.RecordStore.create(tmp_path / "s", fields)
    assert store.to_arrow().schema == typed_schema(fields)
    for part in ([None, np.zeros((2, 0), np.int8)], [np.zeros((2, 0), np.int8), None]):
        store.extend({"x": part, "y": [1, 2], "z": np.zeros((2, 0), np.complex64)})
        store.flush()
    for _ in range(2):
        table = store.to_arrow()
        assert table.schema == typed_schema(fields)
        assert_same(table, store)
        assert store.to_arrow(fields=["x"], checksums=True)["x"].to_pylist() == table["x"].to_pylist()
        store.delete(0)
    assert table["x"].to_pylist() == [None, [], []]
    tensors = table
    assert tensors is table
    assert duckdb.sql("select x, z from tensors where y = 1").fetchall() == [((), ())]
    stored = store._session.generation.to_arrow()
    with pytest.raises(UnsupportedType, match=r"field 'x' .*take no bytes"):
        typed_table(stored, fields)


def test_fields_are_chosen_by_name_and_pending_records_left_out(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"label": ws.Array("int8"), "text": ws.Text()})
    assert store.to_arrow().num_rows == 0
    store.append({"label": 1, "text": "a"})
    store.flush()
    store.append({"label": 2, "text": "b"})
    assert store.to_arrow(fields=["text", "label"]).to_pydict() == {"text": ["a"], "label": [1]}
    checked = store.to_arrow(checksums=True, verify=False)
    assert checked.schema.names == ["label", "label::xxh3", "text", "text::xxh3"]
    assert checked["text::xxh3"].type == pa.uint64()
    with pytest.raises(KeyError, match="did you mean 'label'"):
        store.to_arrow(fields=["lable"])


def test_batches_of_too_many_elements_are_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Ragged("int8")})
    values = [np.arange(at, dtype=np.int8) for at in range(20)]
    store.extend({"x": values})
    store.flush()
    monkeypatch.setattr(arrow_table, "_LIST_ITEMS", 50)
    table = store.to_arrow()
    assert table["x"].num_chunks > 3
    assert_same(table, store)
    monkeypatch.setattr(arrow_table, "_LIST_ITEMS", 15)
    with pytest.raises(UnsupportedType, match="field 'x' holds 16 elements in 1 records"):
        store.to_arrow()


def test_a_size_that_no_tensor_of_arrow_has(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Ragged("int8", 2)})
    store.extend({"x": [np.zeros((0, 1), np.int8), np.zeros((0, 1 << 31), np.int8)]})
    store.flush()
    with pytest.raises(UnsupportedType, match=r"record 1 of a batch has the shape \(0, 2147483648\)"):
        store.to_arrow()


READ = {
    "flag": ws.Array("bool"),
    "flags": ws.Array("bool", (2,)),
    "when": ws.Array("M8[us]"),
    "day": ws.Array("M8[D]"),
    "took": ws.Array("m8[ms]"),
    "wave": ws.Array("complex64"),
    "half": ws.Array("bfloat16"),
    "points": ws.Ragged("float32", 2),
    "text": ws.Text("zstd"),
    "blob": ws.Bytes(),
    "image": ws.Array("uint8", (2, 2), "lz4"),
}
ROWS: dict[str, Any] = {
    "flag": [True, False, None],
    "flags": [np.array([True, False]), None, np.array([False, False])],
    "when": np.array(["2020-01-02T03:04:05", "NaT", "1969-12-31"], "M8[us]"),
    "day": np.array(["2020-01-02", "1969-12-31", "NaT"], "M8[D]"),
    "took": np.array([1500, -1, 0], "m8[ms]"),
    "wave": np.array([1 + 2j, 0, -1j], np.complex64),
    "half": np.array([1, 2, 3], ml_dtypes.bfloat16),
    "points": [np.array([[1, 2], [3, 4]], np.float32), None, np.zeros((0, 2), np.float32)],
    "text": ["é", None, ""],
    "blob": [b"a", b"", None],
    "image": [np.array([[1, 2], [3, 4]], np.uint8), None, np.zeros((2, 2), np.uint8)],
}


@pytest.fixture(params=["as it is", "edited"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> pa.Table:
    store = ws.RecordStore.create(tmp_path / "s", READ)
    store.extend(ROWS)
    if request.param == "edited":
        store.append({"text": "gone"})
        store.update(0, {"text": "é"})
        store.delete(3)
    store.flush()
    return store.to_arrow()


EXPECTED = {
    "flag": [True, False, None],
    "flags": [[True, False], None, [False, False]],
    "day": ["2020-01-02", "1969-12-31", None],
    "when": ["2020-01-02 03:04:05", None, "1969-12-31 00:00:00"],
    "took": [1.5, -0.001, 0.0],
    "wave": [[1.0, 2.0], [0.0, 0.0], [-0.0, -1.0]],
    "half": [0x3F80, 0x4000, 0x4040],
    "points": [{"data": [1.0, 2.0, 3.0, 4.0], "shape": [2, 2]}, None, {"data": [], "shape": [0, 2]}],
    "text": ["é", None, ""],
    "blob": [b"a", b"", None],
    "image": [[1, 2, 3, 4], None, [0, 0, 0, 0]],
}


def plain(value: Any) -> Any:
    """What a reader gives as Python has it."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | np.ndarray | pl.Series):
        return [plain(inner) for inner in value]
    if hasattr(value, "total_seconds"):
        return value.total_seconds()
    return str(value) if hasattr(value, "year") else value


def test_pyarrow_reads_it(table: pa.Table) -> None:
    assert {name: plain(table[name].to_pylist()) for name in EXPECTED} == EXPECTED


def test_polars_reads_it(table: pa.Table) -> None:
    frame = pl.DataFrame(pl.from_arrow(table))
    assert {name: plain(frame[name].to_list()) for name in EXPECTED} == EXPECTED
    assert frame["when"].dtype == pl.Datetime("us")
    assert frame.filter(pl.col("flag"))["text"].to_list() == ["é"]


def test_duckdb_reads_it(table: pa.Table) -> None:
    config = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    with duckdb.connect(config=config) as connection:
        connection.register("records", table)
        for name, expected in EXPECTED.items():
            assert plain([row[0] for row in connection.sql(f'select "{name}" from records').fetchall()]) == expected
        assert connection.sql("select text from records where flag").fetchall() == [("é",)]
        assert connection.sql("select typeof(day) from records").fetchall()[0] == ("DATE",)


def test_pandas_reads_it(table: pa.Table) -> None:
    frame = table.to_pandas()
    assert frame["took"].dt.total_seconds().tolist() == pytest.approx(EXPECTED["took"])
    assert frame["half"].tolist() == EXPECTED["half"]
    assert [None if value is None else value.tolist() for value in frame["image"]] == EXPECTED["image"]
    assert frame["when"].isna().tolist() == [False, True, False]
    assert [value is None for value in frame["points"]] == [False, True, False]
    assert frame["points"][0]["shape"].tolist() == [2, 2]


def test_it_survives_a_file(table: pa.Table, tmp_path: Path) -> None:
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    back = pa.ipc.open_file(tmp_path / "t.arrow").read_all()
    assert back.schema.equals(table.schema, check_metadata=True)
    assert back["points"].type.extension_name == "arrow.variable_shape_tensor"
    assert back.equals(table)


def test_the_type_for_a_pyarrow_without_it(tmp_path: Path) -> None:
    kind = VariableShapeTensorType(pa.float32(), 3, [None, None, 2])
    assert (kind.ndim, kind.value_type, kind.extension_name) == (3, pa.float32(), "arrow.variable_shape_tensor")
    assert json.loads(kind.__arrow_ext_serialize__()) == {"uniform_shape": [None, None, 2]}
    back = VariableShapeTensorType.__arrow_ext_deserialize__(kind.storage_type, kind.__arrow_ext_serialize__())
    assert back == kind
    assert back.__arrow_ext_serialize__() == kind.__arrow_ext_serialize__()
    assert kind.storage_type == variable_shape_tensor(pa.float32(), 2, (2,)).storage_type
    assert VariableShapeTensorType.__arrow_ext_deserialize__(kind.storage_type, b"").ndim == 3


def test_a_table_of_no_batches(tmp_path: Path) -> None:
    store = ws.RecordStore.create(tmp_path / "s", READ)
    stored = store._session.generation.to_arrow()
    for table in (stored, stored.combine_chunks()):
        assert typed_table(table, store.fields).schema == typed_schema(READ)
    empty = pa.RecordBatch.from_pylist([], schema=stored.schema)
    assert typed_table(pa.Table.from_batches([empty]), store.fields).num_rows == 0


def test_a_column_whose_values_begin_later() -> None:
    fields = {"x": ws.Array("bool", (2,)), "y": ws.Array("complex64", (2,))}
    flags, waves = np.arange(8, dtype=np.uint8) % 3 % 2, np.arange(8, dtype=np.uint64)
    columns = [
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(kind, (2,)), pa.FixedSizeListArray.from_arrays(pa.array(flat, kind).slice(2), 2)
        )
        for kind, flat in ((pa.uint8(), flags), (pa.uint64(), waves))
    ]
    batch = pa.RecordBatch.from_arrays(columns, names=["x", "y"]).slice(1)
    typed = typed_table(pa.Table.from_batches([batch]), fields).combine_chunks()
    assert typed.column("x").to_pylist() == flags[4:].astype(bool).reshape(-1, 2).tolist()
    assert typed.column("y").chunk(0).storage.flatten().to_numpy().view(np.uint64).tolist() == waves[4:].tolist()
