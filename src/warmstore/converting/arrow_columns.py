"""Arrow columns as encoded rows, from Arrow's buffers, without a Python object per value.

Files of other programs have no checksums of warmstore, so a column is validated in full before its buffers are read.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from warmstore.converting.arrow_types import field_of_column, is_file, is_list, is_text, is_variable_tensor
from warmstore.converting.record_source import BATCH_BYTES, BATCH_ROWS, Request, SourceBatch
from warmstore.errors import BadSource, Damaged, SchemaMismatch, UnsupportedType
from warmstore.records.arrow.arrow_elements import nulls_of
from warmstore.records.arrow.arrow_schema import DESCRIPTION, stored_field, typed
from warmstore.records.arrow.arrow_table import rows_of_stored, rows_of_typed
from warmstore.records.format.encoded_rows import EncodedRows, spread
from warmstore.records.format.fields import CHECKSUM, Array, Bytes, Field, Fields, Json, Ragged, Text, columns_of
from warmstore.records.format.value_encoding import encode
from warmstore.storage.array_types import Int64


def fields_of_schema(request: Request, schema: pa.Schema, beside: Fields | None = None) -> Fields:
    """The fields of a table with this schema, and of further fields `beside` the table."""
    beside = beside or {}
    names = _field_names(schema)
    if len(set(names)) < len(names):
        raise BadSource(f"two columns have one name: {', '.join(schema.names)}")

    def infer(name: str) -> Field:
        if name in beside:
            return beside[name]
        return stored_field(schema, name) or field_of_column(schema.field(name))

    return request.choose([*names, *beside], infer)


def _field_names(schema: pa.Schema) -> list[str]:
    """The columns with values, and the fields of a chunk that has only their checksums. Columns such as `x::shape`
    belong to a column and are left out."""
    names = []
    for name in schema.names:
        base, separator, _ = name.partition("::")
        if not separator or not _is_described(schema, base):
            names.append(name)
        elif base not in schema.names:
            names.append(base)
    return names


def _is_described(schema: pa.Schema, name: str) -> bool:
    """Whether warmstore wrote the columns of a name."""
    if name in schema.names:
        return typed(schema.field(name)) is not None or stored_field(schema, name) is not None
    return DESCRIPTION in (schema.field(name + CHECKSUM).metadata or {}) if name + CHECKSUM in schema.names else False


def check_schema(schema: pa.Schema, other: pa.Schema, path: Path) -> None:
    """Raise BadSource if a further file has other columns than the first, or equal ones that hold other values."""
    first, further = ({column.name: _meaning(each, column) for column in each} for each in (schema, other))
    if first != further:
        names = sorted(name for name in first.keys() | further.keys() if first.get(name) != further.get(name))
        missing = ("missing", None)
        kinds = {name: (further.get(name, missing), first.get(name, missing)) for name in names}
        # Where the types are equal, the fields differ.
        shown = {name: [str(kind[new[0] == old[0]]) for kind in (new, old)] for name, (new, old) in kinds.items()}
        raise BadSource(
            f"{path} has other columns than the first file: "
            + ", ".join(f"{name!r} is {new} instead of {old}" for name, (new, old) in shown.items())
        )


def _meaning(schema: pa.Schema, column: pa.Field) -> tuple[str, Field | None]:
    """The type of a column, and the field that its values are, whatever their codec; None where no field holds them."""
    try:
        field = stored_field(schema, column.name) or field_of_column(column)
    except UnsupportedType:
        return str(column.type), None
    return str(column.type), without_codec(field)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in views of a few megabytes."""
    step = min(max(1, batch.num_rows * BATCH_BYTES // max(batch.nbytes, 1)), BATCH_ROWS)
    for first in range(0, batch.num_rows, step):
        yield batch.slice(first, step)


def batch_of(fields: Fields, table: pa.RecordBatch, done: int | None = None) -> SourceBatch:
    """The chosen columns of some records, encoded."""
    columns = {name: _column(fields[name], table, name) for name in fields}
    return SourceBatch(columns, done)


def _column(field: Field, table: pa.RecordBatch, name: str) -> EncodedRows:
    stored = stored_field(table.schema, name)
    if stored is None:
        return rows_of(table.schema.field(name), field, table.column(name))
    if not same_values(stored, field):
        raise SchemaMismatch(f"column {name!r} is one of a chunk and holds {stored}; it cannot be read as {field}")
    for column in columns_of(name, stored)[:-1]:
        _validate(name, table.column(column.name))
    try:
        return rows_of_stored(name, stored, table)
    except Damaged as error:
        raise BadSource(
            f"column {name!r} of a chunk: {error}. A trained dictionary of the field's codec is in store.json, not in "
            "the chunk: convert a file that export wrote"
        ) from error


def rows_of(column: pa.Field, field: Field, values: pa.Array, shapes: Any = None) -> EncodedRows:
    """One column of a batch as rows of `field`; nulls become absent rows.

    Args:
        shapes: int64 [n, ndim], the shapes of ragged values that are flat lists, without nulls.

    Raises:
        BadSource: nulls inside of values, or buffers that do not fit the column's type. SchemaMismatch: another type
            than the field's.
    """
    name = column.name
    _validate(name, values)
    described = typed(column)
    if isinstance(field, Array | Ragged) and described is not None and same_values(described.field, field):
        return rows_of_typed(name, field, values, described.form)
    is_tensor = isinstance(field, Ragged) and is_variable_tensor(column)
    values = _unwrapped(values)
    absent = nulls_of(values)
    if absent is not None:
        values = _without_nulls(values)
    if is_tensor:
        values, shapes = _tensor_parts(name, values)
    rows = _present_rows(column, field, values, shapes)
    return rows if absent is None else spread(field, rows, absent)


def same_values(field: Field, other: Field) -> bool:
    """Whether two fields are equal but for their codecs."""
    return without_codec(field) == without_codec(other)


def without_codec(field: Field) -> Field:
    return replace(field, codec="raw", dictionary=None)


def _validate(name: str, values: pa.Array) -> None:
    try:
        values.validate(full=True)
    except pa.ArrowException as error:
        raise BadSource(f"column {name!r}: {error}") from None


def _tensor_parts(name: str, struct: pa.Array) -> tuple[pa.Array, Int64]:
    """Variable-shape tensors, none of them null, as flat lists, and their shapes, int64 [n, ndim]."""
    lists, sizes = struct.field("data"), struct.field("shape")
    check_nulls(name, lists)
    check_nulls(name, sizes)
    ndim = sizes.type.list_size
    return lists, numbers(name, fixed_values(name, sizes, (ndim,))).astype(np.int64).reshape(-1, ndim)


def _without_nulls(values: pa.Array) -> pa.Array:
    if isinstance(values.type, pa.FixedShapeTensorType):
        return pa.ExtensionArray.from_storage(values.type, values.storage.drop_null())
    return values.drop_null()


def _present_rows(column: pa.Field, field: Field, values: pa.Array, shapes: Any) -> EncodedRows:
    name = column.name
    if isinstance(field, Json):
        described = typed(column)
        parse = json.loads if described is not None and isinstance(described.field, Json) else _jsonable
        return encode(name, field, [parse(value) for value in values.to_pylist()])
    if isinstance(field, Bytes) and is_file(values.type):
        return _files(name, values)
    if isinstance(field, Array):
        flat = _unpermuted(name, field, values)
        if flat is None:
            flat = numbers(name, fixed_values(name, values, field.shape))
        flat = np.ascontiguousarray(_exact(name, field, flat, field.numpy))
        return EncodedRows(len(values), flat.view(np.uint8).reshape(len(values), field.width))
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
    """Raise BadSource if inner values of a column, such as the numbers of lists, are null."""
    if values.null_count:
        first = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        raise BadSource(
            f"column {name!r} holds nulls inside of its values: {values.null_count:,} of {len(values):,} in a batch, "
            f"the first is number {first:,}. Fill them first, keep them as JSON null with "
            f"fields={{{name!r}: ws.Json(), ...}}, or leave the column out with fields=[...]"
        )


def fixed_values(name: str, values: pa.Array, shape: tuple[int, ...]) -> pa.Array:
    """The flat numbers of a column whose values all have `shape`, from any nesting of lists."""
    count = len(values)
    if isinstance(values.type, pa.FixedShapeTensorType):
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


def _unpermuted(name: str, field: Array, values: pa.Array) -> np.ndarray[Any, Any] | None:
    """The flat numbers of fixed-shape tensors with permuted dimensions, in C order; None for other columns."""
    order = values.type.permutation if isinstance(values.type, pa.FixedShapeTensorType) else None
    if order is None:
        return None
    shape = tuple(values.type.shape)
    if tuple(shape[axis] for axis in order) != field.shape:
        raise SchemaMismatch(f"column {name!r} holds values that are not all of the shape {field.shape}")
    flat = numbers(name, fixed_values(name, values, shape)).reshape(len(values), *shape)
    return flat.transpose(0, *(1 + axis for axis in order)).reshape(-1)


def numbers(name: str, values: pa.Array) -> np.ndarray[Any, Any]:
    """A flat column of numbers, bools or times without nulls, as a NumPy array."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    if pa.types.is_date32(kind):
        return np.array(values.cast(pa.int32()).cast(pa.int64()).to_numpy()).view("M8[D]")
    if pa.types.is_temporal(kind) and not pa.types.is_time(kind):
        unit = "ms" if pa.types.is_date64(kind) else kind.unit
        letter = "m8" if pa.types.is_duration(kind) else "M8"
        return np.array(values.view(pa.int64()).to_numpy()).view(f"{letter}[{unit}]")
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise SchemaMismatch(f"column {name!r} holds {kind}, which are not numbers")
    return np.asarray(values.to_numpy())


def _exact(name: str, field: Field, flat: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Numbers in the field's dtype. Unsigned integers are taken as the bits of a dtype that Arrow does not have."""
    if flat.dtype == dtype:
        return flat
    as_bits = dtype.kind in "VcbmM" or dtype.num >= 256  # dtypes that a store keeps as bits
    if as_bits and flat.dtype.kind == "u" and dtype.itemsize in (flat.dtype.itemsize, 2 * flat.dtype.itemsize):
        return flat.view(dtype)
    raise SchemaMismatch(f"column {name!r} holds {flat.dtype}, but its field is {field}. dtypes are not converted")


def _ragged_rows(name: str, field: Ragged, values: pa.Array, shapes: Any) -> EncodedRows:
    if not is_list(values.type) and not pa.types.is_fixed_size_list(values.type):
        raise SchemaMismatch(f"column {name!r} is {values.type}; it does not fit {field}")
    leaves, edges, nested = _leaves(name, field, values)
    shapes = nested if shapes is None else shapes
    if shapes.shape[1] != field.ndim:
        raise SchemaMismatch(f"column {name!r} holds lists of {shapes.shape[1]} dimensions; its field has {field.ndim}")
    flat = numbers(name, leaves)
    offsets, dtype = edges * flat.itemsize, np.dtype(Array(field.dtype).numpy)
    flat = np.ascontiguousarray(_exact(name, field, flat, dtype)).view(np.uint8)
    if not np.array_equal(shapes.prod(axis=1) * dtype.itemsize, np.diff(offsets)) or (shapes < 0).any():
        raise BadSource(f"column {name!r}: lists and the shapes beside them differ in length")
    return EncodedRows(len(values), flat, offsets, np.ascontiguousarray(shapes, np.int64))


def _leaves(name: str, field: Ragged, values: pa.Array) -> tuple[pa.Array, Int64, Int64]:
    """What is in nested lists: flat; where each value begins, int64 [n + 1]; and the shapes of values, int64 [n, ndim].

    Raises:
        BadSource: a list or what is in it is null. SchemaMismatch: lists inside of a value differ in length.
    """
    edges = np.arange(len(values) + 1)
    shapes: list[Int64] = []
    while is_list(values.type) or pa.types.is_fixed_size_list(values.type):
        size = values.type.list_size if pa.types.is_fixed_size_list(values.type) else None
        ends = _offsets(values) if size is None else np.arange(len(values) + 1) * size
        lengths, counts = np.diff(ends), np.diff(edges)
        sizes = np.full(len(counts), size or 0)  # of values without lists at this depth
        sizes[counts > 0] = lengths[edges[:-1][counts > 0]]
        wanted = sizes.repeat(counts)
        if not np.array_equal(wanted, lengths):
            at = int(np.argmax(wanted != lengths))
            raise SchemaMismatch(
                f"column {name!r} holds a value with lists of the lengths {wanted[at]:,} and {lengths[at]:,}, which is "
                f"no array of {field}"
            )
        shapes.append(sizes)
        edges = ends[edges]
        values = _unwrapped(values.flatten())
        check_nulls(name, values)
    return values, edges, np.stack(shapes, axis=1)


def _files(name: str, values: pa.Array) -> EncodedRows:
    """The bytes of files. A value has the bytes, or the path of a file to read."""
    content, paths = values.field("bytes").to_pylist(), values.field("path").to_pylist()
    for at, (data, path) in enumerate(zip(content, paths, strict=True)):
        if data is None:
            if path is None:
                raise BadSource(f"column {name!r} has a record with neither bytes nor a path")
            try:
                content[at] = Path(path).read_bytes()
            except OSError as error:
                raise BadSource(f"column {name!r} names a file that cannot be read: {error}") from None
    return encode(name, Bytes(), content)


def _varying(edges: pa.Buffer | None, data: pa.Buffer | None, offset: int, count: int) -> EncodedRows:
    if not count or edges is None:
        return EncodedRows(count, np.zeros(0, np.uint8), np.zeros(count + 1, np.int64))
    offsets = np.frombuffer(edges, np.int64)[offset : offset + count + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return EncodedRows(count, content[offsets[0] : offsets[-1]], offsets - offsets[0])


def _offsets(values: pa.Array) -> Int64:
    """The start of each list in `values.flatten()`, int64 [n + 1]. Null has the length 0."""
    lengths = np.asarray(values.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _unwrapped(values: pa.Array) -> pa.Array:
    """The storage of dictionaries and extensions, and what views hold. Fixed-shape tensors stay as they are."""
    while True:
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        elif isinstance(values.type, pa.BaseExtensionType) and not isinstance(values.type, pa.FixedShapeTensorType):
            values = values.storage
        elif "list_view" in str(values.type)[:16]:
            # pyarrow's cast makes wrong offsets of views.
            absent = values.is_null() if values.null_count else None
            values = pa.LargeListArray.from_arrays(_offsets(values), values.flatten(), mask=absent)
        elif str(values.type) in ("string_view", "binary_view"):  # which pyarrow cannot filter
            values = values.cast(pa.large_string() if is_text(values.type) else pa.large_binary())
        else:
            return values


def _jsonable(value: Any) -> Any:
    """A value of `to_pylist` with lists in place of tuples, which are the pairs of a map."""
    if isinstance(value, dict):
        return {key: _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    return value
