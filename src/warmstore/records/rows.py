"""Values in memory, on their way into a store or just read from one.

`Rows` is one field's values for some records: fixed-width ones as a byte matrix, varying ones as one byte string with
offsets. Every row has a checksum (xxh3-64, seeded with the hash of its shape where it has one).
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from warmstore.errors import SchemaMismatch, UnsupportedType
from warmstore.records.arrays import exact_array, to_numpy
from warmstore.records.fields import Array, Bytes, Column, Field, Ragged, Text, columns_of, numpy_dtype

_digest = xxhash.xxh3_64_intdigest


@dataclass(frozen=True)
class Rows:
    """One field of `count` records.

    data: uint8 [count, width] where `offsets` is None, else uint8 [bytes].
    offsets: int64 [count + 1], or None.
    shapes: int64 [count, ndim] for ragged fields, else None.
    """

    count: int
    data: np.ndarray[Any, np.dtype[np.uint8]]
    offsets: np.ndarray[Any, np.dtype[np.int64]] | None = None
    shapes: np.ndarray[Any, np.dtype[np.int64]] | None = None

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.data, self.offsets, self.shapes) if part is not None)

    def views(self) -> list[memoryview]:
        """One read-only view a row."""
        flat = self.data.reshape(-1).data.toreadonly()
        if self.offsets is None:
            width = self.data.shape[1]
            return (
                [flat[at : at + width] for at in range(0, self.count * width, width)] if width else [flat] * self.count
            )
        edges = self.offsets.tolist()
        return [flat[first:last] for first, last in itertools.pairwise(edges)]

    def checksums(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """uint64 [count]."""
        return checksums(self.views(), self.shapes)

    def slice(self, first: int, last: int) -> "Rows":
        """Rows [first, last), without a copy of the data."""
        shapes = None if self.shapes is None else self.shapes[first:last]
        if self.offsets is None:
            return Rows(last - first, self.data[first:last])
        edges = self.offsets[first : last + 1]
        return Rows(last - first, self.data[edges[0] : edges[-1]], edges - edges[0], shapes)


def checksums(
    views: Sequence[memoryview], shapes: np.ndarray[Any, np.dtype[np.int64]] | None
) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """xxh3-64 of each row's bytes, seeded with the xxh3-64 of its shape's bytes where there are shapes."""
    if shapes is None:
        return np.array([_digest(view) for view in views], np.uint64)
    seeds = [_digest(shape) for shape in shapes.astype(np.int64, copy=False)]
    return np.array([_digest(view, seed) for view, seed in zip(views, seeds, strict=True)], np.uint64)


def join(parts: Sequence[Rows]) -> Rows:
    """Rows of one field one after the other."""
    if len(parts) == 1:
        return parts[0]
    count = sum(part.count for part in parts)
    data = np.concatenate([part.data for part in parts])
    edges = [part.offsets for part in parts if part.offsets is not None]
    shapes = [part.shapes for part in parts if part.shapes is not None]
    offsets = None
    if edges:
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(np.concatenate([np.diff(edge) for edge in edges]), out=offsets[1:])
    return Rows(count, data, offsets, np.concatenate(shapes) if shapes else None)


def encode(name: str, field: Field, values: Any) -> Rows:
    """Copy a user's values of one field, one per record.

    Args:
        values: for an Array anything that is [n, *shape] in the field's dtype (or lists of Python numbers, converted
            where that loses nothing); for a Ragged a sequence of arrays; otherwise a sequence of values.

    Raises:
        SchemaMismatch: dtype, shape or type differ from the field's.
    """
    if isinstance(field, Array):
        array = exact_array(name, values, field.numpy, field.shape)
        return Rows(len(array), array.reshape(-1).view(np.uint8).reshape(len(array), field.width))
    if isinstance(field, Ragged):
        return _encode_ragged(name, field, values)
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise SchemaMismatch(f"field {name!r} takes a list with one value per record, not {type(values).__name__}")
    return _packed([_encode_value(name, field, value) for value in values])


def decode(field: Field, views: Sequence[memoryview], shapes: np.ndarray[Any, Any] | None) -> list[Any]:
    """The values of a field without a fixed shape: read-only arrays, memoryviews, strings or JSON values."""
    if isinstance(field, Ragged):
        assert shapes is not None
        dtype = numpy_dtype(field.dtype)
        return [np.frombuffer(view, dtype).reshape(shape) for view, shape in zip(views, shapes.tolist(), strict=True)]
    if isinstance(field, Bytes):
        return list(views)
    if isinstance(field, Text):
        return [str(view, "utf-8") for view in views]
    return [json.loads(bytes(view)) for view in views]


def decode_array(field: Array, data: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, Any]:
    """uint8 [n, width] seen as [n, *shape] in the field's dtype; no copy."""
    if not field.width:
        return np.zeros((len(data), *field.shape), field.numpy)
    return data.view(field.numpy).reshape(len(data), *field.shape)


