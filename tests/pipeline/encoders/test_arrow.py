"""Arrow data comes back with types, values, nulls, metadata, dictionaries and chunks."""

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import warmstore as ws
from warmstore.pipeline.tiers.flattening import flatten, to_bytes
from warmstore.pipeline.tiers.unflattening import from_bytes


class Celsius(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(pa.float64(), "warmstore.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> "Celsius":
        return cls()


def back(value: Any) -> Any:
    return from_bytes(to_bytes(*flatten(value)))


FIELD = pa.field("a", pa.int8(), nullable=False, metadata={"m": "1"})
STRUCT = pa.struct([FIELD, pa.field("b", pa.list_(pa.string()))])
PLACES = pa.array([0, 0], pa.int32())
SIDES = pa.array([0, 1], pa.int8())

ARRAYS = [
    pa.array([1, None, 3]),
    pa.array([1.5, float("nan"), -0.0, None]),
    pa.array([True, None, False]),
    pa.array(["a", None, "ü", ""]),
    pa.array([b"a", b"", None], pa.large_binary()),
    pa.array([b"ab", None], pa.binary(2)),
    pa.array(["a string that is no part of its view", None, "b"], pa.string_view()),
    pa.array([[1, None], None, []]),
    pa.array([[1], [2, 3], None], pa.list_view(pa.int8())),
    pa.array([[1, 2], None], pa.list_(pa.float32(), 2)),
    pa.array([{"a": 1, "b": ["x"]}, None, {"a": 2, "b": None}], STRUCT),
    pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
    pa.array([decimal.Decimal("1.25"), None]),
    pa.array([datetime.datetime(2020, 1, 1), None], pa.timestamp("ns", "Europe/Berlin")),
    pa.array([datetime.timedelta(1), None]),
    pa.array([], pa.string()),
    pa.nulls(3),
    pa.nulls(3, pa.int64()),
    pa.array(["b", "a", None, "b"]).dictionary_encode(),
    pa.DictionaryArray.from_arrays(pa.array([1, None, 1], pa.int8()), ["never", "x"], ordered=True),
    pa.array([["b"], ["a", "b"]], pa.list_(pa.dictionary(pa.int16(), pa.string()))),
    pa.RunEndEncodedArray.from_arrays([2, 5], [1.5, None]),
    pa.UnionArray.from_sparse(SIDES, [pa.array([1, 2]), pa.array(["a", "b"])]),
    pa.UnionArray.from_dense(SIDES, PLACES, [pa.array([1]), pa.array(["b"])]),
    pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16, None], pa.binary(16))),
    pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(8.0).reshape(2, 2, 2)),
]


def listed(array: Any) -> Any:
    """The values of an array as Python objects, of which NaN equals NaN."""
    return repr(array.to_pylist()) if not isinstance(array.type, pa.FixedShapeTensorType) else array.storage.to_pylist()


def same(first: Any, second: Any) -> bool:
    return (
        type(first) is type(second)
        and first.type == second.type
        and first.type.equals(second.type, check_metadata=True)
        and listed(first) == listed(second)
        and (not isinstance(first, pa.DictionaryArray) or first.dictionary.equals(second.dictionary))
    )


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type)[:30])
def test_arrays_slices_and_scalars(array: Any) -> None:
    slices = [array, array[1:], array[:1], array[:0]]
    made, chunked = back([slices, pa.chunked_array([array])])
    for found, wanted in zip(made, slices, strict=True):
        found.validate(full=True)
        assert same(found, wanted)
    assert same(chunked.chunk(0), array)
    for scalar in array:
        found = back(scalar)
        assert type(found) is type(scalar)
        assert found.type == scalar.type
        assert str(found) == str(scalar)


def test_a_slice_is_kept_without_its_parent() -> None:
    array = pa.array(np.arange(1_000_000))[500_000:500_003]
    data = to_bytes(*flatten(array))
    assert len(data) < 2000
    assert from_bytes(data).to_pylist() == [500_000, 500_001, 500_002]


@pytest.mark.parametrize(
    "chunks",
    [
        {"a": [[1, 2], [3]], "b": [["x"], ["y", "z"]]},
        {"a": [[1], [], [2]], "b": [["x"], [], ["z"]]},
        {"a": [[1, 2]], "b": [["x", "y"]]},
        {"a": [[]], "b": [[]]},
    ],
)
def test_chunks_of_tables(chunks: dict[str, Any]) -> None:
    columns = [pa.chunked_array(chunks["a"], pa.int64()), pa.chunked_array(chunks["b"], pa.string())]
    fields = [pa.field("a", pa.int64(), metadata={"unit": "m"}), pa.field("b", pa.string())]
    table = pa.table(columns, pa.schema(fields, metadata={b"pandas": b"{}"}))
    made = back(table)
    assert made.equals(table, check_metadata=True)
    assert made.schema.equals(table.schema, check_metadata=True)
    for column, wanted in zip(made.columns, columns, strict=True):
        assert [chunk.to_pylist() for chunk in column.chunks] == [chunk.to_pylist() for chunk in wanted.chunks]


@pytest.mark.parametrize(
    "value",
    [
        pa.table({}),
        pa.table({"a": pa.chunked_array([], pa.int8())}),
        pa.chunked_array([], pa.list_(pa.string())),
        pa.record_batch({"a": [1, None], "d": pa.array(["x", "y"]).dictionary_encode()}),
        pa.record_batch({"a": [1, 2], "b": ["x", "y"]})[1:],
        pa.chunked_array([pa.array(["a"]).dictionary_encode(), pa.array(["b"]).dictionary_encode()]),
    ],
)
def test_other_containers(value: Any) -> None:
    made = back(value)
    assert type(made) is type(value)
    assert str(made) == str(value)
    assert made.equals(value)


def test_schemas() -> None:
    schema = pa.schema([pa.field("a", STRUCT, nullable=False)], metadata={"k": "v"})
    assert back(schema).equals(schema, check_metadata=True)


def test_rows_without_columns() -> None:
    table = pa.table({"a": [1, 2]}).select([])
    assert back(table).num_rows == table.num_rows


@pytest.mark.parametrize(
    "wrap",
    [
        lambda array: array,
        lambda array: pa.ListArray.from_arrays([0, 1], array),
        lambda array: pa.table({"a": array}),
        lambda array: pa.schema([pa.field("a", array.type)]),
        lambda array: array[0],
        lambda array: pa.chunked_array([array]),
    ],
)
def test_extension_types_of_python_are_refused(wrap: Any) -> None:
    array = pa.ExtensionArray.from_storage(Celsius(), pa.array([1.5]))
    with pytest.raises(ws.UnsupportedType, match=r"extension type .*cannot be kept; return its storage"):
        flatten({"x": wrap(array)})


@pytest.mark.parametrize("wrap", [lambda a: a, lambda a: pa.record_batch({"a": a}), lambda a: pa.table({"a": a})])
def test_memory_of_a_numpy_array(wrap: Any) -> None:
    array = np.arange(5)
    with pytest.raises(ws.UnsupportedType, match="share memory; return copies"):
        flatten({"x": array, "a": wrap(pa.array(array))})
    with pytest.raises(ws.UnsupportedType, match="share memory; return copies"):
        flatten({"x": array, "a": wrap(pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(array)))})
    made = back({"x": array, "a": wrap(pa.array(array.copy()))})
    assert made["x"].tolist() == array.tolist()


def test_read_only_views_of_arrow_memory() -> None:
    column = pa.array([1, 2, 3])
    made = back({"column": column, "x": column.to_numpy()})
    assert made["x"].tolist() == [1, 2, 3]
    assert not made["x"].flags.writeable
