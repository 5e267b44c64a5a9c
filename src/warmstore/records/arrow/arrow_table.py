"""Conversion of stored columns to typed Arrow columns and back.

If a stored and a typed column have the same layout, they share memory. A record without a value is null. `arrow_schema`
has the types of fields.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from warmstore.errors import BadSource, Damaged, UnsupportedType
from warmstore.records.arrow.arrow_elements import (
    bitmap,
    element_bytes,
    element_type,
    elements,
    is_nat,
    is_time,
    nulls_of,
    with_nat,
)
from warmstore.records.arrow.arrow_schema import Form, field_type, typed_schema
from warmstore.records.format.codecs import codec_of
from warmstore.records.format.encoded_rows import EncodedRows, spread
from warmstore.records.format.fields import SHAPE, Array, Field, Fields, Ragged, field_has_bytes, numpy_dtype
from warmstore.records.format.value_encoding import matrix
from warmstore.storage.array_types import Bools, Bytes, Int64

_LIST_ITEMS = (1 << 31) - 1
"""The most elements in the lists of one batch: their offsets are int32."""


class _TooManyItems(UnsupportedType):
    """The lists of one batch have more elements than int32 offsets allow. The batch can be halved."""


def typed_table(
    table: pa.Table, fields: Fields, *, checksums: bool = False, absent: Mapping[str, Bools] | None = None
) -> pa.Table:
    """Convert a table of stored columns to typed columns. Batches that are too large are halved.

    Args:
        table: stored columns (`fields.columns_of`) of at least these fields.
        fields: the fields of the result, in order.
        checksums: copy the checksum columns, unchanged.
        absent: for each field whose values take no bytes: bool [n], the records without a value. No stored column has
            this information.

    Raises:
        UnsupportedType: the values of a field take no bytes, and `absent` does not have it; a time is out of range for
            its Arrow type; a size of a Ragged value, or the number of its elements, is more than 2**31 - 1.
        Damaged: a compressed value cannot be decompressed.
    """
    for name, flags in (absent or {}).items():
        rows = EncodedRows(len(flags), np.zeros((len(flags), 0), np.uint8), absent=flags)
        table = table.append_column(name, typed_column(name, fields[name], rows))
    schema = typed_schema(fields, checksums=checksums)
    batches = (part for batch in table.to_batches() for part in _parts(batch, fields, schema))
    return pa.Table.from_batches(batches, schema=schema)


def typed_rows(rows: Mapping[str, EncodedRows], fields: Fields) -> pa.Table:
    """A table of decompressed rows of equal number. Tables that are too large for one batch are halved."""
    try:
        columns = [typed_column(name, field, rows[name]) for name, field in fields.items()]
    except _TooManyItems:
        count = next(iter(rows.values())).count
        if count < 2:
            raise
        halves = [(0, count // 2), (count // 2, count)]
        return pa.concat_tables(
            typed_rows({name: part.slice(*half) for name, part in rows.items()}, fields) for half in halves
        )
    return pa.Table.from_arrays(columns, schema=typed_schema(fields))


def _parts(batch: pa.RecordBatch, fields: Fields, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        names = schema.names
        columns = [_column(name, fields[name], batch) if name in fields else batch.column(name) for name in names]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
    except _TooManyItems:
        if batch.num_rows < 2:
            raise
        half = batch.num_rows // 2
        yield from _parts(batch.slice(0, half), fields, schema)
        yield from _parts(batch.slice(half), fields, schema)


def _column(name: str, field: Field, batch: pa.RecordBatch) -> pa.Array:
    if not field_has_bytes(field) and name not in batch.schema.names:
        raise UnsupportedType(
            f"field {name!r} is {field}, whose values take no bytes: its stored columns do not show which are absent. "
            "RecordStore.to_arrow does; leave it out here"
        )
    is_typed_already = not field_has_bytes(field) or not (isinstance(field, Array | Ragged) or field.codec != "raw")
    return batch.column(name) if is_typed_already else typed_column(name, field, rows_of_stored(name, field, batch))


# From rows to typed columns


def typed_column(name: str, field: Field, rows: EncodedRows, form: Form = Form.TABLE) -> pa.Array:
    """The values of one field as a typed column.

    Args:
        rows: decompressed.

    Raises:
        UnsupportedType: see `typed_table`.
    """
    kind = field_type(field, form)
    if isinstance(field, Array):
        return _array_column(name, field, kind, rows, form)
    assert rows.offsets is not None
    if isinstance(field, Ragged):
        return _ragged_column(name, field, kind, rows)
    buffers = [bitmap(rows.absent), pa.py_buffer(rows.offsets), pa.py_buffer(rows.data)]
    return pa.Array.from_buffers(kind, rows.count, buffers)


def _array_column(name: str, field: Array, kind: pa.DataType, rows: EncodedRows, form: Form) -> pa.Array:
    data, absent = rows.data.reshape(-1), rows.absent
    if not isinstance(kind, pa.FixedShapeTensorType) and not pa.types.is_list(kind):
        return elements(name, field.numpy, kind, data, absent, nat_is_null=form == Form.TABLE)
    size = math.prod(field.shape)
    edges = range(0, (rows.count + 1) * size, size) if size else range(1)
    gone = np.repeat(absent, size) if absent is not None and is_time(field.numpy) else None
    flat = elements(name, field.numpy, kind.value_type, data, gone, edges)
    if pa.types.is_list(kind):
        offsets = pa.py_buffer(np.zeros(rows.count + 1, np.int32))
        return pa.Array.from_buffers(kind, rows.count, [bitmap(absent), offsets], children=[flat])
    return pa.ExtensionArray.from_storage(kind, _lists(kind.storage_type, rows.count, absent, flat))


def _ragged_column(name: str, field: Ragged, kind: pa.DataType, rows: EncodedRows) -> pa.Array:
    assert rows.offsets is not None
    assert rows.shapes is not None
    dtype = numpy_dtype(field.dtype)
    _, axes = element_type(dtype)
    edges = rows.offsets // dtype.itemsize * math.prod(axes)
    if int(edges[-1]) > _LIST_ITEMS:
        raise _TooManyItems(
            f"field {name!r} holds {int(edges[-1]):,} elements in {rows.count:,} records of one Arrow "
            f"batch, which can have {_LIST_ITEMS:,}. Leave it out with fields=[...]"
        )
    if rows.shapes.max(initial=0) > _LIST_ITEMS:
        at = int(rows.shapes.max(axis=1).argmax())
        raise UnsupportedType(
            f"field {name!r}: the value of record {at} of a batch has the shape {tuple(rows.shapes[at].tolist())}; "
            f"Arrow's tensors take sizes up to {_LIST_ITEMS:,}. Leave it out with fields=[...]"
        )
    storage = kind.storage_type
    flat = elements(name, dtype, storage.field("data").type.value_type, rows.data, None, edges)
    offsets = pa.py_buffer(edges.astype(np.int32))
    data = pa.Array.from_buffers(storage.field("data").type, rows.count, [None, offsets], children=[flat])
    parts = np.broadcast_to(np.array(axes, np.int64), (rows.count, len(axes)))
    whole = np.concatenate([rows.shapes, parts], axis=1)
    sizes = pa.Array.from_buffers(pa.int32(), whole.size, [None, pa.py_buffer(np.ascontiguousarray(whole, np.int32))])
    shape = _lists(storage.field("shape").type, rows.count, None, sizes)
    struct = pa.Array.from_buffers(storage, rows.count, [bitmap(rows.absent)], children=[data, shape])
    return pa.ExtensionArray.from_storage(kind, struct)


def _lists(kind: pa.DataType, count: int, absent: Bools | None, values: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [bitmap(absent)], children=[values])


# From typed columns to rows


def rows_of_typed(name: str, field: Array | Ragged, values: pa.Array, form: Form) -> EncodedRows:
    """The inverse of `typed_column`.

    Args:
        values: validated. Only in the form TABLE does the element of a null tell whether it is NaT: in Parquet it is
            arbitrary.

    Raises:
        BadSource: nulls other than NaT inside of values, or shapes that do not fit the numbers of elements.
    """
    absent = nulls_of(values)
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if isinstance(field, Ragged):
        return _ragged_rows(name, field, values, absent)
    if not (pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type)):
        return _scalar_rows(name, field, values, absent, form)
    if not field.width:
        return EncodedRows(len(values), np.zeros((len(values), 0), np.uint8), absent=absent)
    present = _element_bytes(name, field.numpy, values.flatten()).reshape(-1, field.width)
    if absent is None:
        return EncodedRows(len(values), present)
    data = np.zeros((len(values), field.width), np.uint8)
    data[~absent] = present
    return EncodedRows(len(values), data, absent=absent)


def _scalar_rows(name: str, field: Array, values: pa.Array, absent: Bools | None, form: Form) -> EncodedRows:
    data = element_bytes(name, field.numpy, values, absent)
    if absent is not None:
        if is_time(field.numpy) and form == Form.TABLE:
            absent &= ~is_nat(data)
        data = np.where(absent[:, None], np.uint8(0), data.reshape(len(values), field.width))
        absent = absent if absent.any() else None
    return EncodedRows(len(values), data.reshape(len(values), field.width), absent=absent)


def _ragged_rows(name: str, field: Ragged, struct: pa.Array, absent: Bools | None) -> EncodedRows:
    dtype = numpy_dtype(field.dtype)
    _, axes = element_type(dtype)
    if absent is not None:
        struct = struct.drop_null()
    lists, sizes = struct.field("data"), struct.field("shape")
    shapes = _shapes(name, sizes)
    if lists.null_count:
        raise BadSource(f"column {name!r} holds tensors whose elements are null")
    data = _element_bytes(name, dtype, lists.flatten())
    lengths = np.asarray(lists.value_lengths().to_numpy(zero_copy_only=False), np.int64)
    if not np.array_equal(shapes.prod(axis=1), lengths) or (shapes[:, field.ndim :] != axes).any():
        raise BadSource(f"column {name!r}: the shapes of tensors and their numbers of elements differ")
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(lengths // math.prod(axes) * dtype.itemsize, out=offsets[1:])
    rows = EncodedRows(len(lists), data, offsets, np.ascontiguousarray(shapes[:, : field.ndim]))
    return rows if absent is None else spread(field, rows, absent)


def _shapes(name: str, sizes: pa.Array) -> Int64:
    """int64 [n, ndim] of a column of fixed-size lists of sizes."""
    flat = sizes.flatten()
    ndim = sizes.type.list_size
    if sizes.null_count or flat.null_count or len(flat) != len(sizes) * ndim:
        raise BadSource(f"column {name!r} holds tensors whose shapes are null")
    shapes = np.asarray(flat.to_numpy(), np.int64).reshape(len(sizes), ndim)
    if (shapes < 0).any():
        raise BadSource(f"column {name!r} holds tensors with negative sizes")
    return shapes


def _element_bytes(name: str, dtype: np.dtype[Any], flat: pa.Array) -> Bytes:
    """The bytes of elements in lists, in which only NaT may be null."""
    null = nulls_of(flat)
    data = element_bytes(name, dtype, flat, null)
    if null is None:
        return data
    if not is_time(dtype):
        raise BadSource(
            f"column {name!r} holds nulls inside of its values: {flat.null_count:,} of the {len(flat):,} elements that "
            f"were read at once, the first at number {int(np.argmax(null)):,} of them. Fill them first, or leave the "
            "column out with fields=[...]"
        )
    return with_nat(data, null)


# Stored columns


def rows_of_stored(name: str, field: Field, batch: pa.RecordBatch) -> EncodedRows:
    """The values of a field of a batch of stored columns, decompressed. Without a codec they are not copied.

    Raises:
        Damaged: a compressed value cannot be decompressed.
    """
    stored = batch.column(name)
    absent = nulls_of(stored)
    codec = codec_of(field.codec, field.dictionary)
    if isinstance(field, Array) and codec is None:
        data = np.frombuffer(_fixed_bytes(stored, field.width), np.uint8).reshape(len(stored), field.width)
        return EncodedRows(len(stored), data, absent=absent)
    rows = replace(_varying(stored), absent=absent)
    if codec is not None:
        try:
            assert rows.offsets is not None
            starts = np.ascontiguousarray(rows.offsets[:-1])
            data, offsets = codec.decompress(rows.data, starts, np.diff(rows.offsets))
        except Damaged as error:
            raise Damaged(f"field {name!r}: {error}") from error
        rows = replace(rows, data=data, offsets=offsets)
    if isinstance(field, Array):
        return EncodedRows(rows.count, matrix(field, rows), absent=absent)
    if isinstance(field, Ragged):
        shapes = np.frombuffer(_fixed_bytes(batch.column(name + SHAPE), 8 * field.ndim), np.int64)
        return replace(rows, shapes=shapes.reshape(-1, field.ndim))
    return rows


def _fixed_bytes(stored: pa.Array, width: int) -> pa.Buffer:
    """The bytes of the values of a column of fixed width, without a copy."""
    count = len(stored)
    if isinstance(stored, pa.ExtensionArray):
        stored = stored.storage
    first = stored.offset * width
    if pa.types.is_fixed_size_list(stored.type):
        stored = stored.values  # all values, also those outside of a slice
        first += stored.offset * (stored.type.bit_width // 8)
    return _part(stored.buffers()[1], first, count * width)


def _varying(stored: pa.Array) -> EncodedRows:
    _, edges, data = stored.buffers()
    if not len(stored):
        return EncodedRows(0, np.zeros(0, np.uint8), np.zeros(1, np.int64))
    offsets = np.frombuffer(edges, np.int64)[stored.offset : stored.offset + len(stored) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    return EncodedRows(len(stored), np.frombuffer(_part(data, first, last - first), np.uint8), offsets - first)


def _part(buffer: pa.Buffer | None, first: int, size: int) -> pa.Buffer:
    return pa.py_buffer(b"") if buffer is None else buffer.slice(first, size)
