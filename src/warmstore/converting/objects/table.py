"""Tables and data frames in memory: pyarrow's Table, RecordBatch, RecordBatchReader and Dataset; pandas'; polars'.

pandas and polars are not imported: a frame's library is imported already. Columns of numbers are read in place. An
index of pandas is a field unless it counts the rows.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset

from warmstore.converting.arrow_columns import batch_of, fields_of_schema, pieces
from warmstore.converting.objects.arrays import source_of_columns
from warmstore.converting.record_source import BATCH_ROWS, RecordSource, Request, SourceBatch
from warmstore.errors import BadSource, SchemaMismatch


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
    is_polars = type(table).__module__.startswith("polars")
    columns = {name: table[name] for name in table.columns} if is_polars else _pandas_columns(table)
    return source_of_columns(request, "the data frame", columns)


def _of_batches(request: Request, schema: pa.Schema, batches: Callable[[], Any], rows: int | None) -> RecordSource:
    if rows == 0:
        raise BadSource("the table holds no records")
    fields = fields_of_schema(request, schema)

    def read(start: int) -> Iterator[SourceBatch]:
        for batch in batches():
            for piece in pieces(batch):
                yield batch_of(fields, piece)

    return RecordSource(fields, read, rows, skippable=False)


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
        columns[name] = frame.iloc[:, at]
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
    return {index.names[level]: index.get_level_values(level).to_series() for level in range(index.nlevels)}
