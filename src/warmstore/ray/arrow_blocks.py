"""Tables of stores as blocks of Ray Data, and back.

Ray reads Arrow's fixed-shape tensors, and not its variable-shape ones. Those of one dimension become lists, others
Ray's own type. Ray's types become columns of warmstore.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data.block import Block, BlockAccessor
from ray.data.extensions import (
    ArrowTensorType,
    ArrowTensorTypeV2,
    ArrowVariableShapedTensorArray,
    ArrowVariableShapedTensorType,
)

from warmstore.converting.conversion import encode_batch
from warmstore.converting.field_inference import column_field
from warmstore.converting.objects.table import open_source
from warmstore.converting.record_source import Request
from warmstore.errors import SchemaMismatch, UnsupportedType
from warmstore.records.arrow.arrow_schema import typed_schema
from warmstore.records.arrow.arrow_table import typed_column
from warmstore.records.format.encoded_rows import EncodedRows
from warmstore.records.format.fields import Field, Fields, Ragged
from warmstore.records.format.value_encoding import encode

_RAY_TYPES = (ArrowTensorType, ArrowTensorTypeV2, ArrowVariableShapedTensorType)


def block_of(table: pa.Table, fields: Fields) -> pa.Table:
    """A table of `RecordStore.to_arrow` as a block.

    Raises:
        UnsupportedType: a ragged field of several dimensions has records without a value.
    """
    for name, field in fields.items():
        if isinstance(field, Ragged):
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, _ragged(name, field, table.column(at)))
    return table


def _ragged(name: str, field: Ragged, column: pa.ChunkedArray) -> pa.Array:
    storage = pa.concat_arrays([part.storage for part in column.chunks])
    if field.ndim == 1:
        data = storage.field("data")
        if not storage.null_count:
            return data
        return pa.ListArray.from_arrays(data.offsets, data.values, mask=storage.is_null())
    if storage.null_count:
        raise UnsupportedType(
            f"field {name!r} is {field} and has records without a value, for which Ray has no type: leave it out with "
            "fields=[...], or give them empty arrays"
        )
    offsets = storage.field("data").offsets.to_numpy()
    shapes = storage.field("shape").flatten().to_numpy().reshape(len(storage), -1)
    values = storage.field("data").values.to_numpy(zero_copy_only=False)
    arrays = [
        values[first:last].reshape(shape) for first, last, shape in zip(offsets[:-1], offsets[1:], shapes, strict=True)
    ]
    return ArrowVariableShapedTensorArray.from_numpy(arrays)


def rows_of(block: Block, fields: Fields | None) -> Iterator[tuple[Fields, dict[str, EncodedRows]]]:
    """A block's records in batches of encoded rows, each with its fields.

    Args:
        fields: of the store; None to infer them from the types of the columns.

    Raises:
        SchemaMismatch, BadSource: the block does not fit the fields, or no field holds a column.
    """
    accessor = BlockAccessor.for_block(block)
    if not accessor.num_rows():
        return
    table = _without_ray_types(accessor.to_arrow(), fields)
    source = open_source(Request(table, None, fields), ())
    for batch in source.read(0):
        yield source.fields, encode_batch(source.fields, batch)


def _without_ray_types(table: pa.Table, fields: Fields | None) -> pa.Table:
    """Columns of Ray's tensor types as columns of warmstore."""
    accessor = BlockAccessor.for_block(table)
    for at, column in enumerate(table.schema):
        if not isinstance(column.type, _RAY_TYPES):
            continue
        values = accessor.to_numpy(column.name)
        field = (fields or {}).get(column.name) or _field_of(column.name, values)
        rows = encode(column.name, field, list(values) if isinstance(field, Ragged) else values)
        (typed,) = typed_schema({column.name: field})
        table = table.set_column(at, typed, typed_column(column.name, field, rows))
    return table


def _field_of(name: str, values: np.ndarray[Any, Any]) -> Field:
    """The field of a column of tensors: [n, ...], or n objects that are arrays of different shapes."""
    if values.dtype != object:
        return column_field(name, values)
    kinds = {(value.dtype, value.ndim) for value in values}
    if len(kinds) > 1:
        raise SchemaMismatch(f"column {name!r} holds arrays of several dtypes or numbers of dimensions: {kinds}")
    ((dtype, ndim),) = kinds
    return Ragged(dtype, ndim)