def to_arrow(name: str, field: Field, rows: Rows) -> list[pa.Array]:
    """The Arrow columns of a field, in the order of `columns_of`; they share memory with `rows`."""
    columns = columns_of(name, field)
    # Not pa.array: that imports pandas where it is installed, a quarter of a second in the first flush.
    checksum = pa.Array.from_buffers(pa.uint64(), rows.count, [None, pa.py_buffer(rows.checksums())])
    if rows.offsets is not None:
        buffers = [None, pa.py_buffer(rows.offsets), pa.py_buffer(rows.data)]
        arrays = [pa.Array.from_buffers(columns[0].type, rows.count, buffers)]
        if rows.shapes is not None:
            arrays.append(_lists(columns[1].type, rows.count, pa.py_buffer(np.ascontiguousarray(rows.shapes))))
        return [*arrays, checksum]
    return [*(_fixed_arrow(column, rows) for column in columns[:-1]), checksum]


def _fixed_arrow(column: Column, rows: Rows) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(rows.data))
    if not isinstance(column.type, pa.FixedShapeTensorType):
        return pa.Array.from_buffers(column.type, rows.count, [None, buffer])
    return pa.ExtensionArray.from_storage(column.type, _lists(column.type.storage_type, rows.count, buffer))


def _lists(kind: pa.DataType, count: int, buffer: pa.Buffer) -> pa.Array:
    values = pa.Array.from_buffers(kind.value_type, count * kind.list_size, [None, buffer])
    return pa.Array.from_buffers(kind, count, [None], children=[values])


def _encode_ragged(name: str, field: Ragged, values: Any) -> Rows:
    dtype = numpy_dtype(field.dtype)
    if not hasattr(values, "__len__"):
        raise SchemaMismatch(f"field {name!r} takes a list of arrays, not {type(values).__name__}")
    try:
        arrays = [to_numpy(value) for value in values]
    except ValueError as error:
        raise SchemaMismatch(f"field {name!r} holds {field.dtype} arrays: {error}") from None
    for array in arrays:
        if array.ndim != field.ndim or array.dtype != dtype:
            raise SchemaMismatch(
                f"field {name!r} holds {field.dtype} arrays of {field.ndim} dimensions; "
                f"got {array.dtype} of shape {array.shape}"
            )
    packed = _packed([np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays])
    shapes = np.array([array.shape for array in arrays], np.int64).reshape(len(arrays), field.ndim)
    return Rows(packed.count, packed.data, packed.offsets, shapes)


def _encode_value(name: str, field: Field, value: Any) -> bytes | memoryview:
    if isinstance(field, Bytes):
        try:
            return memoryview(value).cast("B")
        except TypeError:
            raise SchemaMismatch(f"field {name!r} holds bytes; got {type(value).__name__}") from None
    if isinstance(field, Text):
        if not isinstance(value, str):
            raise SchemaMismatch(f"field {name!r} holds str; got {type(value).__name__}")
        text = value
    else:
        try:
            text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
            back = json.loads(text)
            kept = back == value or _same(back, value)
        except (RecursionError, TypeError, ValueError) as error:
            raise UnsupportedType(
                f"field {name!r} holds JSON values; got a {type(value).__name__} it cannot: {error}"
            ) from None
        if not kept:
            raise UnsupportedType(f"field {name!r}: {value!r:.100} would come back from JSON as {back!r:.100}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedType(f"field {name!r}: {value!r:.100} is not valid Unicode: {error}") from None


def _same(back: Any, value: Any) -> bool:
    """Equal, where NaN equals NaN at any depth."""
    if isinstance(back, dict):
        return isinstance(value, dict) and back.keys() == value.keys() and all(_same(back[k], value[k]) for k in back)
    if isinstance(back, list):
        return isinstance(value, list) and len(back) == len(value) and all(map(_same, back, value))
    return bool(back == value or (back != back and value != value))


def _packed(values: Sequence[Any]) -> Rows:
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    return Rows(len(values), np.frombuffer(b"".join(values), np.uint8), offsets)
