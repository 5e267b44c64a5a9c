"""Conversion between the values of users and their bytes, by the dtype, shape and codec of a field."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from warmstore.errors import Damaged, SchemaMismatch, UnsupportedType
from warmstore.records.format.array_interop import array_of_numbers, exact_array, whole_array
from warmstore.records.format.codecs import codec_of
from warmstore.records.format.encoded_rows import EncodedRows, GatheredColumn, packed, spread
from warmstore.records.format.fields import Array, Bytes, Field, Json, Ragged, Text, field_has_bytes, numpy_dtype
from warmstore.storage.array_types import Bools
from warmstore.storage.memory.buffer_pool import Allocate, take


def encode(name: str, field: Field, values: Any, *, own: bool = False) -> EncodedRows:
    """Copy the values of one field, one per record, into rows.

    Args:
        values: for an Array an [n, *shape] array of the field's dtype, or lists of Python numbers, which are converted
            without loss; for a Ragged a sequence of arrays or of such lists; otherwise a sequence of values. None in a
            list is an absent value, except in a Json field. A fully masked value is absent.
        own: nobody else writes to `values`, so a contiguous array of the right dtype and shape is not copied.

    Raises:
        SchemaMismatch: dtype, shape or type differ from the field's, or a value is partly masked.
    """
    if isinstance(values, np.ma.MaskedArray):
        return _encode_masked(name, field, values)
    if not isinstance(field, Array) or isinstance(values, _NO_BATCHES):
        values = _listed(name, values)
    if isinstance(values, list | tuple):
        is_json = isinstance(field, Json)
        if any(isinstance(value, np.ma.MaskedArray) or (value is None and not is_json) for value in values):
            return _encode_partly_absent(name, field, values)
    if isinstance(field, Array):
        fits = own and values.flags.c_contiguous and (values.dtype, values.shape[1:]) == (field.numpy, field.shape)
        array = values if fits else exact_array(name, values, field.numpy, field.shape)
        return EncodedRows(len(array), array.reshape(-1).view(np.uint8).reshape(len(array), field.width))
    if isinstance(field, Ragged):
        return _encode_ragged(name, field, values)
    return packed([_encode_value(name, field, value) for value in values])


_NO_BATCHES = (Mapping, set, frozenset, str, bytes)


def _listed(name: str, values: Any) -> Sequence[Any]:
    """The values of a batch as a list or tuple. A dict and a table would give their keys, a set has no order."""
    if isinstance(values, list | tuple):
        return values
    is_table = hasattr(values, "columns")
    if isinstance(values, _NO_BATCHES) or is_table or not hasattr(values, "__len__"):
        raise SchemaMismatch(f"field {name!r} takes a list with one value per record, not {type(values).__name__}")
    return list(values)


def decode(
    field: Field,
    views: Sequence[Any],
    shapes: np.ndarray[Any, Any] | None,
    absent: Bools | None = None,
) -> list[Any]:
    """Values as a list: read-only arrays, bytes-like values, strings or JSON values; None for absent ones."""
    if absent is not None and absent.any():
        present = np.flatnonzero(~absent)
        some = decode(field, [views[at] for at in present.tolist()], None if shapes is None else shapes[present])
        values: list[Any] = [None] * len(views)
        for at, value in zip(present.tolist(), some, strict=True):
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
    """View uint8 [n, width] as [n, *shape] of the field's dtype; a masked array if some values are absent."""
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
    """The values of some records concatenated in one array; `packed[i]` is the i-th.

    values: one-dimensional; of the field's dtype for a Ragged field, else uint8.
    offsets: int64 [n + 1]: value i is `values[offsets[i]:offsets[i + 1]]`; for one dimension these are `cu_seqlens`.
    shapes: int64 [n, ndim] for a Ragged field, else None.
    absent: bool [n], records without a value, which have no bytes in `values`; None if all records have one.
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


def decode_rows(field: Field, rows: EncodedRows) -> Any:
    """The values of rows in memory: an array, or a list."""
    if isinstance(field, Array):
        return decode_array(field, matrix(field, rows), rows.absent)
    return decode(field, rows.views(), rows.shapes, rows.absent)


def decode_gathered(field: Field, gathered: GatheredColumn) -> Any:
    """The values of gathered rows: an array, or a list."""
    if gathered.data is not None:
        assert isinstance(field, Array)
        return decode_array(field, gathered.data, gathered.absent)
    assert gathered.spans is not None
    if codec_of(field.codec, field.dictionary) is None:
        return decode(field, gathered.spans.views(), gathered.shapes, gathered.absent)
    return decode_rows(field, decompressed(field, gathered))


def decompressed(field: Field, gathered: GatheredColumn, allocate: Allocate = take) -> EncodedRows:
    """Gathered rows of varying width, decompressed and concatenated."""
    assert gathered.spans is not None
    codec = codec_of(field.codec, field.dictionary)
    if codec is None:
        return replace(gathered.spans.copied(allocate), shapes=gathered.shapes, absent=gathered.absent)
    data, offsets = codec.decompress(*gathered.spans.in_memory(), allocate)
    return EncodedRows(len(gathered.spans), data, offsets, gathered.shapes, gathered.absent)


def raw_rows(field: Field, gathered: GatheredColumn) -> EncodedRows:
    """Gathered rows, decompressed. Rows of an Array field have one width."""
    if gathered.data is not None:
        return EncodedRows(len(gathered.data), gathered.data, absent=gathered.absent)
    rows = decompressed(field, gathered)
    return EncodedRows(rows.count, matrix(field, rows), absent=rows.absent) if isinstance(field, Array) else rows


def decode_packed(field: Field, rows: EncodedRows) -> Packed:
    """The values of rows of varying width as one array."""
    assert rows.offsets is not None
    absent = rows.absent if rows.absent is not None and rows.absent.any() else None
    if not isinstance(field, Ragged):
        return Packed(rows.data, rows.offsets, None, absent)
    dtype = numpy_dtype(field.dtype)
    return Packed(rows.data.view(dtype), rows.offsets // dtype.itemsize, rows.shapes, absent)


def compressed(field: Field, rows: EncodedRows, threads: int | None = None) -> EncodedRows:
    """Compress each value of some rows with the field's codec, in `threads` threads. Absent values stay empty."""
    codec = codec_of(field.codec, field.dictionary)
    if codec is None or not field_has_bytes(field):
        return rows
    values = rows.views()
    if rows.absent is not None:
        values = [view for view, absent in zip(values, rows.absent.tolist(), strict=True) if not absent]
    results = codec.compress(values, threads)
    if rows.absent is None:
        return packed(results, rows.shapes)
    present = iter(results)
    return replace(
        packed([b"" if absent else next(present) for absent in rows.absent.tolist()], rows.shapes), absent=rows.absent
    )


