"""What a user's values are as bytes, and back: the two ways through a field's dtype, shape and codec."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from warmstore.errors import Damaged, SchemaMismatch, UnsupportedType
from warmstore.records.arrays import exact_array, to_numpy
from warmstore.records.buffers import Allocate, take
from warmstore.records.codecs import codec_of
from warmstore.records.fields import Array, Bytes, Field, Json, Ragged, Text, field_has_bytes, numpy_dtype
from warmstore.records.rows import Bools, Gathered, Rows, absent_rows, packed


def encode(name: str, field: Field, values: Any, *, own: bool = False) -> Rows:
    """A user's values of one field, one per record, in memory of their own.

    Args:
        values: for an Array anything that is [n, *shape] in the field's dtype (or lists of Python numbers, converted
            where that loses nothing); for a Ragged a sequence of arrays; otherwise a sequence of values. In a list None
            stands for no value; in a Json field it is one.
        own: nobody else writes to `values`: an array of a fixed width is taken as it is.

    Raises:
        SchemaMismatch: dtype, shape or type differ from the field's.
    """
    if isinstance(values, np.ma.MaskedArray):
        masks = np.ma.getmaskarray(values).reshape(len(values), -1)
        values = [None if mask.all() and mask.size else value for mask, value in zip(masks, values.data, strict=True)]
    if isinstance(values, list | tuple) and not isinstance(field, Json) and any(value is None for value in values):
        return _encode_with_absent(name, field, values)
    if isinstance(field, Array):
        fits = own and values.flags.c_contiguous and (values.dtype, values.shape[1:]) == (field.numpy, field.shape)
        array = values if fits else exact_array(name, values, field.numpy, field.shape)
        return Rows(len(array), array.reshape(-1).view(np.uint8).reshape(len(array), field.width))
    if isinstance(field, Ragged):
        return _encode_ragged(name, field, values)
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise SchemaMismatch(f"field {name!r} takes a list with one value per record, not {type(values).__name__}")
    return packed([_encode_value(name, field, value) for value in values])


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


@dataclass(frozen=True)
class Packed:
    """The values of some records one after the other in one array; `packed[i]` is the i-th.

    values: one-dimensional; of the field's dtype for a Ragged field, else uint8.
    offsets: int64 [n + 1]: value i is `values[offsets[i]:offsets[i + 1]]`; for one dimension these are `cu_seqlens`.
    shapes: int64 [n, ndim] for a Ragged field, else None.
    absent: bool [n], records without a value (theirs are empty), or None where all have one.
    """

    values: np.ndarray[Any, Any]
    offsets: np.ndarray[Any, np.dtype[np.int64]]
    shapes: np.ndarray[Any, np.dtype[np.int64]] | None = None
    absent: Bools | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, at: int) -> np.ndarray[Any, Any]:
        at = range(len(self))[at]
        value = self.values[self.offsets[at] : self.offsets[at + 1]]
        return value if self.shapes is None else value.reshape(self.shapes[at])


def decode_rows(field: Field, rows: Rows) -> Any:
    """What a user gets for rows in memory: an array, or a list."""
    if isinstance(field, Array):
        return decode_array(field, _matrix(field, rows), rows.absent)
    return decode(field, rows.views(), rows.shapes, rows.absent)


def decode_gathered(field: Field, gathered: Gathered) -> Any:
    """What a user gets for gathered rows: an array, or a list."""
    if gathered.data is not None:
        assert isinstance(field, Array)
        return decode_array(field, gathered.data, gathered.absent)
    assert gathered.spans is not None
    if codec_of(field.codec, field.dictionary) is None:
        return decode(field, gathered.spans.views(), gathered.shapes, gathered.absent)
    return decode_rows(field, decompressed(field, gathered))


def decompressed(field: Field, gathered: Gathered, allocate: Allocate = take) -> Rows:
    """Gathered rows of varying width as they were before the field's codec, one after the other."""
    assert gathered.spans is not None
    codec = codec_of(field.codec, field.dictionary)
    if codec is None:
        return replace(gathered.spans.copied(allocate), shapes=gathered.shapes, absent=gathered.absent)
    data, offsets = codec.decompress(gathered.spans.views(), allocate)
    return Rows(len(gathered.spans), data, offsets, gathered.shapes, gathered.absent)


def decode_packed(field: Field, rows: Rows) -> Packed:
    """Rows of varying width as one array."""
    assert rows.offsets is not None
    absent = rows.absent if rows.absent is not None and rows.absent.any() else None
    if not isinstance(field, Ragged):
        return Packed(rows.data, rows.offsets, None, absent)
    dtype = numpy_dtype(field.dtype)
    return Packed(rows.data.view(dtype), rows.offsets // dtype.itemsize, rows.shapes, absent)


def compressed(field: Field, rows: Rows, threads: int | None = None) -> Rows:
    """Rows as they are stored: each value through the field's codec, in so many threads; absent ones stay empty."""
    codec = codec_of(field.codec, field.dictionary)
    if codec is None or not field_has_bytes(field):
        return rows
    values = rows.views()
    if rows.absent is not None:
        values = [view for view, absent in zip(values, rows.absent.tolist(), strict=True) if not absent]
    results = iter(codec.compress(values, threads))
    gone = np.zeros(rows.count, bool) if rows.absent is None else rows.absent
    return replace(
        packed([b"" if absent else next(results) for absent in gone.tolist()], rows.shapes), absent=rows.absent
    )


def _matrix(field: Array, rows: Rows) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8 [n, width] of rows of an Array field, also where a codec let their width vary; absent ones are zeros.

    Raises:
        Damaged: a row of another length.
    """
    if rows.offsets is None:
        return rows.data
    there = np.diff(rows.offsets)
    if not np.isin(there, (0, field.width)).all():
        raise Damaged(f"a record of {int(there.max())} bytes was read where the field has {field.width}")
    if there.all():
        return rows.data.reshape(rows.count, field.width)
    data = np.zeros((rows.count, field.width), np.uint8)
    data[there > 0] = rows.data.reshape(-1, field.width)
    return data


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
    shapes = np.array([array.shape for array in arrays], np.int64).reshape(len(arrays), field.ndim)
    return packed([np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays], shapes)


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
