"""Tables and data frames in memory: pyarrow's Table, RecordBatch, RecordBatchReader and Dataset; pandas'; polars'.

pandas and polars are not imported: a frame's library is imported already. Columns of numbers are read in place. An
index of pandas is a field unless it counts the rows.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset

from warmstore.converting.arrow_columns import batch_of, fields_of_schema, pieces, rows_of
from warmstore.converting.arrow_types import field_of_column
from warmstore.converting.field_inference import column_field
from warmstore.converting.objects.arrays import slices
from warmstore.converting.record_columns import columns_of_records
from warmstore.converting.record_source import (
    BATCH_ROWS,
    RecordSource,
    Request,
    SourceBatch,
    equal_lengths,
    rows_at_once,
)
from warmstore.errors import BadSource, SchemaMismatch
from warmstore.records.format.fields import Field


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    table = request.source
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if isinstance(table, pa.Table):
        return _of_batches(request, table.schema, table.to_batches, table.num_rows)
    if isinstance(table, pa.RecordBatchReader):
        return _of_batches(request, table.schema, lambda: table, None)
    if isinstance(table, pyarrow.dataset.Dataset):
        # One file after the other: a parallel scan holds the batches that it reads ahead.
        scan = lambda: table.to_batches(batch_size=BATCH_ROWS, batch_readahead=1, fragment_readahead=1)  # noqa: E731
        return _of_batches(request, table.schema, scan, table.count_rows())
    columns = _polars_columns(table) if type(table).__module__.startswith("polars") else _pandas_columns(table)
    return _of_columns(request, columns)


def _of_batches(request: Request, schema: pa.Schema, batches: Callable[[], Any], rows: int | None) -> RecordSource:
    if rows == 0:
        raise BadSource("the table holds no records")
    fields = fields_of_schema(request, schema)

    def read(start: int) -> Iterator[SourceBatch]:
        for batch in batches():
            for piece in pieces(batch):
                yield batch_of(fields, piece)

    return RecordSource(fields, read, rows, skippable=False)


def _of_columns(request: Request, columns: dict[str, Any]) -> RecordSource:
    """A source of columns: NumPy arrays, Arrow arrays or lists."""

    def infer(name: str) -> Field:
        column = columns[name]
        if isinstance(column, pa.Array):
            return field_of_column(pa.field(name, column.type))
        return column_field(name, column)

    fields = request.choose(list(columns), infer)
    chosen = {name: columns[name] for name in fields}
    rows = equal_lengths("the data frame", {name: len(column) for name, column in chosen.items()})
    step = rows_at_once(sum(_nbytes(column) for column in chosen.values()) / rows)
    arrow = {name for name, column in chosen.items() if isinstance(column, pa.Array)}

    def read(start: int) -> Iterator[SourceBatch]:
        for batch in slices(fields, chosen, rows, step, start):
            values = {}
            for name, column in batch.columns.items():
                if name in arrow:
                    values[name] = rows_of(pa.field(name, column.type), fields[name], column)
                elif isinstance(column, list):
                    records = [{} if value is None else {name: value} for value in column]
                    values |= columns_of_records(records, {name: fields[name]}).columns
                else:
                    values[name] = column
            yield SourceBatch(values)

    return RecordSource(fields, read, rows, skippable=False)


def _nbytes(column: Any) -> int:
    return 64 * len(column) if isinstance(column, list) else int(column.nbytes)


def _polars_columns(frame: Any) -> dict[str, Any]:
    columns = {}
    for name in frame.columns:
        series = frame[name]
        columns[name] = series.to_list() if str(series.dtype) == "Object" else _joined(series.to_arrow())
    return columns


def _joined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _pandas_columns(frame: Any) -> dict[str, Any]:
    labels = list(frame.columns)
    if frame.columns.nlevels > 1 or not all(isinstance(label, str) for label in labels):
        raise SchemaMismatch(
            f"the columns of the data frame are called {labels!r:.200}; fields have names of one str each. Rename the "
            "columns: source.columns = [...]"
        )
    columns = _index_columns(frame.index)
    for at, name in enumerate(labels):
        if name in columns:
            raise BadSource(
                f"two columns of the data frame, or a column and its index, are called {name!r}; rename one of them"
            )
        columns[name] = _pandas_values(frame.iloc[:, at])
    return columns


def _index_columns(index: Any) -> dict[str, Any]:
    """The levels of an index as columns; none if the index counts the rows."""
    if type(index).__name__ == "RangeIndex" and index.name is None:
        return {}
    if not all(isinstance(name, str) for name in index.names) or len(set(index.names)) < index.nlevels:
        raise SchemaMismatch(
            f"the index of the data frame is called {list(index.names)}, so it cannot be a field. Name it, with "
            "source.rename_axis(...), or drop it: source.reset_index(drop=True)"
        )
    return {
        index.names[level]: _pandas_values(index.get_level_values(level).to_series()) for level in range(index.nlevels)
    }


def _pandas_values(series: Any) -> Any:
    dtype = series.dtype
    if isinstance(dtype, np.dtype) and dtype.kind != "O":
        return series.to_numpy()
    if not isinstance(dtype, np.dtype) and hasattr(series.array, "__arrow_array__"):
        return _joined(pa.array(series.array, from_pandas=True))
    # Among objects NaN, NaT and NA mean absent in pandas; among floats NaN is a number.
    return [None if absent else value for absent, value in zip(series.isna(), series.tolist(), strict=True)]
