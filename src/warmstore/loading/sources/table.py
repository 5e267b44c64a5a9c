"""Data frames and Arrow tables as sources: pandas, polars and pyarrow, by column.

pandas and polars are not imported: a frame's library is imported already. Columns of numbers are read in place. Object
columns of pandas are converted to Arrow once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import pyarrow as pa

from warmstore.converting.arrow_types import scalar_dtype
from warmstore.errors import BadSource
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.source import Source
from warmstore.loading.sources.arrays import ArraySource
from warmstore.loading.sources.parts import Parts
from warmstore.loading.sources.sequence import SequenceSource
from warmstore.loading.values.arrow_values import values_of
from warmstore.loading.values.content_hash import hash_of_rows, hash_of_values
from warmstore.loading.values.value_types import POLARS_SERIES, is_of
from warmstore.storage.cached_property import cached_property

_VIEWS = {
    kind(): large
    for name, large in (("string_view", pa.large_string()), ("binary_view", pa.large_binary()))
    if (kind := getattr(pa, name, None)) is not None
}


def table_source(frame: Any, fields: Sequence[str] | None) -> "TableSource":
    """A frame or table as a source.

    Raises:
        BadSource: two columns have one name.
        KeyError: a field that is no column.
    """
    names = list(frame.schema.names if isinstance(frame, pa.Table | pa.RecordBatch) else frame.columns)
    twice = [name for at, name in enumerate(names) if name in names[:at]] if len(set(names)) < len(names) else []
    if twice:
        raise BadSource(f"two columns are called {twice[0]!r}, and a batch can have one: rename one of them")
    for name in fields or ():
        if name not in names:
            raise KeyError(f"the {type(frame).__name__} has no column {name!r}; it has {names}")
    wanted = names if fields is None else list(fields)
    return TableSource({name: column_source(frame[name]) for name in wanted}, len(frame))


def column_source(column: Any) -> Source:
    """A column of a frame or table as a source."""
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return ArrowSource(column)
    if is_of(column, POLARS_SERIES):
        if str(column.dtype) == "Object":
            return SequenceSource(column.to_list())
        return ArrowSource(column.to_arrow())
    return _pandas_source(column)


@final
class TableSource(Source):
    """Columns of one length, read at the same positions, as a dict."""

    def __init__(self, columns: Mapping[Any, Source], rows: int) -> None:
        self._columns = dict(columns)
        self._rows = rows
        widths = [column.sample_bytes for column in self._columns.values()]
        self.sample_bytes = None if None in widths else sum(widths)

    @cached_property
    def identity(self) -> Any:
        """The number of rows, and hashes of the columns' names and types and of some rows."""
        schema = [f"{name!r}: {getattr(column, 'dtype', None)}" for name, column in self._columns.items()]
        schema_hash = hash_of_values(schema)
        return {"kind": "table", "rows": self._rows, "schema": schema_hash, "hash": hash_of_rows(self)}

    def __len__(self) -> int:
        return self._rows

    def read(self, positions: Int64) -> dict[Any, Any]:
        return {name: column.read(positions) for name, column in self._columns.items()}


@final
class ArrowSource(Source):
    """The values of an Arrow array, converted by `values_of`."""

    def __init__(self, column: pa.Array | pa.ChunkedArray) -> None:
        self.dtype = column.type
        if "_view" in str(column.type):  # `take` does not support views
            column = column.cast(_VIEWS.get(column.type, column.type))
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        self._chunks = [chunk for chunk in chunks if len(chunk)] or [pa.array([], column.type)]
        try:
            self._chunks[0].take(pa.array([], pa.int64()))
        except pa.ArrowNotImplementedError as error:
            raise BadSource(f"a column of {column.type} cannot be read by position: {error}. Cast it first") from None
        self._parts = Parts(map(len, self._chunks))
        is_plain = _is_plain(column.type) and not column.null_count
        self.sample_bytes = column.type.bit_width // 8 if is_plain else None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_arrays"}

    @cached_property
    def identity(self) -> Any:
        """The type, the number of rows, and a hash of some rows."""
        return {"kind": "column", "dtype": str(self.dtype), "rows": len(self), "hash": hash_of_rows(self)}

    def __len__(self) -> int:
        return len(self._parts)

    def read(self, positions: Int64) -> Any:
        if self._arrays is not None:
            return self._gather(self._arrays, positions)
        if len(self._chunks) == 1:
            return values_of(self._chunks[0].take(pa.array(positions)))
        # `take` of a ChunkedArray searches the chunk of each row, and concatenates text with 32-bit offsets.
        row_of = np.empty(len(positions), np.int64)  # the row of each position in the concatenated parts
        parts, count = [], 0
        for number, places, within in self._parts.by_part(positions):
            parts.append(self._chunks[number].take(pa.array(within)))
            row_of[places] = np.arange(count, count + len(places))
            count += len(places)
        return values_of(_joined(parts).take(pa.array(row_of)))

    @cached_property
    def _arrays(self) -> list[np.ndarray[Any, Any]] | None:
        """The chunks as NumPy arrays without a copy, or None."""
        if self.sample_bytes is None:
            return None
        return [chunk.to_numpy(zero_copy_only=True) for chunk in self._chunks]

    def _gather(self, arrays: list[np.ndarray[Any, Any]], positions: Int64) -> np.ndarray[Any, Any]:
        if len(arrays) == 1:
            return arrays[0].take(positions)
        values = np.empty(len(positions), arrays[0].dtype)
        for number, places, within in self._parts.by_part(positions):
            values[places] = arrays[number].take(within)
        return values


def _is_plain(kind: pa.DataType) -> bool:
    """Whether NumPy can read the values in place."""
    return scalar_dtype(kind) is not None and not (pa.types.is_boolean(kind) or pa.types.is_date(kind))


def _joined(parts: list[pa.Array]) -> pa.Array:
    if pa.types.is_dictionary(parts[0].type):  # chunks have different dictionaries
        parts = [part.dictionary_decode() for part in parts]
    return pa.concat_arrays(parts)


def _pandas_source(column: Any) -> Source:
    dtype = column.dtype
    values = column.to_numpy() if isinstance(dtype, np.dtype) else column
    if isinstance(dtype, np.dtype) and dtype.kind != "O":
        return ArraySource(values)
    try:
        # Among objects NaN means absent in pandas; among floats it is a number.
        return ArrowSource(pa.array(values, from_pandas=True))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return SequenceSource(np.asarray(column).tolist())
