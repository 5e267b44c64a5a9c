"""Any iterable of records, or of batches with `batched=True`. Without fields=, the first records decide the fields."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from warmstore.converting.objects.columns import SourceColumn
from warmstore.converting.record_columns import (
    Record,
    check_names,
    columns_of_records,
    fields_of_records,
    groups_of,
)
from warmstore.converting.record_source import BATCH_BYTES, BATCH_ROWS, RecordSource, Request, SourceBatch
from warmstore.errors import BadSource, SchemaMismatch
from warmstore.records.format.encoded_rows import absent_rows
from warmstore.records.format.fields import Fields


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    return source_of(request, lambda: iter(request.source))


def source_of(request: Request, start: Callable[[], Iterator[Any]], **more: Any) -> RecordSource:
    """A source of the records or batches that the iterator `start()` yields."""
    if request.batched:
        return _source_of_batches(request, start(), **more)
    groups = groups_of(map(_checked, start()))
    first = next(groups, None)
    if first is None:
        raise BadSource("the source holds no records")
    fields = fields_of_records(request, first)

    def read(begin: int) -> Iterator[SourceBatch]:
        before = 0
        for group in itertools.chain([first], groups):
            if request.fields is None:  # with fields=, the caller leaves out the others
                for number, record in enumerate(group, before):
                    check_names(f"record {number:,}", record.keys(), fields, len(first))
            yield columns_of_records(group, fields)
            before += len(group)

    return RecordSource(fields, read, skippable=False, **more)


def _checked(record: Any) -> Record:
    if not isinstance(record, dict):
        raise SchemaMismatch(f"a record must be a dict of field names to values; the source yields {record!r:.80}")
    return record


def _source_of_batches(request: Request, batches: Iterator[Any], **more: Any) -> RecordSource:
    first = next(batches, None)
    if first is None:
        raise BadSource("the source holds no records")
    _checked(first)
    infer = lambda name: SourceColumn.of(name, first[name]).field()  # noqa: E731
    fields = request.choose(list(first), infer, open_ended=True)

    def read(begin: int) -> Iterator[SourceBatch]:
        for batch in itertools.chain([first], batches):
            _check_batch(request, _checked(batch), fields)
            columns = {name: SourceColumn.of(name, batch[name]) for name in fields if name in batch}
            counts = {name: len(column) for name, column in columns.items()}
            if len(set(counts.values())) > 1:
                raise SchemaMismatch(f"all fields of a batch need the same number of records; got {counts}")
            count = next(iter(counts.values()))
            size = sum(column.nbytes for column in columns.values())
            step = min(max(1, count * BATCH_BYTES // max(size, 1)), BATCH_ROWS)
            for start in range(0, count, step):
                last = min(start + step, count)
                yield SourceBatch(
                    {
                        name: columns[name].part(start, last, field)
                        if name in columns
                        else absent_rows(field, last - start)
                        for name, field in fields.items()
                    }
                )

    return RecordSource(fields, read, skippable=False, **more)


def _check_batch(request: Request, batch: dict[str, Any], fields: Fields) -> None:
    """Raise SchemaMismatch if a batch has further fields, or lacks one that the caller did not pass with its type."""
    if request.fields is None:
        fits = batch.keys() == fields.keys()
    else:
        fits = not fields.keys().isdisjoint(batch) and (
            isinstance(request.fields, dict) or fields.keys() <= batch.keys()
        )
    if not fits:
        raise SchemaMismatch(
            f"a batch has the fields {sorted(fields)}; got {sorted(batch)}. For an absent field yield a list of None; "
            "pass a field that the first batch lacks with fields={...}"
        )
