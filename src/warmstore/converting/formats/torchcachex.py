"""torchcachex caches: `segments/segment_*.arrow`, with a column `key` and two columns per tensor: a list and a shape.

The cache's index, a pickle or a database, is not read: it repeats what the segments have. Of several rows with one key,
the last one counts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from warmstore.converting.arrow_columns import (
    batch_of,
    check_nulls,
    check_schema,
    fixed_values,
    numbers,
    pieces,
    rows_of,
)
from warmstore.converting.arrow_types import scalar_dtype
from warmstore.converting.formats.arrow import drop_pages, opened
from warmstore.converting.record_source import RecordSource, Request, SourceBatch
from warmstore.errors import BadSource, UnsupportedType
from warmstore.records.format.fields import Array, Field, Fields, Ragged, Text
from warmstore.records.index.sample_keys import as_keys

KEY = "key"
_UInt64 = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class _Tensor:
    """The names of the two columns of a tensor."""

    data: str
    shape: str


def list_files(folder: Path) -> list[Path]:
    """The segments of a cache, in the order of writing."""
    if not (folder / "segments").is_dir():
        ids = sorted(path.name for path in folder.iterdir() if (path / "segments").is_dir())
        raise BadSource(
            f"{folder} has no folder 'segments'"
            + (f", but it holds the caches {', '.join(ids)}: convert one, such as {folder / ids[0]}" if ids else "")
        )
    return sorted((folder / "segments").glob("segment_*.arrow"))


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    schema: pa.Schema = None
    keys: list[_UInt64] = []
    for path in files:
        with opened(path) as (found, batches, pages):
            schema = schema or found
            check_schema(schema, found, path)
            if KEY not in found.names:
                raise BadSource(f"{path} has no column {KEY!r}: it is no segment of torchcachex")
            for batch in batches:
                for piece in pieces(batch):
                    column = piece.column(KEY)
                    column.validate(full=True)
                    check_nulls(KEY, column)
                    keys.append(as_keys(column.to_pylist()).halves)
                    drop_pages(pages)
    if not sum(map(len, keys)):
        raise BadSource(f"{files[0].parent}: no records")
    live = _last_of_each(np.concatenate(keys))
    tensors = _tensors(schema)
    used = {KEY} | {name for tensor in tensors.values() for name in (tensor.data, tensor.shape)}
    names = [KEY, *tensors, *(name for name in schema.names if name not in used)]

    def infer(name: str) -> Field:
        if name == KEY:
            return Text()
        if name not in tensors:
            raise UnsupportedType(
                f"column {name!r} holds pickled values, and nothing is ever unpickled. Leave it out: "
                f"fields={[KEY, *tensors]}"
            )
        dtype = scalar_dtype(schema.field(tensors[name].data).type.value_type)
        if dtype is None:
            raise UnsupportedType(f"column {tensors[name].data!r} does not hold lists of numbers")
        return _tensor_field(files, live, name, tensors[name], dtype)

    fields = request.choose(names, infer)

    def read(start: int) -> Iterator[SourceBatch]:
        return _read(files, live, fields, tensors, start)

    return RecordSource(fields, read, int(live.sum()))


def _read(
    files: Sequence[Path], live: Any, fields: Fields, tensors: dict[str, _Tensor], start: int
) -> Iterator[SourceBatch]:
    skip, before = start, 0
    for path in files:
        with opened(path) as (_, batches, pages):
            for batch in batches:
                for piece in pieces(batch):
                    which = np.flatnonzero(live[before : before + piece.num_rows])
                    before += piece.num_rows
                    skipped = min(skip, len(which))
                    skip -= skipped
                    which = which[skipped:]
                    if len(which):
                        chosen = piece if len(which) == piece.num_rows else piece.take(pa.array(which))
                        yield _batch(chosen, fields, tensors)
                    drop_pages(pages)


def _batch(piece: pa.RecordBatch, fields: Fields, tensors: dict[str, _Tensor]) -> SourceBatch:
    columns = dict(batch_of({KEY: fields[KEY]}, piece).columns) if KEY in fields else {}
    for name in fields.keys() - {KEY}:
        field, tensor = fields[name], tensors[name]
        column = pa.field(name, piece.schema.field(tensor.data).type)
        data = piece.column(tensor.data)
        if isinstance(field, Array):
            # The list is flat, whatever the number of dimensions.
            flat = Array(field.dtype, (int(np.prod(field.shape, dtype=np.int64)),))
            columns[name] = rows_of(column, flat, data)
        else:
            assert isinstance(field, Ragged)
            sizes = fixed_values(tensor.shape, piece.column(tensor.shape), (field.ndim,))
            shapes = numbers(tensor.shape, sizes).reshape(-1, field.ndim)
            columns[name] = rows_of(column, field, data, shapes)
    return SourceBatch({name: columns[name] for name in fields})


def _last_of_each(keys: _UInt64) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows are the last of their key, bool [n]."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: rows of one key stay in their order
    ordered = keys[order]
    last = np.ones(len(keys), bool)
    last[:-1] = (ordered[1:] != ordered[:-1]).any(axis=1)
    live = np.zeros(len(keys), bool)
    live[order[last]] = True
    return live


def _tensor_field(files: Sequence[Path], live: Any, name: str, tensor: _Tensor, dtype: str) -> Field:
    """Array if all live rows have the same shape, else Ragged."""
    distinct: set[tuple[int, ...]] = set()
    before = 0
    for path in files:
        with opened(path) as (_, batches, pages):
            for batch in batches:
                shapes = batch.column(tensor.shape).filter(pa.array(live[before : before + batch.num_rows]))
                before += batch.num_rows
                check_nulls(tensor.shape, shapes)
                distinct.update(_distinct(tensor.shape, shapes))
                drop_pages(pages)
    ranks = {len(shape) for shape in distinct}
    if len(distinct) == 1:
        return Array(dtype, distinct.pop())
    if len(ranks) > 1 or not min(ranks):
        raise BadSource(f"tensor {name!r} has rows of {sorted(ranks)} dimensions; a field has one number of dimensions")
    return Ragged(dtype, ranks.pop())


def _distinct(name: str, shapes: pa.Array) -> set[tuple[int, ...]]:
    """The distinct lists in a column of lists of ints."""
    lengths = shapes.value_lengths().to_numpy()
    distinct: set[tuple[int, ...]] = set()
    for ndim in np.unique(lengths).tolist():
        same_rank = shapes.filter(pa.array(lengths == ndim))
        rows = numbers(name, fixed_values(name, same_rank, (ndim,))).reshape(len(same_rank), ndim)
        distinct.update(map(tuple, np.unique(rows, axis=0).tolist() if ndim else [()]))
    return distinct


def _tensors(schema: pa.Schema) -> dict[str, _Tensor]:
    tensors = {}
    for column in schema.names:
        prefix, is_data = column.removesuffix("data"), column.endswith("data")
        if is_data and f"{prefix}shape" in schema.names and (not prefix or prefix.endswith("_")):
            tensors[prefix.removesuffix("_") or "data"] = _Tensor(column, f"{prefix}shape")
    return tensors
