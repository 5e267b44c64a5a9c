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

from warmstore.errors import Damaged, SchemaMismatch, UnsupportedType
from warmstore.records.arrays import exact_array, to_numpy
from warmstore.records.codecs import Codec, codec_of
from warmstore.records.fields import Array, Bytes, Column, Field, Json, Ragged, Text, columns_of, numpy_dtype

_digest = xxhash.xxh3_64_intdigest

ABSENT = 0x746E657362410A00
"""The checksum of a record that has no value for a field. A value has it by chance once in 2**64."""

Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Rows:
    """One field of `count` records.

    data: uint8 [count, width] where `offsets` is None, else uint8 [bytes].
    offsets: int64 [count + 1], or None.
    shapes: int64 [count, ndim] for ragged fields, else None.
    absent: bool [count], records without a value (their bytes are zeros or none), or None where all have one.
    """

    count: int
    data: np.ndarray[Any, np.dtype[np.uint8]]
    offsets: np.ndarray[Any, np.dtype[np.int64]] | None = None
    shapes: np.ndarray[Any, np.dtype[np.int64]] | None = None
    absent: Bools | None = None

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

    def slice(self, first: int, last: int) -> "Rows":
        """Rows [first, last), without a copy of the data."""
        shapes = None if self.shapes is None else self.shapes[first:last]
        absent = None if self.absent is None else self.absent[first:last]
        if self.offsets is None:
            return Rows(last - first, self.data[first:last], None, shapes, absent)
        edges = self.offsets[first : last + 1]
        return Rows(last - first, self.data[edges[0] : edges[-1]], edges - edges[0], shapes, absent)


@dataclass(frozen=True)
class Gathered:
    """Some rows of one field, in the order asked for.

    data: uint8 [n, width] for fields of fixed width, else None.
    views: one read-only view of the mapped file a row otherwise, else None.
    shapes: int64 [n, ndim] for ragged fields.
    bad: bool [n], rows that are damaged or missing, or None when all are well.
    absent: bool [n], records without a value, or None when all have one.

    Values of a field with a codec are compressed still.
    """

    data: np.ndarray[Any, np.dtype[np.uint8]] | None
    views: list[memoryview] | None
    shapes: np.ndarray[Any, np.dtype[np.int64]] | None
    bad: Bools | None
    absent: Bools | None = None


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
    absent = None
    if any(part.absent is not None for part in parts):
        absent = np.concatenate([np.zeros(part.count, bool) if part.absent is None else part.absent for part in parts])
    return Rows(count, data, offsets, np.concatenate(shapes) if shapes else None, absent)


def absent_rows(field: Field, count: int) -> Rows:
    """Records that have no value for a field."""
    absent = np.ones(count, bool)
    if isinstance(field, Array):
        return Rows(count, np.zeros((count, field.width), np.uint8), absent=absent)
    shapes = np.zeros((count, field.ndim), np.int64) if isinstance(field, Ragged) else None
    return Rows(count, np.zeros(0, np.uint8), np.zeros(count + 1, np.int64), shapes, absent)


def encode(name: str, field: Field, values: Any) -> Rows:
    """Copy a user's values of one field, one per record.

    Args:
        values: for an Array anything that is [n, *shape] in the field's dtype (or lists of Python numbers, converted
            where that loses nothing); for a Ragged a sequence of arrays; otherwise a sequence of values. In a list None
            stands for no value; in a Json field it is one.

    Raises:
        SchemaMismatch: dtype, shape or type differ from the field's.
    """
    if isinstance(values, np.ma.MaskedArray):
        masks = np.ma.getmaskarray(values).reshape(len(values), -1)
        values = [None if mask.all() and mask.size else value for mask, value in zip(masks, values.data, strict=True)]
    if isinstance(values, list | tuple) and not isinstance(field, Json) and any(value is None for value in values):
        return _encode_with_absent(name, field, values)
    if isinstance(field, Array):
        array = exact_array(name, values, field.numpy, field.shape)
        return Rows(len(array), array.reshape(-1).view(np.uint8).reshape(len(array), field.width))
    if isinstance(field, Ragged):
        return _encode_ragged(name, field, values)
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise SchemaMismatch(f"field {name!r} takes a list with one value per record, not {type(values).__name__}")
    return _packed([_encode_value(name, field, value) for value in values])


