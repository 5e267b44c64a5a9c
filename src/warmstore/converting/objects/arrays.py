"""Arrays in memory (NumPy, torch, memory maps, lists): a dict with one per field, or a single one."""

import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.converting.field_inference import column_field, native
from warmstore.converting.record_columns import nbytes_of
from warmstore.converting.record_source import RecordSource, Request, SourceBatch, equal_lengths, rows_at_once
from warmstore.errors import BadSource
from warmstore.records.format.fields import Field, Fields


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    given = request.source
    arrays = dict(given) if isinstance(given, Mapping) else {request.name: given}
    fields = request.choose(list(arrays), lambda name: column_field(name, arrays[name]))
    arrays = {name: arrays[name] for name in fields}
    rows = equal_lengths("the source", {name: _length(name, array) for name, array in arrays.items()})

    def read(start: int) -> Iterator[SourceBatch]:
        return slices(fields, arrays, rows, rows_at_once(sum(map(_nbytes, arrays.values())) / rows), start)

    # Arrays have no file name or time that identifies them, so the records of a draft are compared with the source.
    return RecordSource(fields, read, rows, skippable=False)


def _nbytes(values: Any) -> int:
    return sum(map(nbytes_of, values)) if isinstance(values, list | tuple) else int(values.nbytes)


def slices(fields: Fields, arrays: dict[str, Any], rows: int, step: int, start: int) -> Iterator[SourceBatch]:
    """Arrays of `rows` records, `step` at a time."""
    for first in range(start, rows, step):
        part = slice(first, min(first + step, rows))
        yield SourceBatch({name: _values(array[part], fields[name]) for name, array in arrays.items()})
        for array in arrays.values():
            drop_pages(array)


def drop_pages(array: Any) -> None:
    """Release the pages of a read-only memory map. Later reads come from the page cache."""
    mapped = getattr(array, "_mmap", None)
    if isinstance(mapped, mmap.mmap) and not array.flags.writeable:
        mapped.madvise(mmap.MADV_DONTNEED)


def _values(values: Any, field: Field) -> Any:
    if not isinstance(values, np.ndarray):
        return values
    return native(values if isinstance(values, np.ma.MaskedArray) else np.asarray(values), field)


def _length(name: str, values: Any) -> int:
    try:
        return len(values)
    except TypeError:
        raise BadSource(f"field {name!r} is a single {type(values).__name__}, not one value per record") from None
