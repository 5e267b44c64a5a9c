"""Values on their way in: what is absent stays absent, and lists become arrays only where nothing changes."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import warmstore as ws
from warmstore.errors import SchemaMismatch
from warmstore.records.format.value_encoding import decode_rows, encode

PAIR = ws.Array("int16", (2,))


def back(field: Any, values: Any) -> Any:
    return decode_rows(field, encode("x", field, values))


@given(hnp.arrays(np.bool_, st.integers(0, 6)), st.sampled_from([(), (2,), (1, 3)]))
def test_records_that_are_masked_as_a_whole_are_absent(absent: Any, inner: tuple[int, ...]) -> None:
    values = np.arange(len(absent) * int(np.prod(inner)), dtype=np.int16).reshape(len(absent), *inner)
    mask = np.broadcast_to(absent.reshape(-1, *(1,) * len(inner)), values.shape)
    rows = encode("x", ws.Array("int16", inner), np.ma.MaskedArray(values, mask))
    assert np.array_equal(absent, np.zeros(len(absent), bool) if rows.absent is None else rows.absent)
    decoded = decode_rows(ws.Array("int16", inner), rows)
    assert np.array_equal(np.ma.getdata(decoded)[~absent], values[~absent])


@pytest.mark.parametrize(
    ("field", "values", "expected"),
    [
        (ws.Array("float64"), np.ma.MaskedArray([1.0, 2.0], [True, False]), [None, 2.0]),
        (ws.Array("float64"), [np.ma.masked, 2.0], [None, 2.0]),
        (ws.Array("int16"), [np.ma.MaskedArray(np.int16(1), False), np.ma.MaskedArray(np.int16(1), True)], [1, None]),
        (PAIR, [np.ma.MaskedArray(np.array([1, 2], np.int16), True), None, [3, 4]], [None, None, [3, 4]]),
        (ws.Ragged("int16"), [np.ma.MaskedArray(np.array([1], np.int16), True), [3, 4]], [None, [3, 4]]),
        (ws.Ragged("int16"), [np.ma.MaskedArray(np.array([1], np.int16)), [3, 4]], [[1], [3, 4]]),
        (ws.Text(), np.ma.MaskedArray(np.array(["a", "b"], object), [False, True]), ["a", None]),
    ],
    ids=repr,
)
def test_masked_values_are_absent(field: Any, values: Any, expected: list[Any]) -> None:
    assert [None if value is None else np.asarray(value).tolist() for value in _each(back(field, values))] == expected


def _each(values: Any) -> list[Any]:
    if not isinstance(values, np.ma.MaskedArray):
        return list(values)
    return [None if np.ma.getmaskarray(value).all() else value for value in values]


def test_none_is_a_value_of_json_and_a_masked_one_is_not() -> None:
    for values in ([None, np.ma.masked], np.ma.MaskedArray(np.array([None, 5], object), [False, True])):
        rows = encode("x", ws.Json(), values)
        assert rows.absent is not None
        assert rows.absent.tolist() == [False, True]
        assert bytes(rows.data) == b"null"


@pytest.mark.parametrize(
    "values",
    [
        np.ma.MaskedArray(np.zeros((3, 2), np.int16), [[False, False], [True, True], [False, True]]),
        [None, [1, 2], np.ma.MaskedArray(np.zeros(2, np.int16), [True, False])],
    ],
    ids=["array", "list"],
)
def test_what_is_masked_in_part_is_refused(values: Any) -> None:
    with pytest.raises(SchemaMismatch, match=r"field 'x': the value of record 2 of the batch is partly masked.*filled"):
        encode("x", PAIR, values)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (ws.Array("float64", (2,)), [np.ma.masked, 1.0]),
        (ws.Array("float64", (1, 2)), [[1.0, np.ma.masked]]),
        (ws.Ragged("float64"), [np.ma.masked, 2.0]),
        (ws.Ragged("float64", 2), [np.ma.MaskedArray([3.0, 99.0], [False, True])]),
    ],
)
def test_what_is_masked_within_lists_is_refused(field: Any, value: Any) -> None:
    """What is below the mask was stored, or 0."""
    with pytest.raises(SchemaMismatch, match=r"field 'x': a part of a value is masked.*filled"):
        encode("x", field, [value])


def test_masked_values_in_arrays_of_objects() -> None:
    """What is below the mask was stored."""
    values = np.empty(3, object)
    values[0] = np.ma.MaskedArray([3.0, 99.0], True)
    values[1] = np.array([1.0])
    one, two, three = back(ws.Ragged("float64"), values)
    assert (one, two.tolist(), three) == (None, [1.0], None)
    values[2] = np.ma.MaskedArray([3.0, 99.0], [False, True])
    with pytest.raises(SchemaMismatch, match="record 2 of the batch is partly masked"):
        encode("x", ws.Ragged("float64"), values)
    assert back(ws.Bytes(), np.array([np.ma.masked, b"1"], object)) == [None, b"1"]


def test_a_mask_without_elements_says_nothing(tmp_path: Path) -> None:
    field = ws.Array("int16", (2, 0))
    for values in (np.ma.MaskedArray(np.zeros((3, 2, 0), np.int16), np.zeros((3, 2, 0), bool)),):
        with pytest.raises(SchemaMismatch, match="record 0 of the batch has no elements, so its mask does not tell"):
            encode("x", field, values)
        with pytest.raises(SchemaMismatch, match="record 1 of the batch has no elements"):
            encode("x", field, [None, *values])
    assert encode("x", field, np.ma.MaskedArray(np.zeros((3, 2, 0), np.int16))).absent is None
    store = ws.RecordStore.create(tmp_path / "s", {"x": field})
    store.extend({"x": [None, np.zeros((2, 0), np.int16)]})
    assert store[0]["x"] is None
    assert store[1]["x"].shape == (2, 0)
    with pytest.raises(SchemaMismatch, match="pass a list with None"):
        store.extend(store[:])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (ws.Ragged("float32"), [1, 2.5, 3]),
        (ws.Ragged("bfloat16"), (256, 0.5)),
        (ws.Ragged("int8"), []),
        (ws.Ragged("int64"), [(1 << 63) - 1]),
        (ws.Ragged("bool"), [True, False]),
        (ws.Ragged("uint8", 2), [[1, 2], [3, 4], [5, 6]]),
        (ws.Ragged("uint8", 2), [[], []]),
        (ws.Ragged("uint8", 2), [np.array([1, 2], np.uint8), [3, 4]]),
        (ws.Ragged("float32", 2), [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]),
        (ws.Ragged("float32"), [np.float32(0.1), np.float32(0.2)]),
    ],
    ids=repr,
)
def test_lists_of_numbers_are_ragged_values(field: ws.Ragged, value: Any) -> None:
    (array,) = back(field, [value])
    expected = np.array([np.asarray(part) for part in value], ws.Array(field.dtype).numpy)
    assert array.dtype == expected.dtype
    assert array.tolist() == expected.tolist()
    assert array.shape == expected.shape


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (ws.Ragged("int8"), [1, 300], "int8"),
        (ws.Ragged("int8"), [1.5], "does not fit without change"),
        (ws.Ragged("float32"), [(1 << 24) + 1], "does not fit"),
        (ws.Ragged("float32"), [np.float64(0.1)], "got float64"),
        (ws.Ragged("float32"), [np.array([0.1]), np.array([0.2])], "got float64"),
        (ws.Ragged("int8"), ["1"], "does not fit"),
        (ws.Ragged("int8"), [[1], [2]], "1 dimensions; got int8 of shape"),
        (ws.Ragged("int8", 2), [1, 2], "2 dimensions"),
        (ws.Ragged("int8", 2), [], "2 dimensions"),
        (ws.Ragged("int8", 2), [[1], [2, 3]], "inhomogeneous"),
        (ws.Ragged("int8", 2), [np.zeros(1, np.int8), np.zeros(2, np.int8)], "same shape"),
    ],
    ids=repr,
)
def test_lists_that_would_change_are_refused(field: ws.Ragged, value: Any, message: str) -> None:
    with pytest.raises(SchemaMismatch, match=f"field 'x' .*{message}"):
        encode("x", field, [value])


@pytest.mark.parametrize("field", [ws.Json(), ws.Text(), ws.Bytes(), ws.Ragged("int64"), ws.Array("int64")])
@pytest.mark.parametrize("values", [{"a": 1, "b": 2}, {(1, 2): 3}, {"u", "v"}, frozenset((1, 2)), "ab", b"ab"])
def test_a_batch_is_no_dict_set_or_string(field: Any, values: Any) -> None:
    """Of a dict its keys were stored, of a set what came first."""
    with pytest.raises(SchemaMismatch, match="list with one value per record, not"):
        encode("x", field, values)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
@pytest.mark.parametrize("field", [ws.Json(), ws.Text(), ws.Ragged("int64")])
def test_a_batch_is_no_table(field: Any, make: Any) -> None:
    """The names of its columns were stored."""
    with pytest.raises(SchemaMismatch, match="list with one value per record, not"):
        encode("x", field, make({"a": ["1"], "b": ["2"]}))


NULLS = {
    "pyarrow": pa.array([1.0, None]),
    "integers": pa.array([2**53 + 1, None]),
    "chunks": pa.chunked_array([[1.0], [None]]),
    "polars": pl.Series([1.0, None]),
    "polars' integers": pl.Series([1, None]),
    "pandas": pd.Series([1.0, None], dtype="Float64"),
    "pandas' integers": pd.Series([1, None], dtype="Int64"),
    "pandas over pyarrow": pd.Series([1.0, None], dtype="double[pyarrow]"),
}


@pytest.mark.parametrize("values", NULLS.values(), ids=NULLS)
def test_nulls_of_columns_are_refused(values: Any) -> None:
    """NumPy makes them NaN, and integers beside them floats: 2**53 + 1 became another number."""
    for field, batch in [
        (ws.Array("float64"), values),
        (ws.Array("float64", (2,)), [values]),
        (ws.Ragged("float64"), [values]),
        (ws.Ragged("float64", 2), [[values]]),
    ]:
        with pytest.raises(SchemaMismatch, match="nulls"):
            back(field, batch)
    assert back(ws.Array("float64"), [1.0, None]).mask.tolist() == [False, True]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"x": pa.array([1.0, None])}),
        pl.DataFrame({"x": [1.0, None]}),
        pd.DataFrame({"x": [1.0, None]}, dtype="Float64"),
    ],
    ids=["pyarrow", "polars", "pandas"],
)
def test_nulls_of_tables_are_refused(table: Any) -> None:
    with pytest.raises(SchemaMismatch, match="nulls"):
        back(ws.Array("float64", (1,)), table)
    assert back(ws.Array("float64", (1,)), table[:1]).tolist() == [[1.0]]


@pytest.mark.parametrize("shape", [2, (2, 1)])
def test_nulls_within_arrays_of_polars_are_refused(shape: Any) -> None:
    """A column of arrays, all of one shape, is an array of numbers, too."""
    values = pl.Series([1.0, None, 2.0, 3.0]).reshape((2, *np.atleast_1d(shape)))
    field = ws.Array("float64", shape)
    with pytest.raises(SchemaMismatch, match="nulls"):
        back(field, values)
    assert back(field, values[1:]).ravel().tolist() == [2.0, 3.0]


@pytest.mark.parametrize("make", [pa.array, pl.Series, pd.Series, lambda values: pd.Series(values, dtype="Float64")])
def test_columns_without_nulls_are_arrays(make: Any) -> None:
    assert np.array_equal(back(ws.Array("float64"), make([1.5, 2.5])), [1.5, 2.5])
    assert np.array_equal(back(ws.Ragged("float64"), [make([1.5, 2.5])])[0], [1.5, 2.5])
    assert back(ws.Array("float64", (2,)), [make([1.5, 2.5])]).tolist() == [[1.5, 2.5]]
    assert np.isnan(back(ws.Array("float64"), pd.Series([1.5, np.nan]))[1])


def test_batches_that_are_sequences() -> None:
    assert back(ws.Text(), pd.Series(["a", "b"])) == ["a", "b"]
    assert back(ws.Text(), {"a": 1, "b": 2}.keys()) == ["a", "b"]
    assert back(ws.Text(), np.array(["a", None], object)) == ["a", None]
    assert back(ws.Array("float64", (2,)), pd.DataFrame({"a": [1.0], "b": [2.0]})).tolist() == [[1.0, 2.0]]
    assert [value.tolist() for value in back(ws.Ragged("int64"), torch.ones(2, 1, dtype=torch.int64))] == [[1], [1]]


def test_one_value_for_a_list_of_one_position(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", {"m": ws.Json()}) as store:
        store.extend({"m": [{"score": 1}, {"score": 2}]})
        with pytest.raises(SchemaMismatch, match="one value per record, not dict"):
            store.update([1], {"m": {"score": 5}})
        with pytest.raises(SchemaMismatch, match="one value per record, not dict"):
            store.map_field("m", lambda batch: {"n": 1, "o": 2}, progress=False)
        store.update(1, {"m": {"score": 5}})
        assert store["m"][:] == [{"score": 1}, {"score": 5}]
