"""Fields: which dtypes can be kept, how they are described, and that values come back bit for bit."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from tests.faults.children import same

import warmstore as ws
from warmstore.errors import NewerFormat, SchemaMismatch, UnsupportedType
from warmstore.records.format.fields import (
    arrow_schema,
    check_fields,
    dtype_name,
    fields_from_json,
    fields_to_json,
    numpy_dtype,
)

DTYPES = [
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128", "bool", "bfloat16"),
    *(name for name in dir(ml_dtypes) if name.startswith("float8")),
    *("datetime64[ns]", "datetime64[D]", "datetime64[25s]", "timedelta64[ms]", "timedelta64"),
]


def every_bit(dtype: str, rows: int, width: int) -> np.ndarray[Any, Any]:
    """Random bits seen as a dtype: NaNs with payloads, signalling ones, denormals and all."""
    size = numpy_dtype(dtype).itemsize
    data = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, (rows, width * size), np.uint8)
    return data.view(numpy_dtype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 5), (2, 0)], ids=str)
def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    width = int(np.prod(shape))
    values = every_bit(dtype, 40, width).reshape(40, *shape)
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array(dtype, shape)}) as store:
        store.extend({"x": values[:25]})
        assert same(store[:]["x"], values[:25])  # pending
        store.flush()
        store.extend({"x": values[25:]})
        assert same(store[:]["x"], values)  # both
        assert same(store[::-1]["x"], values[::-1].copy())
    read = ws.RecordStore.open(tmp_path / "s")
    assert same(read[:]["x"], values)
    for at in (0, 39):
        assert same(read[at]["x"], values[at])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_ragged(tmp_path: Path, dtype: str) -> None:
    bits = every_bit(dtype, 1, 60)[0]
    values = [
        bits[:0].reshape(0, 4),
        bits[:12].reshape(3, 4),
        bits[12:13].reshape(1, 1),
        bits[:0].reshape(7, 0),
        bits[None],
    ]
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Ragged(dtype, ndim=2)}) as store:
        store.extend({"x": values[:3]})
        store.flush()
        store.extend({"x": values[3:]})
        assert all(map(same, store[:]["x"], values))
    read = ws.RecordStore.open(tmp_path / "s")
    assert all(map(same, read[:]["x"], values))
    assert not any(value.flags.writeable for value in read[:]["x"])


@pytest.mark.parametrize(
    "dtype",
    [
        *(">f4", ">i8", "longdouble", "clongdouble", "O", "object", "S3", "U3", "str", "V3", "f4,i4", "(2,)f4"),
        *("", "flaot32", "None", "int4", "torch.float32", "float128x"),
    ],
)
@pytest.mark.parametrize("kind", [ws.Array, ws.Ragged])
def test_dtypes_that_cannot_be_kept_are_refused(kind: Any, dtype: str) -> None:
    with pytest.raises(UnsupportedType, match="dtype"):
        kind(dtype)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float32, "float32"),
        (np.int64, "int64"),
        (np.bool_, "bool"),
        (bool, "bool"),
        (np.complex64, "complex64"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (ml_dtypes.float8_e5m2, "float8_e5m2"),
        (torch.float32, "float32"),
        (torch.bfloat16, "bfloat16"),
        (torch.bool, "bool"),
        (torch.long, "int64"),
        (torch.complex64, "complex64"),
        (torch.float8_e4m3fn, "float8_e4m3fn"),
        (np.dtype("M8[ms]"), "M8[ms]"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [ws.Array, ws.Ragged])
def test_a_dtype_may_be_that_of_a_library(kind: Any, dtype: Any, name: str) -> None:
    assert kind(dtype) == kind(name)
    assert type(kind(dtype).dtype) is str


@pytest.mark.parametrize("kind", [ws.Array, ws.Ragged])
def test_a_dtype_may_be_one_of_jax(kind: Any) -> None:
    jnp = pytest.importorskip("jax").numpy
    for dtype, name in ((jnp.bfloat16, "bfloat16"), (jnp.float32, "float32"), (jnp.dtype("int8"), "int8")):
        assert kind(dtype) == kind(name)
        assert type(kind(dtype).dtype) is str


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [
        (float, "has no width; name one that does, such as 'float32'"),
        (int, "'int64'"),
        (complex, "'complex64'"),
        (str, r"use ws.Text\(\)"),
        (bytes, r"use ws.Bytes\(\)"),
        (dict, r"use ws.Json\(\)"),
        (np.floating, "dtype"),
        (np.generic, "dtype"),
        (np.str_, "dtype"),
        (np.dtype(">f4"), "dtype '>f4' cannot be kept"),
        (np.longdouble, "dtype"),
        (torch.qint8, "there is no dtype 'qint8'"),
        (torch.Tensor, "dtype"),
        (ws.Array, "dtype"),
        (["f4"], "dtype"),
    ],
    ids=str,
)
def test_types_that_say_no_dtype_are_refused(dtype: Any, advice: str) -> None:
    with pytest.raises(UnsupportedType, match=advice):
        ws.Array(dtype)


def test_a_record_that_no_chunk_can_hold_makes_no_store(tmp_path: Path) -> None:
    half = {"a": ws.Array("uint8", (1 << 28,)), "b": ws.Array("float64", (1 << 25,), "zstd")}
    check_fields(half)
    with pytest.raises(
        SchemaMismatch, match=r"a record of 536,870,920 bytes is too large.* 'a', which takes 268,435,456"
    ):
        ws.RecordStore.create(tmp_path / "s", {**half, "label": ws.Array("int64")})
    assert not (tmp_path / "s").exists()


def test_a_dtype_may_be_given_as_numpy_names_it() -> None:
    assert ws.Array(np.dtype("f4")).dtype == "float32"
    assert ws.Array("<f4").dtype == "float32"
    assert ws.Array("longlong").dtype == "int64"
    assert ws.Ragged(np.dtype(ml_dtypes.bfloat16)).dtype == "bfloat16"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtype_name_is_its_own_inverse(dtype: str) -> None:
    name = dtype_name(numpy_dtype(dtype))
    assert numpy_dtype(name) == numpy_dtype(dtype)
    assert dtype_name(numpy_dtype(name)) == name


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((), ()), (3, (3,)), (np.prod([2, 3]), (6,)), ([2, 3], (2, 3)), ((np.int64(4),), (4,)), ((0,), (0,))],
)
def test_shapes(shape: Any, expected: tuple[int, ...]) -> None:
    assert ws.Array("int8", shape).shape == expected
    assert all(type(size) is int for size in ws.Array("int8", shape).shape)


@pytest.mark.parametrize("shape", [(-1,), -1, (1.5,), "33", ("3",), (None,), None])
def test_shapes_that_cannot_be_are_refused(shape: Any) -> None:
    with pytest.raises(SchemaMismatch, match="shape"):
        ws.Array("int8", shape)


def test_dimensions() -> None:
    assert ws.Ragged("int8", np.int64(2)) == ws.Ragged("int8", 2)
    assert type(ws.Ragged("int8", np.int64(2)).ndim) is int  # for store.json


@pytest.mark.parametrize("ndim", [0, -1, 33, "2", 1.0, None])
def test_dimensions_that_cannot_be_are_refused(ndim: Any) -> None:
    with pytest.raises(SchemaMismatch, match="ndim"):
        ws.Ragged("int8", ndim)


FIELDS = {
    "image": ws.Array("uint8", (96, 96, 3)),
    "label": ws.Array("int64"),
    "half": ws.Array("bfloat16", (2,)),
    "when": ws.Array("datetime64[ns]"),
    "points": ws.Ragged("complex64", ndim=2),
    "jpeg": ws.Bytes(),
    "caption": ws.Text(),
    "tags": ws.Json(),
}


def test_a_description_is_its_own_inverse() -> None:
    back = fields_from_json(fields_to_json(FIELDS))
    assert back == FIELDS
    assert list(back) == list(FIELDS)
    assert arrow_schema(back).equals(arrow_schema(FIELDS), check_metadata=True)


def test_a_kind_of_tomorrow_is_a_newer_format() -> None:
    with pytest.raises(NewerFormat, match="'hologram'"):
        fields_from_json([{"name": "x", "kind": "hologram"}])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        None,
        [],
        [("x", ws.Text())],
        {"": ws.Text()},
        {"a::b": ws.Text()},
        {1: ws.Text()},
        {"\ud800": ws.Text()},
        {"x": "int64"},
        {"x": ws.Array},
        {"x": None},
    ],
)
def test_fields_that_cannot_be_are_refused(fields: Any) -> None:
    with pytest.raises(SchemaMismatch):
        check_fields(fields)


def test_any_other_name_will_do(tmp_path: Path) -> None:
    fields = {name: ws.Array("int64") for name in ("x", "with space", "a/b", "日本", "x:y", "0", ".", "\n")}
    with ws.RecordStore.create(tmp_path / "s", fields) as store:
        store.append(dict.fromkeys(fields, 7))
    assert ws.RecordStore.open(tmp_path / "s")[0] == dict.fromkeys(fields, 7)
