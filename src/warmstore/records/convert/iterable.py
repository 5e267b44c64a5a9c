"""Any iterable of records, or of batches with `batched=True`. Fields are those of the first record where not told."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from warmstore.errors import BadSource, SchemaMismatch
from warmstore.records.arrays import is_tensor, to_numpy
from warmstore.records.convert.inference import array_field, field_of, native
from warmstore.records.convert.source import BATCH_BYTES, BATCH_ROWS, Batch, Request, Source
from warmstore.records.fields import Field, Fields

_SMALL = 64  # about what a number or a short list takes


def open_source(request: Request, files: Sequence[Path]) -> Source:
    return source_of(request, lambda: iter(request.source))


def source_of(request: Request, start: Any, **more: Any) -> Source:
    """A source of the records, or batches, that the iterator `start()` yields."""
    items = start()
    first = next(items, None)
    if first is None:
        raise BadSource("the source holds no records")
    if not isinstance(first, dict) or not first:
        raise SchemaMismatch(f"a record must be a dict of field names to values; the source yields {first!r:.80}")
    items = itertools.chain([first], items)
    infer = _field_of_batch if request.batched else field_of
    fields = request.choose(list(first), lambda name: infer(name, first[name]))

    def read(begin: int) -> Iterator[Batch]:
        return _batches(items, fields) if request.batched else _grouped(items, fields)

    return Source(fields, read, skippable=False, **more)


def _grouped(records: Iterator[dict[str, Any]], fields: Fields) -> Iterator[Batch]:
    group: list[dict[str, Any]] = []
    size = 0
    for record in records:
        _check(record, fields)
        group.append(record)
        size += sum(nbytes_of(record[name]) for name in fields)
        if size >= BATCH_BYTES or len(group) >= BATCH_ROWS:
            yield columns_of_records(group, fields)
            group, size = [], 0
    if group:
        yield columns_of_records(group, fields)


def columns_of_records(records: list[dict[str, Any]], fields: Fields, done: int | None = None) -> Batch:
    """Records as one batch."""
    return Batch({name: [record[name] for record in records] for name in fields}, done)


def _batches(batches: Iterator[dict[str, Any]], fields: Fields) -> Iterator[Batch]:
    for batch in batches:
        _check(batch, fields)
        columns = {name: batch[name] for name in fields}
        counts = {name: len(values) for name, values in columns.items()}
        if len(set(counts.values())) > 1:
            raise SchemaMismatch(f"all fields of a batch need the same number of records; got {counts}")
        count = next(iter(counts.values()))
        step = max(1, count * BATCH_BYTES // max(sum(nbytes_of(values) for values in columns.values()), 1))
        for first in range(0, count, min(step, BATCH_ROWS)):
            part = slice(first, first + min(step, BATCH_ROWS))
            yield Batch({name: _plain(values[part], fields[name]) for name, values in columns.items()})


def _plain(values: Any, field: Field) -> Any:
    return native(values, field) if hasattr(values, "dtype") and not is_tensor(values) else values


def _check(record: Any, fields: Fields) -> None:
    if not isinstance(record, dict) or not fields.keys() <= record.keys():
        given = sorted(record) if isinstance(record, dict) else type(record).__name__
        raise SchemaMismatch(f"a record has the fields {sorted(fields)}; got {given}")


def _field_of_batch(name: str, values: Any) -> Field:
    if isinstance(values, list | tuple):
        if not values:
            raise BadSource(f"the first batch holds no records, so what field {name!r} is cannot be told; pass fields=")
        return field_of(name, values[0])
    array = to_numpy(values)
    return array_field(name, array.dtype, array.shape[1:])


def nbytes_of(value: Any) -> int:
    """About how many bytes a value takes."""
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, list | tuple | dict):
        # Deep lists are rare and long ones common: the first item stands for the rest.
        items = value.values() if isinstance(value, dict) else value
        return _SMALL + len(value) * max(_SMALL, nbytes_of(next(iter(items), 0)))
    return _SMALL
