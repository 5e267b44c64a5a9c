"""The fields for Arrow types. Columns that warmstore wrote have a description of their field."""

import json
from typing import Any

import pyarrow as pa

from warmstore.errors import UnsupportedType
from warmstore.records.arrow.arrow_schema import TENSOR, typed
from warmstore.records.format.fields import Array, Bytes, Field, Json, Ragged, Text


def field_of_column(column: pa.Field) -> Field:
    """The field for a column's values.

    Raises:
        UnsupportedType: no field holds them; the message names the column.
    """
    described = typed(column)
    if described is not None:
        return described.field
    kind = plain(column.type)
    if _extension(column)[0] == "pandas.period":
        raise UnsupportedType(
            f"column {column.name!r} holds periods of pandas, which no field holds: convert series.dt.to_timestamp(), "
            "or leave it out with fields=[...]"
        )
    if is_variable_tensor(column):
        dtype, _ = fixed(kind.field("data").type.value_type)
        if dtype is not None:
            return Ragged(dtype, kind.field("shape").type.list_size)
        raise UnsupportedType(
            f"column {column.name!r} holds tensors of {kind.field('data').type.value_type}, which no field holds; "
            "leave it out with fields=[...]"
        )
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
        f"column {column.name!r} is {column.type}, which no field holds. Cast it first, a decimal to float64 or a time "
        "to int64 for example, or leave it out with fields=[...]"
    )


def plain(kind: pa.DataType) -> pa.DataType:
    """The storage type of dictionaries and extensions. Fixed-shape tensors stay as they are."""
    while True:
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        elif isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.FixedShapeTensorType):
            kind = kind.storage_type
        else:
            return kind


def is_variable_tensor(column: pa.Field) -> bool:
    """Whether a column holds variable-shape tensors, registered as an extension type or not.

    Raises:
        UnsupportedType: the tensors have permuted dimensions.
    """
    name, options = _extension(column)
    kind = plain(column.type)
    if name != TENSOR or not pa.types.is_struct(kind) or {part.name for part in kind} != {"data", "shape"}:
        return False
    order = json.loads(options or b"{}").get("permutation")
    if order is not None and order != sorted(order):
        raise UnsupportedType(
            f"column {column.name!r} holds tensors whose dimensions are stored in the order {order}; leave it out with "
            "fields=[...]"
        )
    return is_list(kind.field("data").type) and pa.types.is_fixed_size_list(kind.field("shape").type)


def _extension(column: pa.Field) -> tuple[str, bytes]:
    """The name and options of a column's extension type, registered or not; "" and b"" without one."""
    if isinstance(column.type, pa.BaseExtensionType):
        return column.type.extension_name, _serialized(column.type)
    metadata = column.metadata or {}
    name = metadata.get(b"ARROW:extension:name", b"").decode()
    return name, metadata.get(b"ARROW:extension:metadata", b"")


def _serialized(kind: pa.BaseExtensionType) -> bytes:
    serialize = getattr(kind, "__arrow_ext_serialize__", None)
    if serialize is not None:
        return bytes(serialize())
    described = pa.schema([pa.field("", kind)]).serialize()  # a type that is built into pyarrow
    return bytes(pa.ipc.read_schema(described).field(0).metadata.get(b"ARROW:extension:metadata", b""))


def fixed(kind: pa.DataType) -> tuple[str | None, tuple[int, ...]]:
    """The dtype and shape of a type whose values all have the same; else (None, ())."""
    if isinstance(kind, pa.FixedShapeTensorType):
        order = kind.permutation or range(len(kind.shape))
        return scalar_dtype(kind.value_type), tuple(kind.shape[axis] for axis in order)
    if pa.types.is_fixed_size_list(kind):
        dtype, dims = fixed(kind.value_type)
        return dtype, (kind.list_size, *dims)
    return scalar_dtype(kind), ()


def scalar_dtype(kind: pa.DataType) -> str | None:
    """NumPy's dtype for a number, bool, date or time; None for other types."""
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
    """Whether a type is a list of any length, in any of Arrow's layouts."""
    named = ("is_list", "is_large_list", "is_list_view", "is_large_list_view")
    return any(getattr(pa.types, name)(kind) for name in named if hasattr(pa.types, name))


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_view(kind, "string"))


def is_binary(kind: pa.DataType) -> bool:
    fixed_size = pa.types.is_fixed_size_binary(kind)
    return bool(fixed_size or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or _is_view(kind, "binary"))


def is_file(kind: pa.DataType) -> bool:
    """Whether a type is Hugging Face's for images and sounds: the bytes of a file, or its path."""
    if not pa.types.is_struct(kind) or {part.name for part in kind} != {"bytes", "path"}:
        return False
    return is_binary(plain(kind.field("bytes").type)) and is_text(plain(kind.field("path").type))


def _is_view(kind: pa.DataType, name: str) -> bool:
    test: Any = getattr(pa.types, f"is_{name}_view", None)
    return bool(test is not None and test(kind))


def _is_json(kind: pa.DataType) -> bool:
    kind = plain(kind)
    if pa.types.is_struct(kind):
        return all(_is_json(part.type) for part in kind)
    if pa.types.is_map(kind):
        return _is_json(kind.key_type) and _is_json(kind.item_type)
    if is_list(kind) or pa.types.is_fixed_size_list(kind):
        return _is_json(kind.value_type)
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return bool(number or is_text(kind) or pa.types.is_null(kind))
