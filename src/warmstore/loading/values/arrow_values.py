"""Arrow arrays as values of a batch: NumPy arrays that own their memory, lists, or nested dicts.

Values of fixed width are copied from Arrow's buffers. Text, bytes and types that NumPy lacks become Python objects.
"""

import itertools
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warmstore.converting.arrow_types import is_list, scalar_dtype

_BITS = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}

Values = np.ndarray[Any, Any] | list[Any] | dict[str, Any]


def values_of(array: pa.Array | pa.ChunkedArray) -> Any:
    """The values of n rows of a column.

    Returns:
        Numbers, bools: [n], masked if there are nulls. Dates and times: datetime64 or timedelta64 [n], NaT for null, in
        UTC. Lists of one length, and tensors: [n, ...]. Other lists: a list of n arrays. Structs: a dict. Text, bytes
        and other types: a list of n Python values, None for null. Dictionaries are decoded.
    """
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks != 1 else array.chunk(0)
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _of_extension(array)
    if pa.types.is_dictionary(kind):
        return values_of(array.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return values_of(pc.run_end_decode(array))
    if scalar_dtype(kind) is not None or pa.types.is_time(kind):
        return _numbers(array)
    if pa.types.is_fixed_size_list(kind):
        return _of_one_length(array, kind.list_size)
    if is_list(kind):
        return _ragged(array)
    if pa.types.is_struct(kind):
        return {kind.field(at).name: values_of(child) for at, child in enumerate(array.flatten())}
    return array.to_pylist()


def _numbers(array: pa.Array) -> np.ndarray[Any, Any]:
    kind, nulls = array.type, array.null_count
    if pa.types.is_boolean(kind):
        values = np.array((array.fill_null(False) if nulls else array).to_numpy(zero_copy_only=False))
    else:
        bits = array.view(_BITS[kind.bit_width // 8])  # as `fill_null` supports integers, and not all other types
        values = np.array((bits.fill_null(0) if nulls else bits).to_numpy())
        if pa.types.is_date32(kind):
            values = values.view(np.int32).astype("M8[D]")
        elif pa.types.is_time(kind):
            values = values.view(f"i{kind.bit_width // 8}").astype(f"m8[{kind.unit}]")
        else:
            values = values.view(np.dtype(scalar_dtype(kind)))
    if not nulls:
        return values
    if values.dtype.kind not in "mM":
        return np.ma.MaskedArray(values, _nulls(array))
    values[_nulls(array)] = np.array("NaT", values.dtype)
    return values


def _nulls(array: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def _of_one_length(array: pa.Array, size: int) -> Any:
    inner = values_of(array.flatten())  # of the rows that are not null
    count = len(array) - array.null_count
    if isinstance(inner, np.ndarray):
        return _spread(inner.reshape(count, size, *inner.shape[1:]), array)
    if isinstance(inner, dict):
        return array.to_pylist()
    return _with_none([inner[at * size : (at + 1) * size] for at in range(count)], array)


def _spread(values: np.ndarray[Any, Any], array: pa.Array) -> np.ndarray[Any, Any]:
    """The values of rows that are not null as values of all rows, masked where null."""
    if not array.null_count:
        return values
    absent = _nulls(array)
    data = np.zeros((len(array), *values.shape[1:]), values.dtype)
    mask = np.broadcast_to(absent.reshape(-1, *(1,) * (values.ndim - 1)), data.shape).copy()
    data[~absent] = np.ma.getdata(values)
    mask[~absent] = np.ma.getmaskarray(values)
    return np.ma.MaskedArray(data, mask)


def _with_none(values: list[Any], array: pa.Array) -> list[Any]:
    if not array.null_count:
        return values
    rest = iter(values)
    return [None if absent else next(rest) for absent in _nulls(array).tolist()]


def _ragged(array: pa.Array) -> list[Any]:
    inner = values_of(array.flatten())
    return array.to_pylist() if isinstance(inner, dict) else _cut(inner, array)


def _cut(values: Any, array: pa.Array) -> list[Any]:
    """Concatenated values of lists as one array a list, None for null."""
    lengths = array.drop_null().value_lengths().to_numpy(zero_copy_only=False)
    edges = [0, *np.cumsum(lengths).tolist()]
    return _with_none([values[first:last] for first, last in itertools.pairwise(edges)], array)


def _of_extension(array: pa.Array) -> Any:
    kind = array.type
    if isinstance(kind, pa.FixedShapeTensorType):
        values = values_of(array.storage).reshape(len(array), *kind.shape)
        if kind.permutation is None:
            return values
        return values.transpose(0, *(1 + at for at in kind.permutation)).copy()
    shape, dtype = getattr(kind, "shape", None), getattr(kind, "value_type", None)
    if shape and isinstance(dtype, str):  # an ArrayND of Hugging Face, stored as nested lists
        return _nested(array, tuple(shape))
    return values_of(array.storage)


def _nested(array: pa.Array, shape: tuple[int | None, ...]) -> Any:
    flat = array.storage
    for _ in shape:
        flat = flat.flatten()
    values = values_of(flat)
    rest = tuple(size or 0 for size in shape[1:])
    if shape[0] is not None:
        return _spread(values.reshape(len(array) - array.null_count, *shape), array)
    rows = values.reshape(-1, *rest) if math.prod(rest) else np.zeros((0, *rest), values.dtype)
    return _cut(rows, array.storage)
