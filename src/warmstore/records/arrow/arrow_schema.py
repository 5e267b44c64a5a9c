"""The Arrow types of a store's values, and the fields that columns describe in their metadata.

A typed column has the meaning of values, a stored column (`fields.columns_of`) their bits. Both have the field's
description in their metadata; only typed columns are marked.

| field | Arrow type |
|---|---|
| Array, no shape | the element; complex numbers a fixed-shape tensor of two floats |
| Array, with shape | fixed-shape tensor of the element; complex numbers have a last axis of 2 |
| Ragged | variable-shape tensor of the element; complex numbers as above |
| Bytes | large binary |
| Text, Json | large string |

`arrow_elements` defines the elements. Parquet has neither timestamps in seconds nor lists of size 0: the former become
int64, the latter lists of any length.
"""

import contextlib
import enum
import functools
import json
import math
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from warmstore.errors import UnsupportedType
from warmstore.records.arrow.arrow_elements import element_type
from warmstore.records.format.fields import (
    CHECKSUM,
    Array,
    Bytes,
    Field,
    Fields,
    Ragged,
    columns_of,
    fields_from_json,
    fields_to_json,
    numpy_dtype,
)

DESCRIPTION = b"warmstore"
_FORM = b"warmstore.form"
"""The key that marks a typed column."""
TENSOR = "arrow.variable_shape_tensor"


class Form(enum.Enum):
    """The destination of typed columns.

    TABLE: memory; NaT is null. ARROW: a file; NaT of a field without a shape is the least integer, so that it differs
    from an absent value. PARQUET: as ARROW, in types that Parquet has.
    """

    TABLE = "table"
    ARROW = "arrow"
    PARQUET = "parquet"


class VariableShapeTensorType(pa.ExtensionType):  # type: ignore[misc]
    """Arrow's canonical `arrow.variable_shape_tensor`, for versions of pyarrow without it.

    Storage: struct<data: list<T>, shape: fixed_size_list<int32>[ndim]>.

    Args:
        uniform_shape: the sizes that all tensors share, with None for sizes that differ; None if no size is shared.
        options: further parameters of the type, as in a file.
    """

    def __init__(
        self,
        value_type: pa.DataType,
        ndim: int,
        uniform_shape: list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self._options = {**(options or {})}
        if uniform_shape is not None:
            self._options["uniform_shape"] = uniform_shape
        storage = pa.struct([("data", pa.list_(value_type)), ("shape", pa.list_(pa.int32(), ndim))])
        super().__init__(storage, TENSOR)

    @property
    def value_type(self) -> pa.DataType:
        """The type of the elements."""
        return self.storage_type.field("data").type.value_type

    @property
    def ndim(self) -> int:
        """Dimensions of every tensor."""
        return int(self.storage_type.field("shape").type.list_size)

    def __arrow_ext_serialize__(self) -> bytes:
        return json.dumps(self._options).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> "VariableShapeTensorType":
        values, shape = storage_type.field("data").type.value_type, storage_type.field("shape").type
        return cls(values, shape.list_size, options=json.loads(serialized or b"{}"))


def register_tensors() -> None:
    """Register the type of variable-shape tensors with pyarrow."""
    with contextlib.suppress(pa.ArrowKeyError):  # pyarrow or another library has registered it
        pa.register_extension_type(VariableShapeTensorType(pa.float32(), 1))


@functools.cache
def variable_shape_tensor(value: pa.DataType, ndim: int, axes: tuple[int, ...] = ()) -> pa.DataType:
    """The canonical type of tensors with `ndim` dimensions of any size, followed by the shared sizes `axes`.

    It is read from a schema, as from a file. So it is the library's own type if that has one, and equal to the type
    that a reader of a file gets.
    """
    register_tensors()
    kind = VariableShapeTensorType(value, ndim + len(axes), [*[None] * ndim, *axes] if axes else None)
    described = {
        "ARROW:extension:name": kind.extension_name,
        "ARROW:extension:metadata": kind.__arrow_ext_serialize__(),
    }
    schema = pa.schema([pa.field("", kind.storage_type, metadata=described)])
    return pa.ipc.read_schema(schema.serialize()).field(0).type


def typed_schema(fields: Fields, form: Form = Form.TABLE, *, checksums: bool = False) -> pa.Schema:
    """The schema of typed columns: one per field, followed by `NAME::xxh3` with `checksums`."""
    columns = []
    for name, field in fields.items():
        (description,) = fields_to_json({name: field})
        del description["name"]
        metadata = {DESCRIPTION: json.dumps(description), _FORM: form.value}
        columns.append(pa.field(name, field_type(field, form), metadata=metadata))
        if checksums:
            columns.append(pa.field(name + CHECKSUM, pa.uint64(), nullable=False))
    return pa.schema(columns)


def field_type(field: Field, form: Form = Form.TABLE) -> pa.DataType:
    """The Arrow type of a field's values."""
    if isinstance(field, Array):
        value, axes = element_type(field.numpy)
        shape = (*field.shape, *axes)
        if form == Form.PARQUET:
            if not math.prod(shape):
                return pa.list_(value)
            value = _in_parquet(value)
        return pa.fixed_shape_tensor(value, shape) if shape else value
    if isinstance(field, Ragged):
        value, axes = element_type(numpy_dtype(field.dtype))
        return variable_shape_tensor(_in_parquet(value) if form == Form.PARQUET else value, field.ndim, axes)
    return pa.large_binary() if isinstance(field, Bytes) else pa.large_string()


def _in_parquet(value: pa.DataType) -> pa.DataType:
    return pa.int64() if value == pa.timestamp("s") else value


@dataclass(frozen=True)
class Typed:
    """The content of a typed column: the values of a field, in a form."""

    field: Field
    form: Form


def typed(column: pa.Field) -> Typed | None:
    """The content of a typed column; None for other columns, and if its type was changed."""
    form = (column.metadata or {}).get(_FORM)
    field = _described(column)
    if form is None or field is None:
        return None
    try:
        known = Typed(field, Form(form.decode()))
    except ValueError:
        return None
    return known if field_type(field, known.form).equals(column.type) else None


def stored_field(schema: pa.Schema, name: str) -> Field | None:
    """The field whose values are in the stored columns of this name, as in a chunk; None without such columns.

    Raises:
        UnsupportedType: some of the field's columns are missing, or cannot be read without store.json.
    """
    at = schema.get_field_index(name)
    known = schema.field(at) if at >= 0 else None
    if known is None and name + CHECKSUM in schema.names:
        known = schema.field(name + CHECKSUM)
    if known is None or _FORM in (known.metadata or {}):
        return None
    field = _described(known)
    if field is None:
        return None
    columns = columns_of(name, field)[:-1]
    if not columns:
        raise UnsupportedType(
            f"field {name!r} is {field}, whose values take no bytes: a chunk does not show which of them are absent. "
            "Leave it out with fields=[...], or convert RecordStore.to_arrow() or an exported file"
        )
    if known.name != name or not known.type.equals(columns[0].type):
        return None
    for column in columns[1:]:
        if column.name not in schema.names:
            raise UnsupportedType(
                f"column {name!r} comes from a chunk, and {column.name!r}, which belongs to it, is missing"
            )
    return field


def _described(column: pa.Field) -> Field | None:
    text = (column.metadata or {}).get(DESCRIPTION)
    if text is None:
        return None
    try:
        (field,) = fields_from_json([{"name": column.name, **json.loads(text)}]).values()
    except (ValueError, TypeError, KeyError):
        return None
    return field
