"""Typed columns come back as the fields they were: from tables, exports and chunks; and foreign tensors are fields."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.converting.common import holds, present
from tests.faults.children import same
from tests.records.arrow.test_arrow_table import ANY_FIELD, example
from tests.slow import either

import warmstore as ws
from warmstore.records.arrow.arrow_schema import variable_shape_tensor
from warmstore.records.format.fields import field_has_bytes

FIELDS = st.lists(ANY_FIELD, min_size=1, max_size=4)


def filled(path: Path, fields: list[Any], counts: list[int], seed: int) -> ws.RecordStore:
    """A store with these fields, a flush a count, some values absent and some times NaT."""
    rng = np.random.default_rng(seed)
    named = {f"f{at}": field for at, field in enumerate(fields)}
    store = ws.RecordStore.create(path, {**named, "last": ws.Array("int8")})
    for count in counts:
        batch: dict[str, Any] = {"last": np.zeros(count, np.int8)}
        for name, field in named.items():
            values = example(field, count, seed)
            nothing = np.ma.masked if isinstance(field, ws.Json) else None
            gone = rng.random(count) < rng.choice([0, 0.4])
            batch[name] = [nothing if absent else value for absent, value in zip(gone, values, strict=True)]
        store.extend(batch)
        store.flush()
    return store


def assert_equal(made: ws.RecordStore, store: ws.RecordStore) -> None:
    """Fields, presence and values, bit for bit."""
    assert made.fields == store.fields
    assert len(made) == len(store)
    assert present(made) == present(store)
    for name in store.fields:
        for at in range(len(store)):
            left, right = made[at][name], store[at][name]
            if isinstance(left, memoryview):
                left, right = bytes(left), bytes(right)
            assert same(left, right), (name, at, left, right)


@given(fields=FIELDS, counts=st.lists(st.integers(1, 9), min_size=1, max_size=3), seed=st.integers(0, 1000))
@settings(max_examples=either(6, 40))
def test_what_comes_back_is_what_was(
    tmp_path_factory: pytest.TempPathFactory, fields: list[Any], counts: list[int], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("s")
    with filled(folder / "store", fields, counts, seed) as store:
        with ws.convert(store.to_arrow(), folder / "table") as made:
            assert_equal(made, store)
        for suffix in ("arrow", "parquet"):
            ws.export(store, folder / f"x.{suffix}")
            with ws.convert(folder / f"x.{suffix}", folder / suffix) as made:
                assert_equal(made, store)
        table = store.to_arrow(checksums=True)
        with pa.ipc.new_file(folder / "t.arrow", table.schema) as writer:
            writer.write_table(table)
        with ws.convert(folder / "t.arrow", folder / "file") as made:
            assert_equal(made, store)
        store.seal()
        if all(map(field_has_bytes, fields)):
            with ws.convert(folder / "store" / "g0001" / "000000.arrow", folder / "chunk") as made:
                assert_equal(made, store)
    shutil.rmtree(folder)


def test_nat_below_nulls_counts_in_tables_only(tmp_path: Path) -> None:
    times = np.array(["NaT", "NaT", "2020-01-01", "NaT"], "M8[us]")
    with ws.RecordStore.create(tmp_path / "store", {"t": ws.Array("M8[us]")}) as store:
        store.extend({"t": [None, times[1], times[2], None]})
        store.flush()
        table = store.to_arrow()
        pq.write_table(table, tmp_path / "t.parquet")
        ws.export(store, tmp_path / "x.parquet")
    assert table["t"].null_count == 3
    with ws.convert(table, tmp_path / "table") as made:
        assert present(made) == {"t": [False, True, True, False]}
        assert np.isnat(made[1]["t"])
    with ws.convert(tmp_path / "t.parquet", tmp_path / "parquet") as made:
        assert present(made) == {"t": [False, False, True, False]}
    with ws.convert(tmp_path / "x.parquet", tmp_path / "export") as made:
        assert present(made) == {"t": [False, True, True, False]}


def test_a_trained_dictionary_comes_back_with_an_export_and_is_missing_in_a_chunk(tmp_path: Path) -> None:
    values = [b"many words, and all of them alike: %03d" % at for at in range(300)]
    fields = {"x": ws.Bytes("zstd", dictionary=ws.train_dictionary(values, "1KB"))}
    with ws.RecordStore.create(tmp_path / "store", fields) as store:
        store.extend({"x": values})
    ws.export(tmp_path / "store", tmp_path / "x.arrow")
    with ws.convert(tmp_path / "x.arrow", tmp_path / "back") as made:
        assert made.fields == fields
        assert [bytes(value) for value in made["x"][:]] == values
    with pytest.raises(ws.BadSource, match=r"column 'x' of a chunk.*trained dictionary"):
        ws.convert(tmp_path / "store" / "g0001" / "000000.arrow", tmp_path / "chunk")


def test_a_chunk_without_what_goes_with_its_columns_is_refused(tmp_path: Path) -> None:
    fields = {"p": ws.Ragged("int8"), "none": ws.Array("int8", (0,)), "x": ws.Array("int8")}
    with ws.RecordStore.create(tmp_path / "store", fields) as store:
        store.extend({"p": [np.arange(3, dtype=np.int8)], "none": [None], "x": [1]})
    chunk = tmp_path / "store" / "g0001" / "000000.arrow"
    with pytest.raises(ws.UnsupportedType, match=r"field 'none' .*does not show which of them are absent"):
        ws.convert(chunk, tmp_path / "chunk")
    with ws.convert(chunk, tmp_path / "some", fields=["p", "x"]) as made:
        holds(made, {"p": [np.arange(3, dtype=np.int8)], "x": np.ones(1, np.int8)})
    with pytest.raises(ws.SchemaMismatch, match=r"'p' is one of a chunk and holds Ragged.*cannot be read as Bytes"):
        ws.convert(chunk, tmp_path / "other", fields={"p": ws.Bytes()})
    with pa.ipc.open_file(chunk) as reader:
        table = reader.read_all()
    with pytest.raises(ws.UnsupportedType, match="'p' comes from a chunk, and 'p::shape', which belongs to it"):
        ws.convert(table.select(["p"]), tmp_path / "alone")


def test_a_changed_column_is_what_it_is_now(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "store", {"hour": ws.Array("M8[h]"), "x": ws.Array("int8")}) as store:
        store.extend({"hour": np.arange(3).astype("M8[h]"), "x": np.arange(3, dtype=np.int8)})
        store.flush()
        table = store.to_arrow()
    cast = table.set_column(1, table.schema.field("x").with_type(pa.int32()), table["x"].cast(pa.int32()))
    with ws.convert(cast, tmp_path / "cast") as made:
        assert made.fields == {"hour": ws.Array("M8[h]"), "x": ws.Array("int32")}
    odd = table.set_column(0, table.schema.field("hour"), [pa.array([0, 1, 3600], pa.timestamp("s"))])
    with pytest.raises(ws.BadSource, match=r"'hour' holds 1 seconds.*not a multiple of the unit of datetime64\[h\]"):
        ws.convert(odd, tmp_path / "odd")


@pytest.mark.parametrize("sizes", [(-1, -1), (-1, 2), (2, -1), (2, 2)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("int16", pa.int16()), ("bfloat16", pa.uint16()), ("complex64", pa.uint64()), ("M8[ns]", pa.timestamp("ns"))],
)
def test_nested_lists_hold_what_flat_lists_hold(
    dtype: str, kind: pa.DataType, sizes: tuple[int, int], tmp_path: Path
) -> None:
    numbers = np.array([16256, 1, 2, 16384, 5, 6, 7, 8]) + (1234567890123450000 if dtype == "M8[ns]" else 0)
    nested = numbers.reshape(2, 2, 2).tolist()
    column = pa.array([[[9, 9]] * 2, nested[0], None, nested[1]], pa.list_(pa.list_(kind, sizes[1]), sizes[0])).slice(1)
    table = pa.table({"flat": pa.array(numbers.reshape(2, 4).tolist(), pa.list_(kind)).take([0, None, 1]), "x": column})
    fields = {"flat": ws.Ragged(dtype), "x": ws.Ragged(dtype, 2)}
    with ws.convert(table, tmp_path / "store", fields=fields) as store:
        found = store["x"][:]
        assert found[1] is None
        for at in (0, 2):
            assert found[at].shape == (2, 2)
            assert found[at].tobytes() == store["flat"][at].tobytes()


def test_nested_lists_of_no_numbers_and_of_several_lengths(tmp_path: Path) -> None:
    kind = pa.list_(pa.list_(pa.list_(pa.int8())))
    table = pa.table({"x": pa.array([[], [[], []], [[[]], [[]]], [[[1, 2]], [[3, 4]]]], kind)})
    with ws.convert(table, tmp_path / "store", fields={"x": ws.Ragged("int8", 3)}) as store:
        assert [value.shape for value in store["x"][:]] == [(0, 0, 0), (2, 0, 0), (2, 1, 0), (2, 1, 2)]
        assert store["x"][3].tolist() == [[[1, 2]], [[3, 4]]]
    odd = pa.table({"x": pa.array([[[[1, 2]], [[3]]]], kind)})
    with pytest.raises(ws.SchemaMismatch, match="lengths 2 and 1, which is no array of"):
        ws.convert(odd, tmp_path / "odd", fields={"x": ws.Ragged("int8", 3)})
    for ndim in (1, 2, 4):
        with pytest.raises(ws.SchemaMismatch, match=f"3 dimensions; its field has {ndim}"):
            ws.convert(table, tmp_path / "other", fields={"x": ws.Ragged("int8", ndim)})


@pytest.mark.parametrize("suffix", ["arrow", "parquet", "memory"])
@pytest.mark.parametrize("registered", [True, False])
def test_foreign_variable_shape_tensors_are_ragged(tmp_path: Path, suffix: str, registered: bool) -> None:
    values = [np.arange(6, dtype=np.int16).reshape(2, 3), None, np.zeros((0, 3), np.int16)]
    kind = variable_shape_tensor(pa.int16(), 2)
    listed = [None if v is None else {"data": v.reshape(-1).tolist(), "shape": list(v.shape)} for v in values]
    storage = pa.array(listed, kind.storage_type)
    tensors = pa.ExtensionArray.from_storage(kind, storage) if registered else storage
    metadata = {"ARROW:extension:name": "arrow.variable_shape_tensor", "ARROW:extension:metadata": "{}"}
    schema = pa.schema([pa.field("x", tensors.type, metadata=None if registered else metadata)])
    table = pa.table([tensors], schema=schema)
    source: Any = table
    if suffix == "parquet":
        pq.write_table(table, source := tmp_path / "t.parquet")
    elif suffix == "arrow":
        source = tmp_path / "t.arrow"
        with pa.ipc.new_file(source, schema) as writer:
            writer.write_table(table)
    with ws.convert(source, tmp_path / "store") as store:
        assert store.fields == {"x": ws.Ragged("int16", 2)}
        holds(store, {"x": values})
    with ws.convert(table.slice(1), tmp_path / "tail") as store:
        holds(store, {"x": values[1:]})


def test_foreign_tensors_in_another_order_and_wrong_ones(tmp_path: Path) -> None:
    logical = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    kind = pa.fixed_shape_tensor(pa.int32(), (4, 3), permutation=[1, 0])
    physical = np.ascontiguousarray(logical.transpose(0, 2, 1)).reshape(-1)
    storage = pa.FixedSizeListArray.from_arrays(pa.array(physical), 12)
    table = pa.table({"x": pa.ExtensionArray.from_storage(kind, storage)})
    with ws.convert(table, tmp_path / "store") as store:
        assert store.fields == {"x": ws.Array("int32", (3, 4))}
        holds(store, {"x": logical})
    plain = variable_shape_tensor(pa.int32(), 2)
    wrong = pa.array([{"data": [1, 2, 3], "shape": [2, 2]}], plain.storage_type)
    with pytest.raises(ws.BadSource, match="'x': lists and the shapes beside them differ"):
        ws.convert(pa.table({"x": pa.ExtensionArray.from_storage(plain, wrong)}), tmp_path / "wrong")
    metadata = {
        "ARROW:extension:name": "arrow.variable_shape_tensor",
        "ARROW:extension:metadata": '{"permutation": [1, 0]}',
    }
    turned = pa.schema([pa.field("x", plain.storage_type, metadata=metadata)])
    with pytest.raises(
        ws.UnsupportedType, match=r"'x' holds tensors whose dimensions are stored in the order \[1, 0\]"
    ):
        ws.convert(pa.table([wrong], schema=turned), tmp_path / "turned")


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_damaged_typed_tensors_are_refused(tmp_path: Path, codec: str) -> None:
    field = ws.Ragged("complex64", codec=codec)
    with ws.RecordStore.create(tmp_path / "store", {"x": field}) as store:
        store.extend({"x": [np.ones(2, np.complex64)]})
        store.flush()
        table = store.to_arrow()
    (column,) = table["x"].chunks
    for shape in ([2, 3], [1, 2], [-2, -2]):
        struct = pa.array([{"data": [1.0, 0, 1, 0], "shape": shape}], column.type.storage_type)
        changed = table.set_column(0, table.schema.field("x"), [pa.ExtensionArray.from_storage(column.type, struct)])
        with pytest.raises(ws.BadSource, match="column 'x'"):
            ws.convert(changed, tmp_path / "bad")
    assert dataclasses.replace(field, codec="raw") == ws.Ragged("complex64")


VIEWS: dict[str, Any] = {
    "in order": ([0, 1, 3], [1, 2, 1], [False] * 3, [[1], [2, 3], [4]]),
    "out of order": ([2, 0, 1], [2, 2, 1], [False] * 3, [[3, 4], [1, 2], [2]]),
    "overlapping": ([0, 0, 1], [4, 3, 3], [False] * 3, [[1, 2, 3, 4], [1, 2, 3], [2, 3, 4]]),
    "null": ([2, 0, 1], [2, 2, 3], [False, True, False], [[3, 4], None, [2, 3, 4]]),
    "all null": ([0, 0, 0], [1, 1, 1], [True] * 3, [None] * 3),
    "equal": ([2, 0, 1], [2, 2, 2], [False] * 3, [[3, 4], [1, 2], [2, 3]]),
}


@pytest.mark.parametrize("kind", [pa.ListViewArray, pa.LargeListViewArray])
@pytest.mark.parametrize("name", VIEWS)
def test_list_views_hold_what_lists_hold(tmp_path: Path, kind: Any, name: str) -> None:
    starts, sizes, gone, expected = VIEWS[name]
    index: Any = pa.int32() if kind is pa.ListViewArray else pa.int64()

    def views(values: Any) -> Any:
        return kind.from_arrays(pa.array(starts, index), pa.array(sizes, index), values, mask=pa.array(gone))

    table = pa.table({"x": views(pa.array([1, 2, 3, 4], pa.int16())), "t": views(pa.array(["1", "2", "3", "4"]))})
    # Cut off, the first row leaves views that begin in the middle of their buffers.
    table = pa.concat_tables([table.slice(0, 1), table]).combine_chunks().slice(1)
    with ws.convert(table, tmp_path / "store") as store:
        assert store.fields == {"x": ws.Ragged("int16"), "t": ws.Json()}
        arrays = [None if value is None else np.array(value, np.int16) for value in expected]
        texts = [None if value is None else [str(number) for number in value] for value in expected]
        holds(store, {"x": arrays, "t": texts})


def test_nested_list_views_are_arrays(tmp_path: Path) -> None:
    kind = pa.list_view(pa.list_view(pa.int16()))
    table = pa.table({"x": pa.array([[[1, 2], [3, 4]], None, [[5, 6], [7, 8]]], kind)})
    values = [np.array([[1, 2], [3, 4]], np.int16), None, np.array([[5, 6], [7, 8]], np.int16)]
    for number, field in enumerate((ws.Ragged("int16", 2), ws.Array("int16", (2, 2)))):
        with ws.convert(table, tmp_path / str(number), fields={"x": field}) as store:
            holds(store, {"x": values})


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
@pytest.mark.parametrize(
    ("first", "other"),
    [
        (ws.Array("float8_e4m3fn"), ws.Array("float8_e5m2")),
        (ws.Array("float8_e4m3fn"), ws.Array("uint8")),
        (ws.Array("bfloat16"), ws.Array("uint16")),
        (ws.Array("float32", (2,)), ws.Array("complex64")),
        (ws.Text(), ws.Json()),
    ],
    ids=str,
)
def test_files_whose_equal_types_are_other_fields_are_refused(
    tmp_path: Path, suffix: str, first: Any, other: Any
) -> None:
    for name, field in (("1", first), ("2", other), ("3", dataclasses.replace(first, codec="zstd"))):
        with ws.RecordStore.create(tmp_path / name, {"x": field}) as store:
            store.extend({"x": example(field, 3, 0)})
        ws.export(tmp_path / name, tmp_path / f"{name}.{suffix}")
    for pair in ("12", "21"):
        with pytest.raises(ws.BadSource, match=r"other columns than the first file: 'x' is .* instead of "):
            ws.convert([tmp_path / f"{name}.{suffix}" for name in pair], tmp_path / "store")
    with ws.convert([tmp_path / f"{name}.{suffix}" for name in "13"], tmp_path / "store") as store:
        assert len(store) == 6


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_an_export_and_a_plain_file_of_the_same_fields_fit(tmp_path: Path, suffix: str) -> None:
    with ws.RecordStore.create(tmp_path / "in", {"x": ws.Array("int64")}) as store:
        store.extend({"x": [1, 2]})
    ws.export(tmp_path / "in", tmp_path / f"1.{suffix}")
    plain = pa.table({"x": pa.array([3, 4], pa.int64())})
    if suffix == "parquet":
        pq.write_table(plain, tmp_path / "2.parquet")
    else:
        with pa.ipc.new_file(tmp_path / "2.arrow", plain.schema) as writer:
            writer.write_table(plain)
    for number, order in enumerate(("12", "21")):
        with ws.convert([tmp_path / f"{name}.{suffix}" for name in order], tmp_path / f"{number}") as store:
            assert sorted(store[:]["x"].tolist()) == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
def test_views_of_text_and_bytes_may_have_nulls(tmp_path: Path, kind: Any) -> None:
    values = pa.array(["cut", "a", None, "too long for the view itself", "é"]).cast(kind).slice(1)
    with ws.convert(pa.table({"x": values}), tmp_path / "store") as store:
        holds(store, {"x": values.to_pylist()})
