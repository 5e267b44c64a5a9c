"""Arrays in memory (NumPy, torch, memory maps, lists, Arrow): a dict with one per field, or a single one."""

import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from warmstore.converting.objects.columns import SourceColumn
from warmstore.converting.record_source import RecordSource, Request, SourceBatch, equal_lengths, rows_at_once


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    given = request.source
    arrays = dict(given) if isinstance(given, Mapping) else {request.name: given}
    return source_of_columns(request, "the source", arrays)


def source_of_columns(request: Request, what: str, given: dict[str, Any]) -> RecordSource:
    """A source with a field for each column that `SourceColumn.of` takes. `what`: its name in errors."""
    columns: dict[str, SourceColumn] = {}

    def column(name: str) -> SourceColumn:
        if name not in columns:
            columns[name] = SourceColumn.of(name, given[name])
        return columns[name]

    fields = request.choose(list(given), lambda name: column(name).field())
    chosen = {name: column(name) for name in fields}
    rows = equal_lengths(what, {name: len(each) for name, each in chosen.items()})
    step = rows_at_once(sum(each.nbytes for each in chosen.values()) / rows)

    def read(start: int) -> Iterator[SourceBatch]:
        for first in range(start, rows, step):
            last = min(first + step, rows)
            yield SourceBatch({name: each.part(first, last, fields[name]) for name, each in chosen.items()})
            for each in chosen.values():
                drop_pages(each.values)

    # Arrays have no file name or time that identifies them, so the records of a draft are compared with the source.
    return RecordSource(fields, read, rows, skippable=False)


def drop_pages(array: Any) -> None:
    """Release the pages of a read-only memory map. Later reads come from the page cache."""
    mapped = getattr(array, "_mmap", None)
    if isinstance(mapped, mmap.mmap) and not array.flags.writeable:
        mapped.madvise(mmap.MADV_DONTNEED)
