"""The values of Arrow columns as encoded rows, straight from Arrow's buffers: no Python object per value.

Foreign files carry no checksum of ours, so every column is validated in full before its buffers are read.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from warmstore.errors import BadSource, SchemaMismatch
from warmstore.records.convert.arrow_types import described_field, field_of_column, is_file, is_list
from warmstore.records.convert.source import BATCH_BYTES, BATCH_ROWS, Batch, Request
from warmstore.records.fields import SHAPE, Array, Bytes, Field, Fields, Json, Ragged, Text
from warmstore.records.rows import Rows
from warmstore.records.values import encode


def fields_of_schema(request: Request, schema: pa.Schema) -> Fields:
    """The fields of a table with this schema."""
    names = [name for name in schema.names if not name.endswith(SHAPE)]
    if len(set(names)) < len(names):
        raise BadSource(f"two columns have one name: {', '.join(schema.names)}")
    return request.choose(names, lambda name: field_of_column(schema.field(name)))


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in parts of a few megabytes; nothing is copied."""
    step = min(max(1, batch.num_rows * BATCH_BYTES // max(batch.nbytes, 1)), BATCH_ROWS)
    for first in range(0, batch.num_rows, step):
        yield batch.slice(first, step)


def batch_of(fields: Fields, table: pa.RecordBatch, done: int | None = None) -> Batch:
    """The chosen columns of some records, encoded."""
    columns = {name: _column(fields[name], table, name) for name in fields}
    return Batch(columns, done)


def _column(field: Field, table: pa.RecordBatch, name: str) -> Rows:
    shapes = None
    if isinstance(field, Ragged) and field.ndim > 1 and name + SHAPE in table.schema.names:
        flat = fixed_values(name + SHAPE, table.column(name + SHAPE), (field.ndim,))
        shapes = numbers(name, flat).reshape(-1, field.ndim)
    return rows_of(table.schema.field(name), field, table.column(name), shapes)


def rows_of(column: pa.Field, field: Field, values: pa.Array, shapes: Any = None) -> Rows:
    """One column of a batch as rows of `field`.

    Args:
        shapes: int64 [n, ndim], for ragged values that come as flat lists.

    Raises:
        BadSource: nulls, or bytes that are not what the column's type says. SchemaMismatch: another type than the
        field's.
    """
    name = column.name
    values.validate(full=True)
    values = _unwrapped(values)
    if isinstance(field, Json):
        listed = values.to_pylist()
        parsed = isinstance(described_field(column), Json)
        return encode(
            name, field, [json.loads(one) for one in listed] if parsed else [_jsonable(one) for one in listed]
        )
    if isinstance(field, Bytes) and is_file(values.type):
        return _files(name, values)
    times = isinstance(field, Array) and field.numpy.kind in "mM"
    if not times:
        check_nulls(name, values)
    if isinstance(field, Array):
        # complex128 lies in Arrow as pairs of 64 bits.
        pair = (2,) if field.dtype == "complex128" and isinstance(described_field(column), Array) else ()
        flat = numbers(name, fixed_values(name, values, field.shape + pair))
        return _array_rows(name, field, flat, len(values))
    if isinstance(field, Ragged):
        return _ragged_rows(name, field, values, shapes)
    target = pa.large_string() if isinstance(field, Text) else pa.large_binary()
    try:
        values = values.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise SchemaMismatch(f"column {name!r} is {values.type}; it does not fit {field}") from None
    _, edges, data = values.buffers()
    return _varying(edges, data, values.offset, len(values))


def check_nulls(name: str, values: pa.Array) -> None:
    """Raise BadSource where a column holds nulls."""
    if values.null_count:
        first = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        raise BadSource(
            f"column {name!r} holds nulls: {values.null_count:,} of the {len(values):,} values read at once, the first "
            f"at number {first:,} of them. Fill them first, keep them as JSON null with fields={{{name!r}: ws.Json(), "
            "...}, or leave the column out with fields=[...]"
        )


def fixed_values(name: str, values: pa.Array, shape: tuple[int, ...]) -> pa.Array:
    """The flat numbers of a column whose every value has `shape`, whatever nesting of lists says so."""
    count = len(values)
    if isinstance(values.type, pa.FixedShapeTensorType):
        turned = values.type.permutation
        if turned is not None and list(turned) != sorted(turned):
            raise SchemaMismatch(f"column {name!r} holds tensors whose dimensions are stored in the order {turned}")
        values = values.storage
        if values.type.list_size == math.prod(shape):
            shape = (math.prod(shape),)
    for size in shape:
        values = _unwrapped(values)
        if pa.types.is_fixed_size_list(values.type):
            lengths_fit = values.type.list_size == size
        elif is_list(values.type):
            lengths_fit = bool((np.diff(_offsets(values)) == size).all())
        else:
            lengths_fit = False
        if not lengths_fit:
            raise SchemaMismatch(f"column {name!r} holds values that are not all of the shape {shape}")
        values = values.flatten()
        check_nulls(name, values)
    if is_list(values.type) or pa.types.is_fixed_size_list(values.type):
        raise SchemaMismatch(f"column {name!r} holds lists; its field has {len(shape)} dimensions, which are too few")
    assert len(values) == count * math.prod(shape)
    return values


def numbers(name: str, values: pa.Array) -> np.ndarray[Any, Any]:
    """A flat column of numbers, bools or times as NumPy has them; a null time is NaT."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    if pa.types.is_date32(kind):
        days = values.cast(pa.int32()).cast(pa.int64())
        return _with_nat(days).view("M8[D]")
    if pa.types.is_temporal(kind) and not pa.types.is_time(kind):
        unit = "ms" if pa.types.is_date64(kind) else kind.unit
        letter = "m8" if pa.types.is_duration(kind) else "M8"
        return _with_nat(values.view(pa.int64())).view(f"{letter}[{unit}]")
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise SchemaMismatch(f"column {name!r} holds {kind}, which are not numbers")
    return np.asarray(values.to_numpy())


def _with_nat(values: pa.Array) -> np.ndarray[Any, Any]:
    nat = np.iinfo(np.int64).min
    return np.array(values.fill_null(nat).to_numpy())


def _array_rows(name: str, field: Array, flat: np.ndarray[Any, Any], count: int) -> Rows:
    flat = _exact(name, field, flat, field.numpy)
    return Rows(count, np.ascontiguousarray(flat).view(np.uint8).reshape(count, field.width))


def _exact(name: str, field: Field, flat: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Numbers in exactly the field's dtype; the bits that stand for one that Arrow does not know are it."""
    if flat.dtype == dtype:
        return flat
    foreign = dtype.kind in "VcbmM" or dtype.num >= 256  # what a store keeps as bits
    if foreign and flat.dtype.kind == "u" and dtype.itemsize in (flat.dtype.itemsize, 2 * flat.dtype.itemsize):
        return flat.view(dtype)
    raise SchemaMismatch(f"column {name!r} holds {flat.dtype}, not what {field} says. Nothing is converted on the way")


def _ragged_rows(name: str, field: Ragged, values: pa.Array, shapes: Any) -> Rows:
    dtype = np.dtype(Array(field.dtype).numpy)
    if pa.types.is_fixed_size_list(values.type):
        values = values.cast(pa.large_list(values.type.value_type))
    if not is_list(values.type):
        raise SchemaMismatch(f"column {name!r} is {values.type}; it does not fit {field}")
    if shapes is None and field.ndim > 1 and not pa.types.is_fixed_size_list(values.type.value_type):
        return encode(name, field, [_nested(name, field, one) for one in values.to_pylist()])
    offsets = _offsets(values)
    inner = values.flatten()
    check_nulls(name, inner)
    tail: tuple[int, ...] = ()
    while pa.types.is_fixed_size_list(inner.type):
        tail = (*tail, inner.type.list_size)
        inner = inner.flatten()
        check_nulls(name, inner)
    flat = np.ascontiguousarray(_exact(name, field, numbers(name, inner), dtype)).view(np.uint8)
    per_item = len(flat) // max(int(offsets[-1]), 1)
    lengths = np.diff(offsets)
    if shapes is None and not tail:
        shapes = (lengths * per_item // dtype.itemsize)[:, None]  # a complex128 is two items of a list
    elif shapes is None:
        shapes = np.concatenate([lengths[:, None], np.tile(np.array(tail, np.int64), (len(lengths), 1))], axis=1)
    if shapes.shape[1] != field.ndim:
        raise SchemaMismatch(
            f"column {name!r} holds lists of {shapes.shape[1]} dimensions; its field says {field.ndim}"
        )
    if not np.array_equal(shapes.prod(axis=1) * dtype.itemsize, lengths * per_item) or (shapes < 0).any():
        raise BadSource(f"column {name!r}: lists and the shapes beside them differ in length")
    return Rows(len(values), flat, offsets * per_item, np.ascontiguousarray(shapes, np.int64))


def _nested(name: str, field: Ragged, value: Any) -> np.ndarray[Any, Any]:
    try:
        array = np.array(value, Array(field.dtype).numpy)
    except (ValueError, TypeError) as error:
        raise SchemaMismatch(f"column {name!r}: {value!r:.80} is no array of {field}: {error}") from None
    return array if array.size else array.reshape(*array.shape, *(0,) * (field.ndim - array.ndim))


def _files(name: str, values: pa.Array) -> Rows:
    """Files, by their bytes or else by the path where they are."""
    content, paths = values.field("bytes").to_pylist(), values.field("path").to_pylist()
    check_nulls(name, values)
    for at, (data, path) in enumerate(zip(content, paths, strict=True)):
        if data is None:
            if path is None:
                raise BadSource(f"column {name!r} has a record with neither bytes nor a path")
            content[at] = Path(path).read_bytes()
    return encode(name, Bytes(), content)


def _varying(edges: pa.Buffer | None, data: pa.Buffer | None, offset: int, count: int) -> Rows:
    if not count or edges is None:
        return Rows(count, np.zeros(0, np.uint8), np.zeros(count + 1, np.int64))
    offsets = np.frombuffer(edges, np.int64)[offset : offset + count + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return Rows(count, content[offsets[0] : offsets[-1]], offsets - offsets[0])


def _offsets(values: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """int64 [n + 1]: where each list starts in `values.flatten()`. There are no nulls."""
    lengths = np.asarray(values.value_lengths().to_numpy(zero_copy_only=False), np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _unwrapped(values: pa.Array) -> pa.Array:
    """An array without dictionary and extension around it, but for fixed-shape tensors."""
    while True:
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        elif isinstance(values.type, pa.BaseExtensionType) and not isinstance(values.type, pa.FixedShapeTensorType):
            values = values.storage
        elif "list_view" in str(values.type)[:16]:
            values = values.cast(pa.large_list(values.type.value_type))
        else:
            return values


def _jsonable(value: Any) -> Any:
    """What Arrow makes of a value in Python, with lists for the pairs of a map."""
    if isinstance(value, dict):
        return {key: _jsonable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(one) for one in value]
    return value
