"""JSON Lines: a JSON object a line, which is a record. All records of all files decide the fields.

Bools, ints and floats are Array fields, str Text, lists and objects Json. Ints among floats become floats if all are
exact. A key that a record lacks is absent. So is null, except in a Json field, where null is a value.
"""

import gzip
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from warmstore.converting.json_values import parsed
from warmstore.converting.known_formats import plain_name
from warmstore.converting.record_columns import columns_of_records, groups_of
from warmstore.converting.record_source import RecordSource, Request, SourceBatch, reading
from warmstore.errors import BadSource, SchemaMismatch, UnsupportedType
from warmstore.records.format.fields import Array, Field, Json, Text

_INT64 = range(-(1 << 63), 1 << 63)
_EXACT = 1 << 53
"""Ints up to this one are exact in float64."""


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    kinds: dict[str, _Kinds] = {}
    rows = 0
    for where, record in _records(files):
        rows += 1
        for name, value in record.items():
            if name not in kinds:
                kinds[name] = _Kinds()
            kinds[name].add(where, value)
    if not rows:
        raise BadSource(f"{', '.join(map(str, files))}: no records")
    fields = request.choose(list(kinds), lambda name: kinds[name].field(name), open_ended=True)

    def read(start: int) -> Iterator[SourceBatch]:
        for group in groups_of(record for _, record in islice(_records(files), start, None)):
            yield columns_of_records(group, fields)

    return RecordSource(fields, read, rows)


class _Kinds:
    """The types of the values of a key, and the place of the first value of each type."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def add(self, where: str, value: Any) -> None:
        kind = type(value).__name__
        if kind == "int" and not -_EXACT <= value <= _EXACT:
            kind = "large int" if value in _INT64 else "int of more than 64 bits"
        if kind not in self._first:
            self._first[kind] = where

    def field(self, name: str) -> Field:
        kinds = self._first.keys() - {"NoneType"}
        if "int of more than 64 bits" in kinds:
            raise UnsupportedType(
                f"{self._first['int of more than 64 bits']}: {name!r} is an int beyond int64. Pass "
                f"fields={{..., {name!r}: ws.Json()}}"
            )
        if kinds == {"str"}:
            return Text()
        if kinds == {"bool"}:
            return Array("bool")
        if kinds and kinds <= {"int", "large int"}:
            return Array("int64")
        if kinds and kinds <= {"int", "float"}:
            return Array("float64")
        if kinds <= {"list", "dict"}:
            return Json()
        places = ", ".join(f"{kind} at {self._first[kind]}" for kind in sorted(kinds))
        raise SchemaMismatch(
            f"{name!r} is of several types: {places}. Keep them as they are with fields={{..., {name!r}: ws.Json()}}, "
            "or leave it out with fields=[...]"
        )


def _records(files: Sequence[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All records, each with its file and line."""
    for path in files:
        with reading(path), open(path, "rb") as file, _unpacked(path, file) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    where = f"{path}, line {number:,}"
                    yield where, _record(where, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)


def _unpacked(path: Path, file: IO[bytes]) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(file)) if plain_name(path).endswith(".gz") else file


def _record(where: str, line: bytes) -> dict[str, Any]:
    try:
        record = parsed(line.decode("utf-8"))
    except ValueError as error:
        raise BadSource(f"{where} cannot be read: {error}") from None
    if not isinstance(record, dict):
        raise BadSource(f"{where} is a {type(record).__name__}; a record is a JSON object")
    return record
