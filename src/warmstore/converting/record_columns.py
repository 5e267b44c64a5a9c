"""Records as batches of columns, for formats that yield one record after the other."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any, Protocol, TypeVar

import numpy as np

from warmstore.converting.field_inference import field_of
from warmstore.converting.record_source import BATCH_BYTES, BATCH_ROWS, Request, SourceBatch
from warmstore.errors import SchemaMismatch
from warmstore.records.format.encoded_rows import EncodedRows, absent_rows, spread
from warmstore.records.format.fields import Field, Fields, Json
from warmstore.records.format.value_encoding import encode

Record = dict[str, Any]
_SMALL = 64  # bytes that a number or a short list takes, about


class _HasValues(Protocol):
    def values(self) -> Iterable[Any]: ...


_Item = TypeVar("_Item", bound=_HasValues)


def groups_of(records: Iterable[_Item]) -> Iterator[list[_Item]]:
    """Records, in lists of a few megabytes."""
    group: list[_Item] = []
    size = 0
    for record in records:
        group.append(record)
        size += sum(map(nbytes_of, record.values()))
        if size >= BATCH_BYTES or len(group) >= BATCH_ROWS:
            yield group
            group, size = [], 0
    if group:
        yield group


def fields_of_records(
    request: Request, records: Sequence[Record], infer: Callable[[str, Any], Field] = field_of
) -> Fields:
    """The fields of a source's first records. The first value of a field that is not None decides its type."""
    names = list(dict.fromkeys(name for record in records for name in record))

    def field(name: str) -> Field:
        values = (record.get(name) for record in records)
        return infer(name, next((value for value in values if value is not None), None))

    return request.choose(names, field, open_ended=True)


def check_names(where: str, names: Set[str], fields: Fields, first_records: int) -> None:
    """Raise SchemaMismatch if a record has a field that none of the first records has."""
    if not names <= fields.keys():
        name = min(names - fields.keys())
        raise SchemaMismatch(
            f"{where} has the field {name!r}, which none of the first {first_records:,} records has. Pass all fields, "
            f"fields={{..., {name!r}: ...}}, or leave this one out: fields=[...]"
        )


def columns_of_records(records: list[Record], fields: Fields, done: int | None = None) -> SourceBatch:
    """Records as one batch. A field that a record lacks is absent."""
    return SourceBatch({name: _column(name, field, records) for name, field in fields.items()}, done)


def _column(name: str, field: Field, records: list[Record]) -> EncodedRows:
    if not isinstance(field, Json):
        return encode(name, field, [record.get(name) for record in records])
    absent = np.array([name not in record for record in records])
    if absent.all():
        return absent_rows(field, len(records))
    rows = encode(name, field, [record[name] for record in records if name in record])  # None is a JSON value
    return spread(field, rows, absent) if absent.any() else rows


def nbytes_of(value: Any) -> int:
    """The bytes that a value takes, about."""
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, list | tuple | dict):
        # The first item is taken for all: long lists are common, lists of unequal items are not.
        items = value.values() if isinstance(value, dict) else value
        return _SMALL + len(value) * max(_SMALL, nbytes_of(next(iter(items), 0)))
    interface = getattr(value, "__array_interface__", None)  # of an image of PIL, for example
    if interface is not None:
        return int(math.prod(interface["shape"]) * np.dtype(interface["typestr"]).itemsize)
    return _SMALL
