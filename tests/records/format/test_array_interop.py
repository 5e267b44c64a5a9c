"""Values on their way in: nothing is converted where that could change it."""

import datetime
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from warmstore.errors import SchemaMismatch, UnsupportedType
from warmstore.records.format.array_interop import exact_array, to_numpy, to_torch
from warmstore.records.format.fields import numpy_dtype


def exact(values: Any, dtype: str, shape: tuple[int, ...] = ()) -> np.ndarray[Any, Any]:
    return exact_array("x", values, numpy_dtype(dtype), shape)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, 2], "int64", [1, 2]),
        ([0, 255], "uint8", [0, 255]),
        ([-(1 << 63), (1 << 63) - 1], "int64", [-(1 << 63), (1 << 63) - 1]),
        ([0, (1 << 64) - 1], "uint64", [0, (1 << 64) - 1]),
        ([1.0, 2.0], "int8", [1, 2]),
        ([True, False], "bool", [True, False]),
        ([0.1, float("inf"), -0.0], "float16", [np.float16(0.1), np.inf, -0.0]),
        ([2049.0], "float16", [2048.0]),  # a float has no precision of its own
        ([256], "bfloat16", [256]),
        ([0.1], "bfloat16", [ml_dtypes.bfloat16(0.1)]),
        ([448.0], "float8_e4m3fn", [448.0]),
        ([1, 2.5], "complex64", [1, 2.5]),
        ([1 + 2j], "complex64", [1 + 2j]),
        ([1 << 53, 0.5], "float64", [float(1 << 53), 0.5]),
        ([256, 0.5], "bfloat16", [256, 0.5]),
        ([1 << 62, 1.0], "int64", [1 << 62, 1]),
        ([np.int8(1), 2], "int8", [1, 2]),
        ([datetime.date(2020, 1, 2)], "datetime64[D]", [np.datetime64("2020-01-02")]),
        ((1, 2), "int64", [1, 2]),
        ([np.int8(1), np.int8(2)], "int8", [1, 2]),
        ([torch.tensor(1, dtype=torch.int8), np.int8(2)], "int8", [1, 2]),
        ([], "float32", []),
        (np.zeros(0, np.float32), "float32", []),
    ],
    ids=repr,
)
def test_takes(values: Any, dtype: str, expected: list[Any]) -> None:
    array = exact(values, dtype)
    assert array.dtype == numpy_dtype(dtype)
    assert array.tolist() == np.array(expected, numpy_dtype(dtype)).tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float8_e5m2", "complex64", "complex128"])
def test_takes_nan(dtype: str) -> None:
    assert np.isnan(exact([float("nan"), 1.0], dtype)).tolist() == [True, False]
    if "complex" in dtype:
        assert np.isnan(exact([complex("nan"), 1j], dtype)).tolist() == [True, False]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1.5], "int64"),
        ([300], "uint8"),
        ([-1], "uint64"),
        ([1 << 64], "uint64"),
        ([float("nan")], "int64"),
        ([(1 << 24) + 1], "float32"),
        ([257], "bfloat16"),
        ([1e10], "float16"),  # would be infinite
        ([1e300], "float32"),
        ([1e10], "float8_e4m3fn"),  # would be NaN
        ([1e300], "complex64"),
        ([0.1 + 0.1j], "complex64"),
        ([1j], "float64"),
        ([1], "bool"),
        ([True], "int64"),
        ([True], "float32"),
        (["1"], "int64"),
        (["1.5"], "float64"),
        ([b"1"], "int64"),
        (["2020-01-01"], "datetime64[D]"),
        ([datetime.datetime(2020, 1, 1, 12)], "datetime64[D]"),
        ([None], "float64"),
        ([None], "int64"),
        ([[1], [2, 3]], "int64"),
        ([Ellipsis], "int64"),
        ([float("inf")], "float8_e4m3fn"),
        ([float("-inf")], "float8_e5m2fnuz"),
        ([{}], "int64"),
        (np.array([1], np.int32), "int64"),
        (np.array([1], ">i8"), "int64"),
        (np.array([1.0]), "float32"),
        (np.array([1], "m8[s]"), "timedelta64[ms]"),
        (torch.tensor([1.0]), "float64"),
        ([np.float64(1)], "float32"),
        ([np.int64(1), 2.5], "int64"),
        ([(1 << 53) + 1, 0.5], "float64"),  # which NumPy makes floats of at once
        ([257, 0.5], "bfloat16"),
        ([(1 << 24) + 1, 1j], "complex64"),
        ([1 << 63, -1], "int64"),
        ([True, 0.5], "float64"),
        ([2, True], "int64"),
        ([2, True], "float32"),
        ([[2], [True]], "int64"),
        ([[np.float64(0.1), 1.0]], "float32"),
        (5, "int64"),
        ("ab", "int64"),
        (None, "int64"),
        ({"a": 1}, "int64"),
    ],
    ids=repr,
)
def test_refuses_what_would_change(values: Any, dtype: str) -> None:
    with pytest.raises(SchemaMismatch, match="field 'x'"):
        exact(values, dtype)


@pytest.mark.parametrize(
    "values", [np.zeros((2, 3)), np.zeros((2, 2, 3, 1)), np.zeros(2), [np.zeros((3, 2))], [np.zeros(6)], [[0.0] * 6]]
)
def test_refuses_another_shape(values: Any) -> None:
    with pytest.raises(SchemaMismatch, match="shape"):
        exact(values, "float64", (2, 3))


def test_result_is_a_fresh_contiguous_copy() -> None:
    given = np.arange(12.0).reshape(3, 4)
    for values in (given, given[:, ::-1], np.asfortranarray(given), torch.from_numpy(given), list(given)):
        array = exact(values, "float64", (4,))
        assert not np.shares_memory(array, given)
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.tolist() == [list(map(float, row)) for row in values]


TORCH_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_tensors_go_to_numpy_and_back_bit_for_bit(dtype: torch.dtype) -> None:
    bits = torch.arange(256, dtype=torch.uint8)
    if dtype == torch.bool:
        bits %= 2
    tensor = bits.view(dtype)
    array = to_numpy(tensor)
    assert str(dtype) == f"torch.{array.dtype.name}"
    assert array.tobytes() == bytes(bits.tolist())
    back = to_torch(array)
    assert back.dtype == dtype
    assert back.view(torch.uint8).tolist() == bits.tolist()


def test_tensors_with_a_gradient_a_conjugate_or_strides() -> None:
    assert to_numpy(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
    assert to_numpy(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]
    assert to_numpy(torch.arange(6).reshape(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert to_numpy(torch.arange(6).to(torch.bfloat16)[::2]).tolist() == [0, 2, 4]


def test_dtypes_without_a_counterpart_are_refused() -> None:
    with pytest.raises(UnsupportedType):
        to_torch(np.zeros(1, "M8[s]"))
    with pytest.raises(UnsupportedType):
        to_numpy(torch.empty(2, dtype=torch.bits8))


@pytest.mark.filterwarnings("ignore:.*nested tensors|.*Sparse CSR")
def test_tensors_that_are_no_arrays_are_refused_with_advice() -> None:
    for tensor in (torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr()):
        with pytest.raises(UnsupportedType, match=r"a sparse_\w+ tensor is no array; .* tensor\.to_dense\(\)"):
            to_numpy(tensor)
    with pytest.raises(UnsupportedType, match=r"a nested tensor is no array; .* tensor\.to_padded_tensor\(0\)"):
        to_numpy(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
