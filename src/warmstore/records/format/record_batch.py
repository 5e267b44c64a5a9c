"""The Arrow record batch of a block of records. Its columns share memory with the rows."""

import numpy as np
import pyarrow as pa

from warmstore.records.format.checksums import absent_checksums, matrix_checksums, packed_checksums
from warmstore.records.format.encoded_rows import EncodedRows
from warmstore.records.format.fields import ArrowColumn, Field, Fields, columns_of
from warmstore.storage.array_types import UInt64


def batch_size(fields: Fields, block: dict[str, EncodedRows]) -> int:
    """The most bytes that a record batch takes in a chunk, with its header."""
    count = next(iter(block.values())).count
    values = sum(rows.nbytes for rows in block.values())
    return values + (8 * count + count // 8) * len(fields) + header_size(fields)


def header_size(fields: Fields) -> int:
    """The most bytes of the header of a record batch."""
    return 160 * sum(len(columns_of(name, field)) for name, field in fields.items()) + 256


def record_batch(fields: Fields, block: dict[str, EncodedRows], schema: pa.Schema, seed: int) -> pa.RecordBatch:
    """A batch that shares memory with `block`.

    Args:
        block: rows of every field; values of fields with a codec are compressed.
        seed: the seed of the batch, which depends on its place.
    """
    arrays = [array for name, field in fields.items() for array in _columns(name, field, block[name], seed)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _columns(name: str, field: Field, rows: EncodedRows, seed: int) -> list[pa.Array]:
    columns = columns_of(name, field)
    sums = row_checksums(rows, seed)
    valid = None
    if rows.absent is not None and rows.absent.any():
        sums[rows.absent] = absent_checksums(np.flatnonzero(rows.absent), seed)
        valid = pa.py_buffer(np.packbits(~rows.absent, bitorder="little"))
    # pa.array would import pandas if it is installed, which takes a quarter of a second in the first flush.
    checksum = pa.Array.from_buffers(pa.uint64(), rows.count, [None, pa.py_buffer(sums)])
    if rows.offsets is None:
        return [*(_fixed_arrow(column, rows, valid) for column in columns[:-1]), checksum]
    buffers = [valid, pa.py_buffer(rows.offsets), pa.py_buffer(rows.data)]
    arrays = [pa.Array.from_buffers(columns[0].type, rows.count, buffers)]
    if rows.shapes is not None:
        arrays.append(_lists(columns[1].type, rows.count, pa.py_buffer(np.ascontiguousarray(rows.shapes)), None))
    return [*arrays, checksum]


def row_checksums(rows: EncodedRows, seed: int) -> UInt64:
    """The checksum of every row, uint64 [n]."""
    if rows.offsets is None:
        return matrix_checksums(rows.data, seed)
    first, last = int(rows.offsets[0]), int(rows.offsets[-1])
    return packed_checksums(rows.data.reshape(-1)[first:last], np.diff(rows.offsets), rows.shapes, seed)


def _fixed_arrow(column: ArrowColumn, rows: EncodedRows, valid: pa.Buffer | None) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(rows.data))
    if not isinstance(column.type, pa.FixedShapeTensorType):
        return pa.Array.from_buffers(column.type, rows.count, [valid, buffer])
    return pa.ExtensionArray.from_storage(column.type, _lists(column.type.storage_type, rows.count, buffer, valid))


def _lists(kind: pa.DataType, count: int, buffer: pa.Buffer, valid: pa.Buffer | None) -> pa.Array:
    values = pa.Array.from_buffers(kind.value_type, count * kind.list_size, [None, buffer])
    return pa.Array.from_buffers(kind, count, [valid], children=[values])
