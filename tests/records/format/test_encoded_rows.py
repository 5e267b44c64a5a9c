"""Values without a fixed shape: what goes in comes back, and what would not is refused."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults.children import same

import warmstore as ws
from warmstore.errors import SchemaMismatch, UnsupportedType
from warmstore.records.format.encoded_rows import EncodedRows, absent_rows, join, spread
from warmstore.records.format.value_encoding import decode, encode

NAN = float("nan")


def back(field: Any, value: Any) -> Any:
    rows = encode("x", field, [value])
    return decode(field, rows.views(), rows.shapes)[0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and one == other


@given(JSON)
def test_whatever_json_can_say_comes_back(value: Any) -> None:
    assert equal(back(ws.Json(), value), value)


@pytest.mark.parametrize("value", [NAN, [NAN], {"a": NAN, "b": [1, {"c": NAN}]}, None, [None], -math.inf, -0.0])
def test_nan_none_and_infinity_come_back_from_json(value: Any) -> None:
    assert repr(back(ws.Json(), value)) == repr(value)


DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]
CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    "value",
    [
        *((1, 2), {"a": (1,)}, {1: 2}, {1, 2}, b"bytes", object(), np.int64(1), np.zeros(2), 1j),
        *(chr(0xD800), {chr(0xD800): 1}, CIRCLE, DEEP, [NAN, (1,)], {"a": NAN, 1: 2}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_would_change_is_refused(value: Any) -> None:
    with pytest.raises(UnsupportedType, match="field 'x'"):
        encode("x", ws.Json(), [value])


@given(st.text())
def test_text_comes_back(value: str) -> None:
    assert back(ws.Text(), value) == value


@pytest.mark.parametrize("value", [1, b"x", ["x"], 1.5])
def test_only_str_is_text(value: Any) -> None:
    with pytest.raises(SchemaMismatch, match="holds str"):
        encode("x", ws.Text(), [value])


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(UnsupportedType):
        encode("x", ws.Text(), ["\udcff"])


@pytest.mark.parametrize(
    "value", [b"", b"ab\0", bytearray(b"ab"), memoryview(b"abcd")[1:], np.frombuffer(b"abcd", np.uint8)]
)
def test_bytes_come_back_read_only(value: Any) -> None:
    view = back(ws.Bytes(), value)
    assert isinstance(view, memoryview)
    assert view.readonly
    assert bytes(view) == bytes(value)


@pytest.mark.parametrize("value", ["text", 1, [1], 1.5])
def test_only_buffers_are_bytes(value: Any) -> None:
    with pytest.raises(SchemaMismatch, match="holds bytes"):
        encode("x", ws.Bytes(), [value])


@pytest.mark.parametrize("field", [ws.Bytes(), ws.Text(), ws.Json(), ws.Ragged("int8")], ids=repr)
@pytest.mark.parametrize("values", [5, None, iter([])], ids=["int", "None", "iterator"])
def test_a_batch_is_a_list(field: Any, values: Any) -> None:
    with pytest.raises(SchemaMismatch):
        encode("x", field, values)


@pytest.mark.parametrize("field", [ws.Bytes(), ws.Text(), ws.Json()], ids=repr)
@pytest.mark.parametrize("values", ["abc", b"abc"])
def test_a_string_is_no_batch_of_strings(field: Any, values: Any) -> None:
    with pytest.raises(SchemaMismatch):
        encode("x", field, values)


@pytest.mark.parametrize(
    "field",
    [
        *(ws.Array("float32"), ws.Array("float32", (3,)), ws.Array("complex128", (2, 2)), ws.Array("int8", (0,))),
        *(ws.Ragged("bfloat16", 2), ws.Bytes(), ws.Text(), ws.Json()),
    ],
    ids=repr,
)
def test_a_batch_of_none(field: Any) -> None:
    rows = encode("x", field, [])
    assert rows.count == 0
    assert rows.views() == []
    if isinstance(field, ws.Array):
        empty = np.zeros((0, *field.shape), field.dtype)
        assert encode("x", field, empty).count == 0


@pytest.mark.parametrize(
    "value",
    [np.zeros(3, "i4"), np.zeros((3, 1), "i8"), np.int32(5), [1.5], np.zeros(3, ">i8"), "text", [1, [2]]],
    ids=repr,
)
def test_ragged_arrays_of_another_dtype_or_rank_are_refused(value: Any) -> None:
    with pytest.raises(SchemaMismatch, match="holds int64"):
        encode("x", ws.Ragged("int64"), [value])


def test_ragged_arrays_in_any_memory_order() -> None:
    grid = np.arange(12.0).reshape(3, 4)
    for value in (grid, grid.T, grid[::-1, ::2], np.asfortranarray(grid), grid[:0]):
        assert same(back(ws.Ragged("float64", 2), value), value.copy())


@given(st.lists(st.binary(max_size=9), max_size=12), st.data())
def test_slices_and_joins(values: list[bytes], data: st.DataObject) -> None:
    rows = encode("x", ws.Bytes(), values)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=4)))
    edges = [0, *cuts, len(values)]
    parts = [rows.slice(first, last) for first, last in itertools.pairwise(edges)]
    assert [bytes(view) for part in parts for view in part.views()] == values
    joined = join(parts)
    assert [bytes(view) for view in joined.views()] == values


def test_views_are_read_only() -> None:
    assert all(view.readonly for view in EncodedRows(2, np.zeros((2, 3), np.uint8)).views())


FIELDS: dict[str, tuple[Any, list[Any]]] = {
    "array": (ws.Array("int16", (2,)), [np.array([n, n], np.int16) for n in range(6)]),
    "empty": (ws.Array("int16", (0,)), [np.zeros(0, np.int16)] * 6),
    "ragged": (ws.Ragged("float32", 2), [np.full((n, 2), n, np.float32) for n in range(6)]),
    "text": (ws.Text(), ["", "é", "b", "cc", "", "d"]),
    "json": (ws.Json(), [None, 1, [None], {}, "null", None]),
}


@pytest.mark.parametrize("name", FIELDS)
@given(absent=st.lists(st.booleans(), min_size=6, max_size=6))
def test_rows_are_spread_among_absent_ones(name: str, absent: list[bool]) -> None:
    field, values = FIELDS[name]
    some = encode("x", field, [value for value, gone in zip(values, absent, strict=True) if not gone])
    rows = spread(field, some, np.array(absent))
    for at, gone in enumerate(absent):
        row = rows.slice(at, at + 1)
        assert row.absent is not None
        assert bool(row.absent[0]) == gone
        expected = absent_rows(field, 1) if gone else encode("x", field, [values[at]])
        assert np.array_equal(row.data.reshape(-1), expected.data.reshape(-1))
        assert expected.shapes is None or np.array_equal(row.shapes, expected.shapes)
