"""Writers of `export`: .npy, Arrow IPC and Parquet. Each takes a draft's path, the fields, and blocks of rows."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from warmstore.errors import SchemaMismatch
from warmstore.records.arrow.arrow_schema import Form, typed_schema
from warmstore.records.arrow.arrow_table import typed_column
from warmstore.records.format.encoded_rows import EncodedRows
from warmstore.records.format.fields import Array, Fields

Block = dict[str, EncodedRows]
"""Decompressed rows of every field."""
_Maker = Callable[[Path, bool, Fields, int, Iterator[Block]], None]
_ROW_GROUP = 32 << 20
"""Bytes of a Parquet row group: large enough to compress well, small enough to be in memory twice."""


def write_npy(draft: Path, single: bool, fields: Fields, rows: int, blocks: Iterator[Block]) -> None:
    """A file of one Array field, or a folder with a file for each field."""
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
            # NumPy has no names for bfloat16 and float8: they are written as void bits.
            descr = f"|V{field.numpy.itemsize}" if field.numpy.num >= 256 else field.numpy.str
            header = {"descr": descr, "fortran_order": False, "shape": (rows, *field.shape)}
            np.lib.format.write_array_header_1_0(files[name], header)
        before = 0
        for block in blocks:
            for name, file in files.items():
                values = block[name]
                if values.absent is not None and values.absent.any():
                    raise SchemaMismatch(
                        f"field {name!r} has records without a value, the first at position "
                        f"{before + int(np.argmax(values.absent)):,}, which .npy cannot hold; export to Arrow or "
                        "Parquet, or fill them with map_field first"
                    )
                file.write(np.ascontiguousarray(values.data).reshape(-1).data)
            before += next(iter(block.values())).count
        for file in files.values():
            _sync(file)


def write_arrow(draft: Path, single: bool, fields: Fields, rows: int, blocks: Iterator[Block]) -> None:
    """An Arrow IPC file."""
    schema = typed_schema(fields, Form.ARROW)
    with open(draft, "wb") as file:
        with pa.ipc.new_file(file, schema) as writer:
            for block in blocks:
                writer.write_batch(_record_batch(schema, fields, block, Form.ARROW))
        _sync(file)


def write_parquet(draft: Path, single: bool, fields: Fields, rows: int, blocks: Iterator[Block]) -> None:
    """A Parquet file, compressed with zstd."""
    schema = typed_schema(fields, Form.PARQUET)
    with open(draft, "wb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd", store_schema=True) as writer:
            group: list[pa.RecordBatch] = []
            for block in blocks:
                group.append(_record_batch(schema, fields, block, Form.PARQUET))
                if sum(part.nbytes for part in group) >= _ROW_GROUP:
                    writer.write_table(pa.Table.from_batches(group))
                    group = []
            if group:
                writer.write_table(pa.Table.from_batches(group))
        _sync(file)


TARGETS: dict[str, _Maker] = {"npy": write_npy, "arrow": write_arrow, "parquet": write_parquet}


def _record_batch(schema: pa.Schema, fields: Fields, block: Block, form: Form) -> pa.RecordBatch:
    columns = [typed_column(name, field, block[name], form) for name, field in fields.items()]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
