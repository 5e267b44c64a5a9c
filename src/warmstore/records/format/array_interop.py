"""Arrays from anywhere (NumPy, PyTorch, JAX, lists) as NumPy arrays of an exact dtype, and back to torch."""

import functools
import sys
from typing import Any

import numpy as np
import pyarrow as pa

from warmstore.errors import SchemaMismatch, UnsupportedType
from warmstore.records.format.fields import dtype_name, numpy_dtype

_NUMBERS = {bool, int, float, complex}
_SAME_WIDTH = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_jax_array(value: Any) -> bool:
    """Whether a value is a JAX array; JAX is not imported to find out."""
    return isinstance(value, getattr(sys.modules.get("jax"), "Array", ()))


def to_numpy(value: Any) -> np.ndarray[Any, Any]:
    """An array or tensor as a NumPy array of the same dtype on the CPU, without a copy if possible.

    Raises:
        UnsupportedType: the dtype has no counterpart in NumPy or ml_dtypes (quantised tensors, for example), or it is a
            sparse or nested tensor.
    """
    if not is_tensor(value):
        return np.asarray(value)
    try:
        return value.numpy()  # type: ignore[no-any-return]
    except (RuntimeError, TypeError):
        pass  # it requires a gradient, is conjugated, is on a device, or has a dtype that NumPy lacks
    import torch

    if value.is_nested or value.layout is not torch.strided:
        kind, dense = ("nested", "to_padded_tensor(0)") if value.is_nested else (str(value.layout)[6:], "to_dense()")
        raise UnsupportedType(f"a {kind} tensor is no array; convert it before, with tensor.{dense}")
    tensor = value.detach().cpu().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        return tensor.numpy()  # type: ignore[no-any-return]
    except TypeError:
        pass
    dtype = numpy_dtype(name)
    bits = tensor.view(getattr(torch, _SAME_WIDTH[tensor.element_size()])).numpy()
    return bits.view(dtype)  # type: ignore[no-any-return]


def whole_array(name: str, values: Any) -> np.ndarray[Any, Any]:
    """`to_numpy`, of values without nulls, which NumPy would make NaN, and integers beside them floats.

    Raises:
        SchemaMismatch: a column of pyarrow, polars or pandas has nulls.
    """
    if _has_nulls(values):
        raise SchemaMismatch(
            f"field {name!r}: a column has nulls, which NumPy would make NaN. Pass a list with None where a whole "
            "value is absent, or fill them first"
        )
    return to_numpy(values)


def _has_nulls(values: Any) -> bool:
    """Whether a column or table of pyarrow, polars or pandas has nulls. NaN is a number."""
    if isinstance(values, np.ndarray | np.generic) or is_tensor(values):
        return False
    count, pandas = getattr(values, "null_count", 0), sys.modules.get("pandas")
    if callable(count):  # of polars; of a table there is one for each column
        nested = hasattr(values, "dtype") and bool(getattr(values.dtype, "size", None))  # an Array, all of one width
        return bool(np.any(count())) or (nested and _has_nulls(values.explode()))
    if isinstance(values, pa.Table | pa.RecordBatch):
        return any(column.null_count for column in values.columns)
    if pandas is not None and isinstance(values, pandas.DataFrame):
        return any(_has_nulls(column) for _, column in values.items())
    if pandas is not None and getattr(getattr(values, "dtype", None), "na_value", None) is pandas.NA:
        return bool(values.isna().any())
    return bool(count)


def axis_order(array: np.ndarray[Any, Any]) -> list[int] | None:
    """The axes of an array in their order in memory, by descending stride; None for C order. Sums depend on it."""
    if array.flags.c_contiguous:
        return None
    axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    return None if axes == list(range(array.ndim)) else axes


def to_torch(array: np.ndarray[Any, Any]) -> Any:
    """A NumPy array as a torch tensor of the same dtype, sharing memory.

    Raises:
        UnsupportedType: torch has no such dtype (times, for example).
    """
    import torch

    dtype = torch_dtype(array.dtype)
    if array.dtype.num < 256:  # not one of ml_dtypes
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(_SAME_WIDTH[array.dtype.itemsize])).view(dtype)