def decode(
    field: Field,
    views: Sequence[Any],
    shapes: np.ndarray[Any, Any] | None,
    absent: Bools | None = None,
) -> list[Any]:
    """Values that come as lists: read-only arrays, bytes-likes, strings or JSON values; None where absent."""
    if absent is not None and absent.any():
        there = np.flatnonzero(~absent)
        some = decode(field, [views[at] for at in there.tolist()], None if shapes is None else shapes[there])
        values: list[Any] = [None] * len(views)
        for at, value in zip(there.tolist(), some, strict=True):
            values[at] = value
        return values
    if isinstance(field, Ragged):
        assert shapes is not None
        dtype = numpy_dtype(field.dtype)
        return [np.frombuffer(view, dtype).reshape(shape) for view, shape in zip(views, shapes.tolist(), strict=True)]
    if isinstance(field, Bytes):
        return list(views)
    if isinstance(field, Text):
        return [str(view, "utf-8") for view in views]
    return [json.loads(bytes(view)) for view in views]


def decode_array(
    field: Array, data: np.ndarray[Any, np.dtype[np.uint8]], absent: Bools | None = None
) -> np.ndarray[Any, Any]:
    """uint8 [n, width] seen as [n, *shape] in the field's dtype, no copy; a masked array where some are absent."""
    if field.width:
        array = data.view(field.numpy).reshape(len(data), *field.shape)
    else:
        array = np.zeros((len(data), *field.shape), field.numpy)
    if absent is None or not absent.any():
        return array
    mask = np.broadcast_to(absent.reshape(-1, *(1,) * len(field.shape)), array.shape)
    return np.ma.MaskedArray(array, mask)


def decode_rows(field: Field, rows: Rows) -> Any:
    """What a user gets for rows in memory: an array, or a list."""
    if isinstance(field, Array):
        return decode_array(field, rows.data, rows.absent)
    return decode(field, rows.views(), rows.shapes, rows.absent)


def decode_gathered(field: Field, gathered: Gathered) -> Any:
    """What a user gets for gathered rows: an array, or a list."""
    if gathered.data is not None:
        assert isinstance(field, Array)
        return decode_array(field, gathered.data, gathered.absent)
    assert gathered.views is not None
    values = decompress(field, gathered.views, gathered.absent)
    if isinstance(field, Array):
        return decode_array(field, stacked(field, values), gathered.absent)
    return decode(field, values, gathered.shapes, gathered.absent)


def stored_rows(gathered: Gathered) -> Rows:
    """Gathered rows as rows, values of a field with a codec compressed as they were."""
    if gathered.data is not None:
        return Rows(len(gathered.data), gathered.data, absent=gathered.absent)
    assert gathered.views is not None
    packed = _packed(gathered.views)
    return Rows(packed.count, packed.data, packed.offsets, gathered.shapes, gathered.absent)


def decompress(field: Field, views: Sequence[memoryview], absent: Bools | None) -> list[Any]:
    """Values as they were before the field's codec; absent ones stay empty."""
    codec = codec_of(field.codec, field.dictionary)
    if codec is None:
        return list(views)
    if absent is None or not absent.any():
        return codec.decompress(views)
    there = np.flatnonzero(~absent).tolist()
    values: list[Any] = [b""] * len(views)
    for at, value in zip(there, codec.decompress([views[at] for at in there]), strict=True):
        values[at] = value
    return values


