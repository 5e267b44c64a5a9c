"""What `export` writes: .npy, Arrow IPC and Parquet. Each takes a draft's path, fields, and batches of their values."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from warmstore.errors import SchemaMismatch
from warmstore.records.convert.arrow_types import value_schema, value_type
from warmstore.records.fields import Array, Field, Fields, Ragged
from warmstore.records.values import encode

Values = Iterator[dict[str, Any]]
_Maker = Callable[[Path, bool, Fields, int, Values], None]
_ROW_GROUP = 32 << 20
"""Bytes of a Parquet row group: large enough to compress, small enough to be held in memory twice."""


def write_npy(draft: Path, single: bool, fields: Fields, rows: int, values: Values) -> None:
    """One file for a single Array field, or a folder with one a field."""
    for name, field in fields.items():
        if not isinstance(field, Array):
            raise SchemaMismatch(
                f"field {name!r} is {field}; .npy holds Array fields only. Choose them with fields=[...], or export to "
                "Arrow or Parquet"
            )
        if not single and ("/" in name or name in (".", "..")):
            raise SchemaMismatch(f"field {name!r} cannot name a file; export it alone, to a .npy file")
    if single and len(fields) != 1:
        raise SchemaMismatch(
            f"a .npy file holds one field; choose one of {list(fields)}, or name a folder as the target"
        )
    if not single:
        draft.mkdir()
    with ExitStack() as stack:
        files = {}
        for name, field in fields.items():
            assert isinstance(field, Array)
            path = draft if single else draft / f"{name}.npy"
            files[name] = stack.enter_context(open(path, "wb"))
            # Its own writer, for arrays that are whole, would have nothing for 0 rows.
            # bfloat16 and float8 have no name there; of some the format would even write one that NumPy cannot read.
            descr = f"|V{field.numpy.itemsize}" if field.numpy.num >= 256 else field.numpy.str
            header = {
                "descr": descr,
                "fortran_order": False,
                "shape": (rows, *field.shape),
            }
            np.lib.format.write_array_header_1_0(files[name], header)
        for batch in values:
            for name, file in files.items():
                if isinstance(batch[name], np.ma.MaskedArray):
                    raise SchemaMismatch(
                        f"field {name!r} has records without a value, which .npy cannot say; export to Arrow or "
                        "Parquet, or fill them with map_field first"
                    )
                file.write(np.ascontiguousarray(batch[name]).reshape(-1).view(np.uint8).data)
        for file in files.values():
            _sync(file)


def write_arrow(draft: Path, single: bool, fields: Fields, rows: int, values: Values) -> None:
    """An Arrow IPC file."""
    schema = value_schema(fields)
    with open(draft, "wb") as file:
        with pa.ipc.new_file(file, schema) as writer:
            for batch in values:
                writer.write_batch(_record_batch(schema, fields, batch))
        _sync(file)


def write_parquet(draft: Path, single: bool, fields: Fields, rows: int, values: Values) -> None:
    """A Parquet file, compressed with zstd."""
    schema = value_schema(fields)
    with open(draft, "wb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd", store_schema=True) as writer:
            group: list[pa.RecordBatch] = []
            for batch in values:
                group.append(_record_batch(schema, fields, batch))
                if sum(part.nbytes for part in group) >= _ROW_GROUP:
                    writer.write_table(pa.Table.from_batches(group))
                    group = []
            if group:
                writer.write_table(pa.Table.from_batches(group))
        _sync(file)


TARGETS: dict[str, _Maker] = {"npy": write_npy, "arrow": write_arrow, "parquet": write_parquet}


def _record_batch(schema: pa.Schema, fields: Fields, batch: dict[str, Any]) -> pa.RecordBatch:
    arrays = [array for name, field in fields.items() for array in _arrays(name, field, batch[name])]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _arrays(name: str, field: Field, values: Any) -> list[pa.Array]:
    kind = value_type(field)
    absent = encode(name, field, values).absent
    if absent is not None:
        there = np.flatnonzero(~absent)
        some = values.data[there] if isinstance(values, np.ma.MaskedArray) else [values[at] for at in there.tolist()]
        # Nulls where there is no value: take with a null index gives one.
        index = np.full(len(absent), -1)
        index[there] = np.arange(len(there))
        where = pa.array(index, pa.int64(), mask=absent)
        return [array.take(where) for array in _arrays(name, field, some)]
    if isinstance(field, Array):
        if pa.types.is_boolean(kind) or pa.types.is_temporal(kind):
            return [pa.array(values, kind)]
        data = pa.py_buffer(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
        if not isinstance(kind, pa.FixedShapeTensorType):
            return [pa.Array.from_buffers(kind, len(values), [None, data])]
        storage = kind.storage_type
        items = pa.Array.from_buffers(storage.value_type, len(values) * storage.list_size, [None, data])
        lists = pa.Array.from_buffers(storage, len(values), [None], children=[items])
        return [pa.ExtensionArray.from_storage(kind, lists)]
    rows = encode(name, field, values)
    assert rows.offsets is not None
    data = pa.py_buffer(rows.data)
    if not isinstance(field, Ragged):
        return [pa.Array.from_buffers(kind, rows.count, [None, pa.py_buffer(rows.offsets), data])]
    width = kind.value_type.bit_width // 8
    items = pa.Array.from_buffers(kind.value_type, len(rows.data) // width, [None, data])
    offsets = pa.py_buffer(rows.offsets // width)
    lists = pa.Array.from_buffers(kind, rows.count, [None, offsets], children=[items])
    if field.ndim == 1:
        return [lists]
    assert rows.shapes is not None
    sizes = pa.Array.from_buffers(pa.int64(), rows.shapes.size, [None, pa.py_buffer(rows.shapes)])
    shapes = pa.Array.from_buffers(pa.list_(pa.int64(), field.ndim), rows.count, [None], children=[sizes])
    return [lists, shapes]


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