def on_device(tensor: Any, device: Any) -> Any:
    """A tensor on a torch device; the tensor itself if it is there already.

    It is copied to a GPU through pinned memory, in the order of the current stream. The caller waits neither for the
    copy nor for the work before it: from other memory, `Tensor.to` waits for both. torch keeps the pinned memory until
    the copy is done.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@functools.lru_cache
def torch_dtype(dtype: np.dtype[Any]) -> Any:
    """The torch dtype that equals a NumPy dtype.

    Raises:
        UnsupportedType: torch has none.
    """
    import torch

    name = dtype_name(dtype)
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise UnsupportedType(f"torch has no dtype {name!r}; read the field as NumPy")
    return found


def exact_array(name: str, values: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """A fresh, contiguous [n, *shape] array of exactly `dtype`.

    Arrays and tensors must have the dtype already. Python numbers are converted if no integer changes its value.

    Raises:
        SchemaMismatch: dtype or shape differ.
    """
    is_list = isinstance(values, list | tuple)
    if is_list:
        array = array_of_numbers(name, values, dtype) if len(values) else np.empty((0, *shape), dtype)
    else:
        array = _of_dtype(name, values, dtype)
    if array.ndim != len(shape) + 1 or array.shape[1:] != shape:
        raise SchemaMismatch(
            f"field {name!r} holds arrays of shape {shape} per record; got a batch of shape {array.shape}"
        )
    return np.ascontiguousarray(array) if is_list else np.array(array, order="C", copy=True)


def array_of_numbers(name: str, values: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Nested lists of Python numbers, or of arrays of `dtype`, as a fresh array of exactly `dtype`.

    Raises:
        SchemaMismatch: a value does not fit, or values of one level differ in shape.
    """
    try:
        if not _is_python(values):
            parts = [
                array_of_numbers(name, value, dtype)
                if _is_python(value) or isinstance(value, list | tuple)
                else _of_dtype(name, value, dtype)
                for value in values
            ]
            return np.stack(parts)
        given = np.asarray(values)
        with np.errstate(over="ignore"):
            array = np.array(values, dtype)
    except SchemaMismatch:
        raise
    except (OverflowError, TypeError, ValueError) as error:
        raise SchemaMismatch(f"field {name!r} holds {dtype_name(dtype)}: {error}") from None
    if given.size and not (_fits(given, array) and _integers_fit(values, given, array)):
        raise SchemaMismatch(f"field {name!r} holds {dtype_name(dtype)}; {values!r:.100} does not fit without change")
    return array


def _of_dtype(name: str, values: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array or tensor of exactly this dtype."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise SchemaMismatch(
            f"field {name!r}: a part of a value is masked; only a whole value can be absent. Fill it first, with "
            "values.filled(...)"
        )
    array = whole_array(name, values)
    if array.dtype != dtype:
        raise SchemaMismatch(
            f"field {name!r} holds {dtype_name(dtype)}; got {array.dtype}. "
            f"Arrays are not converted: pass values.astype({dtype_name(dtype)!r}) to convert them"
        )
    return array


def _is_python(values: Any) -> bool:
    """Whether nested lists hold no arrays, tensors or NumPy scalars, which have dtypes of their own, and no nulls."""
    if isinstance(values, list | tuple):
        kinds = set(map(type, values))
        return kinds <= _NUMBERS or all(map(_is_python, values))
    return not (hasattr(values, "dtype") or _has_nulls(values))


def _integers_fit(values: Any, given: np.ndarray[Any, Any], array: np.ndarray[Any, Any]) -> bool:
    """Whether integers among floats keep their values (NumPy converts all of them to float before it compares), and no
    bool is among integers, which NumPy makes an integer."""
    if given.dtype.kind in "iu":
        return not _has_bool(values)
    if given.dtype.kind not in "fc":
        return True
    numbers = np.asarray(values, object).ravel()
    whole = np.fromiter((isinstance(number, int) for number in numbers.tolist()), bool, len(numbers))
    if not whole.any():
        return True
    if any(isinstance(number, bool) for number in numbers[whole].tolist()):
        return False
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    kept = array.ravel()[whole] if array.dtype.kind in "iu" else array.ravel()[whole].astype(wide)
    return bool((kept.astype(object) == numbers[whole]).all())


def _has_bool(values: Any) -> bool:
    if not isinstance(values, list | tuple):
        return isinstance(values, bool)
    kinds = set(map(type, values))
    return bool in kinds or (not kinds <= _NUMBERS and any(map(_has_bool, values)))


def _fits(given: np.ndarray[Any, Any], array: np.ndarray[Any, Any]) -> bool:
    """Whether Python values are unchanged in another dtype."""
    kinds = given.dtype.kind + array.dtype.kind
    if kinds == "bb":
        return True
    if "b" in kinds or given.dtype.kind in "USV":  # NumPy would parse strings
        return False
    if kinds in ("ff", "fc", "fV"):
        # A Python float may be rounded, but it must not become infinite, or NaN in a float8.
        return bool(((np.isfinite(array) == np.isfinite(given)) & (np.isnan(array) == np.isnan(given))).all())
    back = array.astype(given.dtype)
    return bool(((back == given) | ((back != back) & (given != given))).all())
