"""Hive partitions: a folder named `year=2024` gives the records of its files the value 2024 in a field `year`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from warmstore.errors import BadSource, SchemaMismatch
from warmstore.records.format.encoded_rows import EncodedRows
from warmstore.records.format.fields import Array, Field, Fields, Text
from warmstore.records.format.value_encoding import encode

_ABSENT = "__HIVE_DEFAULT_PARTITION__"
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True)
class Partitions:
    """The partitions of files.

    texts: per name one text a file, in the order of the files; None for no value.
    fields: int64 where every text is an int as Python writes it, else Text.
    """

    texts: dict[str, list[str | None]] = field(default_factory=dict)
    fields: Fields = field(default_factory=dict)

    def columns(self, fields: Fields, number: int, count: int) -> dict[str, EncodedRows]:
        """The columns of `count` records of file `number`, for the partitions in `fields`.

        Raises:
            SchemaMismatch: a text is no value of its field.
        """
        columns = {}
        for name, texts in self.texts.items():
            if name in fields:
                columns[name] = encode(name, fields[name], [_value(name, texts[number], fields[name])] * count)
        return columns


def partitions_of(files: Sequence[Path], root: Path | None, columns: Sequence[str]) -> Partitions:
    """The partitions of files.

    Args:
        root: the folder below which folder names are read.
        columns: the names of the files' columns.

    Raises:
        BadSource: a file is in other partitions than the first, or a partition has the name of a column.
    """
    if root is None:
        return Partitions()
    by_file = [_of_file(path, root) for path in files]
    names = list(by_file[0])
    for path, values in zip(files, by_file, strict=True):
        if list(values) != names:
            raise BadSource(
                f"{path} is in the partitions {list(values)}, the first file in {names}. Convert only files with the "
                "same partitions together"
            )
    for name in names:
        if name in columns:
            raise BadSource(
                f"{files[0]}: {name!r} is a column and the name of a partition, {name}={by_file[0][name]}. Rename one "
                "of them, or pass the files instead of the folder"
            )
    texts = {name: [values[name] for values in by_file] for name in names}
    return Partitions(texts, {name: _field(texts[name]) for name in names})


def partition_names(path: Path, root: Path) -> list[str]:
    """The names of the partitions that a file below `root` is in."""
    return list(_of_file(path, root))


def _of_file(path: Path, root: Path) -> dict[str, str | None]:
    inside = os.path.relpath(path.absolute(), root)
    values: dict[str, str | None] = {}
    for part in Path(inside).parts[:-1]:
        name, equals, text = part.partition("=")
        if equals and name:
            values[unquote(name)] = None if text == _ABSENT else unquote(text)
    return values


def _value(name: str, text: str | None, field: Field) -> Any:
    if text is None or isinstance(field, Text):
        return text
    try:
        return float(text) if isinstance(field, Array) and field.numpy.kind == "f" else int(text)
    except ValueError:
        raise SchemaMismatch(
            f"the partition {name}={text} does not fit {field}; pass fields={{..., {name!r}: ws.Text()}}"
        ) from None


def _field(texts: Sequence[str | None]) -> Field:
    return Array("int64") if all(text is None or _is_int(text) for text in texts) and any(texts) else Text()


def _is_int(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and str(int(text)) == text and int(text) in _INT64