def matrix(field: Array, rows: EncodedRows) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of an Array field, uint8 [n, width], from rows with or without offsets. Absent rows are zeros.

    Raises:
        Damaged: a row has another length.
    """
    if rows.offsets is None:
        return rows.data
    lengths = np.diff(rows.offsets)
    if not np.isin(lengths, (0, field.width)).all():
        raise Damaged(f"a record of {int(lengths.max())} bytes was read; the field has {field.width}")
    if lengths.all():
        return rows.data.reshape(rows.count, field.width)
    data = np.zeros((rows.count, field.width), np.uint8)
    data[lengths > 0] = rows.data.reshape(-1, field.width)
    return data


def _encode_masked(name: str, field: Field, values: np.ma.MaskedArray[Any, Any]) -> EncodedRows:
    """Rows of a masked array. Fully masked values are absent."""
    if values.mask is np.ma.nomask or not values.ndim or not len(values):
        return encode(name, field, values.data)
    if not values.size:
        raise _unknown_absence(name, 0)
    masks = np.ma.getmaskarray(values).reshape(len(values), -1)
    absent = np.asarray(masks.all(axis=1))
    partly = np.flatnonzero(masks.any(axis=1) & ~absent)
    if len(partly):
        raise _partly_masked(name, int(partly[0]))
    return spread(field, encode(name, field, values.data[~absent]), absent)


def _encode_partly_absent(name: str, field: Field, values: Sequence[Any]) -> EncodedRows:
    """Rows of a list: None (except in a Json field) and fully masked arrays are absent values."""
    absent = np.zeros(len(values), bool)
    present = []
    for at, value in enumerate(values):
        if isinstance(value, np.ma.MaskedArray):
            absent[at] = _is_masked(name, value, at)
            value = value.data
        elif value is None:
            absent[at] = not isinstance(field, Json)
        if not absent[at]:
            present.append(value)
    return spread(field, encode(name, field, present), absent)


def _is_masked(name: str, value: np.ma.MaskedArray[Any, Any], at: int) -> bool:
    """Whether the value of record `at` of a batch is fully masked."""
    if value.mask is np.ma.nomask:
        return False
    if not value.size:
        raise _unknown_absence(name, at)
    mask = np.ma.getmaskarray(value)
    if mask.any() and not mask.all():
        raise _partly_masked(name, at)
    return bool(mask.all())


def _partly_masked(name: str, at: int) -> SchemaMismatch:
    return SchemaMismatch(
        f"field {name!r}: the value of record {at} of the batch is partly masked; only a whole value can be absent. "
        "Fill it first, with values.filled(...)"
    )


def _unknown_absence(name: str, at: int) -> SchemaMismatch:
    return SchemaMismatch(
        f"field {name!r}: the value of record {at} of the batch has no elements, so its mask does not tell whether it "
        "is absent; pass a list with None for absent values, or the array without its mask (values.data)"
    )


def _encode_ragged(name: str, field: Ragged, values: Sequence[Any]) -> EncodedRows:
    dtype = numpy_dtype(field.dtype)
    try:
        arrays = [
            array_of_numbers(name, value, dtype) if isinstance(value, list | tuple) else whole_array(name, value)
            for value in values
        ]
    except ValueError as error:
        if isinstance(error, SchemaMismatch):
            raise
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
        return _unicode(name, value, value)
    return to_json(name, value)[0]


def to_json(name: str, value: Any) -> tuple[bytes, Any]:
    """A JSON value as bytes, and the copy of it that these give.

    Args:
        name: the field, for messages.

    Raises:
        UnsupportedType: the copy would differ.
    """
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
    return _unicode(name, value, text), back


def _unicode(name: str, value: Any, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedType(f"field {name!r}: {value!r:.100} is not valid Unicode: {error}") from None


def _same(back: Any, value: Any) -> bool:
    """Whether two JSON values are equal, with NaN equal to NaN at any depth."""
    if isinstance(back, dict):
        return isinstance(value, dict) and back.keys() == value.keys() and all(_same(back[k], value[k]) for k in back)
    if isinstance(back, list):
        return isinstance(value, list) and len(back) == len(value) and all(map(_same, back, value))
    return bool(back == value or (back != back and value != value))
