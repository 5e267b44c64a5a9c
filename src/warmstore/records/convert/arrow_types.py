"""Arrow types as fields and back. Only values: the checksum columns of a store stay inside.

Where a column carries warmstore's own description (an exported store's does), that decides; so what Arrow does not
know, bfloat16 or arrays of bools, survives a way out and back.
"""

import json
from typing import Any

import pyarrow as pa

from warmstore.errors import UnsupportedType
from warmstore.records.fields import (
    SHAPE,
    Array,
    Bytes,
    Field,
    Fields,
    Json,
    Ragged,
    Text,
    columns_of,
    fields_from_json,
    fields_to_json,
)

_DESCRIPTION = b"warmstore"
_UNITS = {"ms", "us", "ns"}  # of seconds and days Parquet makes other units


def value_type(field: Field) -> pa.DataType:
    """The Arrow type of a field's exported values."""
    if isinstance(field, Array):
        return _native_scalar(field) or _bits(field)
    if isinstance(field, Ragged):
        bits = _bits(Array(field.dtype))
        # A complex128 is a pair of 64 bits: two items of the list.
        return pa.large_list(bits.value_type if isinstance(bits, pa.FixedShapeTensorType) else bits)
    return pa.large_binary() if isinstance(field, Bytes) else pa.large_string()


def _bits(field: Array) -> pa.DataType:
    if not field.width:
        raise UnsupportedType(f"Arrow has no column for {field}, which takes no bytes; choose others with fields=[...]")
    return columns_of("", field)[0].type


def _native_scalar(field: Array) -> pa.DataType | None:
    if field.shape:
        return None
    if field.dtype == "bool":
        return pa.bool_()
    unit = field.dtype[3:-1]
    if field.dtype[:2] in ("M8", "m8") and unit in _UNITS:
        return pa.timestamp(unit) if field.dtype[0] == "M" else pa.duration(unit)
    return None


def value_schema(fields: Fields) -> pa.Schema:
    """The schema of an export: a column per field, and `NAME::shape` for ragged fields of two dimensions and more."""
    columns = []
    for name, field in fields.items():
        described = json.dumps(fields_to_json({name: field})[0])
        columns.append(pa.field(name, value_type(field), metadata={_DESCRIPTION: described}))
        if isinstance(field, Ragged) and field.ndim > 1:
            columns.append(pa.field(name + SHAPE, pa.list_(pa.int64(), field.ndim)))
    return pa.schema(columns)


def described_field(column: pa.Field) -> Field | None:
    """The field that an exported column says it was, or None."""
    text = (column.metadata or {}).get(_DESCRIPTION)
    if text is None:
        return None
    try:
        field = next(iter(fields_from_json([{"name": column.name, **json.loads(text)}]).values()))
        return field if value_type(field).equals(column.type) else None
    except (ValueError, TypeError, KeyError):
        return None


def field_of_column(column: pa.Field) -> Field:
    """The field that holds a column's values.

    Raises:
        UnsupportedType: none does; the message names the column.
    """
    told = described_field(column)
    if told is not None:
        return told
    kind = plain(column.type)
    dtype, dims = fixed(kind)
    if dtype is not None:
        return Array(dtype, dims)
    if is_list(kind):
        dtype, dims = fixed(kind.value_type)
        if dtype is not None:
            return Ragged(dtype, 1 + len(dims))
    if is_binary(kind) or is_file(kind):
        return Bytes()
    if is_text(kind):
        return Text()
    if _is_json(kind):
        return Json()
    raise UnsupportedType(
        f"column {column.name!r} is {column.type}, which no field holds as it is. Cast it first, a decimal to float64 "
        "or a time to int64 for example, or leave it out with fields=[...]"
    )


def plain(kind: pa.DataType) -> pa.DataType:
    """A type without dictionary and extension around it, but for fixed-shape tensors."""
    while True:
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        elif isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.FixedShapeTensorType):
            kind = kind.storage_type
        else:
            return kind


def fixed(kind: pa.DataType) -> tuple[str | None, tuple[int, ...]]:
    """The dtype and shape of a type whose values all have one, else (None, ())."""
    if isinstance(kind, pa.FixedShapeTensorType):
        turned = kind.permutation is not None and list(kind.permutation) != sorted(kind.permutation)
        return (None, ()) if turned else (scalar_dtype(kind.value_type), tuple(kind.shape))
    if pa.types.is_fixed_size_list(kind):
        dtype, dims = fixed(kind.value_type)
        return dtype, (kind.list_size, *dims)
    return scalar_dtype(kind), ()


def scalar_dtype(kind: pa.DataType) -> str | None:
    """The dtype of a number, bool, date or time that NumPy knows too."""
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return str(kind.to_pandas_dtype()().dtype)
    if pa.types.is_timestamp(kind):
        return f"M8[{kind.unit}]"
    if pa.types.is_duration(kind):
        return f"m8[{kind.unit}]"
    if pa.types.is_date(kind):
        return "M8[D]" if pa.types.is_date32(kind) else "M8[ms]"
    return None


def is_list(kind: pa.DataType) -> bool:
    """A list of any length, in any of Arrow's layouts."""
    named = ("is_list", "is_large_list", "is_list_view", "is_large_list_view")
    return any(getattr(pa.types, name)(kind) for name in named if hasattr(pa.types, name))


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_view(kind, "string"))


def is_binary(kind: pa.DataType) -> bool:
    fixed_size = pa.types.is_fixed_size_binary(kind)
    return bool(fixed_size or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or _is_view(kind, "binary"))


def is_file(kind: pa.DataType) -> bool:
    """What Hugging Face makes of images and sounds: the bytes of a file, or else its path."""
    if not pa.types.is_struct(kind) or {one.name for one in kind} != {"bytes", "path"}:
        return False
    return is_binary(plain(kind.field("bytes").type)) and is_text(plain(kind.field("path").type))


def _is_view(kind: pa.DataType, name: str) -> bool:
    test: Any = getattr(pa.types, f"is_{name}_view", None)
    return bool(test is not None and test(kind))


def _is_json(kind: pa.DataType) -> bool:
    kind = plain(kind)
    if pa.types.is_struct(kind):
        return all(_is_json(one.type) for one in kind)
    if pa.types.is_map(kind):
        return _is_json(kind.key_type) and _is_json(kind.item_type)
    if is_list(kind) or pa.types.is_fixed_size_list(kind):
        return _is_json(kind.value_type)
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return bool(number or is_text(kind) or pa.types.is_null(kind))
