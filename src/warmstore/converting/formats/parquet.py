"""Parquet files, row group after row group; a column chunk is read a megabyte at a time, whatever its size."""

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
        before = 0
        for number, (path, count) in enumerate(zip(files, counts, strict=True)):
            if before + count > start:
                with reading(path), _open(path) as file:
                    for piece in _pieces(file, own, max(start - before, 0)):
                        beside = partitions.columns(fields, number, piece.num_rows)
                        yield SourceBatch({**batch_of(own, piece).columns, **beside})
            before += count

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
    before = 0
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        skip = max(start - before, 0)
        before += group.num_rows
        if skip >= group.num_rows:
            continue
        # Dictionaries make bytes in the file few; what a record is known to take is the least.
        at_once = rows_at_once(max(group.total_byte_size / group.num_rows, fixed))
        for batch in file.iter_batches(at_once, row_groups=[number], columns=columns, use_threads=False):
            rest = batch.slice(min(skip, batch.num_rows))
            skip -= batch.num_rows - rest.num_rows
            yield from pieces(rest)
