"""Parquet files, one row group after the other. Column chunks are read a megabyte at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from warmstore.converting.arrow_columns import batch_of, check_schema, fields_of_schema, pieces
from warmstore.converting.hive_partitions import partitions_of
from warmstore.converting.record_source import RecordSource, Request, SourceBatch, reading, rows_at_once
from warmstore.errors import BadSource
from warmstore.records.arrow.arrow_schema import register_tensors
from warmstore.records.format.fields import Array, Fields


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    counts = []
    schema: pa.Schema = None
    for path in files:
        with _open(path) as file:
            counts.append(file.metadata.num_rows)
            schema = schema or file.schema_arrow
            check_schema(schema, file.schema_arrow, path)
    partitions = partitions_of(files, request.root, schema.names)
    fields = fields_of_schema(request, schema, partitions.fields)
    own = {name: field for name, field in fields.items() if name not in partitions.fields}

    def read(start: int) -> Iterator[SourceBatch]:
        for number, (path, count) in enumerate(zip(files, counts, strict=True)):
            if start < count:
                with reading(path), _open(path) as file:
                    for piece in _pieces(file, own, start):
                        beside = partitions.columns(fields, number, piece.num_rows)
                        yield SourceBatch({**batch_of(own, piece).columns, **beside})
            start = max(start - count, 0)

    return RecordSource(fields, read, sum(counts))


def _open(path: Path) -> Any:
    register_tensors()
    try:
        return pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
    except (pa.ArrowException, OSError) as error:
        raise BadSource(f"{path} is not a Parquet file: {error}") from None


def _pieces(file: Any, fields: Fields, start: int) -> Iterator[pa.RecordBatch]:
    """The records from number `start` on, with the columns of some fields."""
    fixed = sum(field.width for field in fields.values() if isinstance(field, Array))
    columns = None if len(fields) == len(file.schema_arrow.names) else list(fields)
    if columns is not None:
        columns += [name for name in file.schema_arrow.names if "::" in name and name.partition("::")[0] in fields]
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        if start >= group.num_rows:
            start -= group.num_rows
            continue
        # With dictionaries, a record takes fewer bytes in the file than its fields of fixed width have.
        at_once = rows_at_once(max(group.total_byte_size / group.num_rows, fixed))
        for batch in file.iter_batches(at_once, row_groups=[number], columns=columns, use_threads=False):
            rest = batch.slice(min(start, batch.num_rows))
            start -= batch.num_rows - rest.num_rows
            yield from pieces(rest)