def stacked(field: Array, values: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8 [n, width] of one bytes-like a row; empty ones, which are absent, are zeros.

    Raises:
        Damaged: a row of another length.
    """
    data = np.zeros((len(values), field.width), np.uint8)
    for row, value in zip(data, values, strict=True):
        if len(value) not in (0, field.width):
            raise Damaged(f"a record has {len(value)} bytes where the field has {field.width}")
        if len(value):
            row[:] = np.frombuffer(value, np.uint8)
    return data


def to_arrow(name: str, field: Field, rows: Rows, *, compressed: bool = False) -> list[pa.Array]:
    """The Arrow columns of a field, in the order of `columns_of`; they share memory with `rows`.

    Args:
        compressed: the values are as the field's codec leaves them already.
    """
    columns = columns_of(name, field)
    codec = codec_of(field.codec, field.dictionary)
    if codec is not None and field_has_bytes(field) and not compressed:
        rows = _compressed(codec, rows)
    sums = checksums(rows.views(), rows.shapes)
    valid = None
    if rows.absent is not None and rows.absent.any():
        sums[rows.absent] = ABSENT
        valid = pa.py_buffer(np.packbits(~rows.absent, bitorder="little"))
    # Not pa.array: that imports pandas where it is installed, a quarter of a second in the first flush.
    checksum = pa.Array.from_buffers(pa.uint64(), rows.count, [None, pa.py_buffer(sums)])
    if rows.offsets is None:
        return [*(_fixed_arrow(column, rows, valid) for column in columns[:-1]), checksum]
    buffers = [valid, pa.py_buffer(rows.offsets), pa.py_buffer(rows.data)]
    arrays = [pa.Array.from_buffers(columns[0].type, rows.count, buffers)]
    if rows.shapes is not None:
        arrays.append(_lists(columns[1].type, rows.count, pa.py_buffer(np.ascontiguousarray(rows.shapes)), None))
    return [*arrays, checksum]


def field_has_bytes(field: Field) -> bool:
    """Whether a field has a data column at all."""
    return not isinstance(field, Array) or field.width > 0


def _compressed(codec: Codec, rows: Rows) -> Rows:
    values = rows.views()
    if rows.absent is not None:
        values = [view for view, absent in zip(values, rows.absent.tolist(), strict=True) if not absent]
    packed = iter(codec.compress(values))
    gone = np.zeros(rows.count, bool) if rows.absent is None else rows.absent
    small = _packed([b"" if absent else next(packed) for absent in gone.tolist()])
    return Rows(rows.count, small.data, small.offsets, rows.shapes, rows.absent)


def _encode_with_absent(name: str, field: Field, values: Sequence[Any]) -> Rows:
    there = np.array([value is not None for value in values])
    some = encode(name, field, [value for value in values if value is not None])
    absent = absent_rows(field, len(values))
    if some.offsets is None:
        absent.data[there] = some.data
        return Rows(len(values), absent.data, absent=~there)
    lengths = np.zeros(len(values), np.int64)
    lengths[there] = np.diff(some.offsets)
    if absent.shapes is not None and some.shapes is not None:
        absent.shapes[there] = some.shapes
    return Rows(len(values), some.data, np.concatenate(([0], np.cumsum(lengths))), absent.shapes, ~there)


def _fixed_arrow(column: Column, rows: Rows, valid: pa.Buffer | None) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(rows.data))
    if not isinstance(column.type, pa.FixedShapeTensorType):
        return pa.Array.from_buffers(column.type, rows.count, [valid, buffer])
    return pa.ExtensionArray.from_storage(column.type, _lists(column.type.storage_type, rows.count, buffer, valid))


def _lists(kind: pa.DataType, count: int, buffer: pa.Buffer, valid: pa.Buffer | None) -> pa.Array:
    values = pa.Array.from_buffers(kind.value_type, count * kind.list_size, [None, buffer])
    return pa.Array.from_buffers(kind, count, [valid], children=[values])


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
