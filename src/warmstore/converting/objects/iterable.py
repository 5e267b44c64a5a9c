"""Any iterable of records, or of batches with `batched=True`. Without fields=, the first records decide the fields."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from warmstore.converting.field_inference import column_field, native
from warmstore.converting.record_columns import (
    Record,
    check_names,
    columns_of_records,
    fields_of_records,
    groups_of,
    nbytes_of,
)
from warmstore.converting.record_source import BATCH_BYTES, BATCH_ROWS, RecordSource, Request, SourceBatch
from warmstore.errors import BadSource, SchemaMismatch
from warmstore.records.format.array_interop import is_tensor
from warmstore.records.format.fields import Field, Fields


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
    fields = request.choose(list(first), lambda name: column_field(name, first[name]))

    def read(begin: int) -> Iterator[SourceBatch]:
        for batch in itertools.chain([first], batches):
            _check_batch(_checked(batch), fields, request.fields is None)
            columns = {name: batch[name] for name in fields}
            counts = {name: len(values) for name, values in columns.items()}
            if len(set(counts.values())) > 1:
                raise SchemaMismatch(f"all fields of a batch need the same number of records; got {counts}")
            count = next(iter(counts.values()))
            step = max(1, count * BATCH_BYTES // max(sum(nbytes_of(values) for values in columns.values()), 1))
            for start in range(0, count, min(step, BATCH_ROWS)):
                part = slice(start, start + min(step, BATCH_ROWS))
                yield SourceBatch({name: _plain(values[part], fields[name]) for name, values in columns.items()})

    return RecordSource(fields, read, skippable=False, **more)


def _check_batch(batch: dict[str, Any], fields: Fields, every: bool) -> None:
    if not fields.keys() <= batch.keys() or (every and batch.keys() != fields.keys()):
        raise SchemaMismatch(
            f"a batch has the fields {sorted(fields)}; got {sorted(batch)}. For an absent field yield a list of None; "
            "pass a field that the first batch lacks with fields={...}"
        )


def _plain(values: Any, field: Field) -> Any:
    return native(values, field) if hasattr(values, "dtype") and not is_tensor(values) else values
