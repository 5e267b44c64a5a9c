"""WebDataset tars: adjacent files with the same name are a record; the extension, after the first dot, names the field.

The last part of the extension decides the type: .txt is Text, .json Json, .cls an int64, .npy an array, others Bytes.
The field `__key__` has the names of the records. Tars are streamed, and nothing is unpickled.
"""

import io
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.converting.field_inference import field_of, native, no_objects
from warmstore.converting.json_values import parsed
from warmstore.converting.record_columns import check_names, columns_of_records, fields_of_records, groups_of
from warmstore.converting.record_source import RecordSource, Request, SourceBatch, total_bytes
from warmstore.converting.tar_members import members_of
from warmstore.errors import BadSource, SchemaMismatch, UnsupportedType
from warmstore.records.format.fields import Array, Bytes, Field, Fields, Json, Ragged, Text

KEY = "__key__"


@dataclass(frozen=True)
class _Sample:
    """A record. files: bytes by field. where: the tar and the name. done: bytes of the tars read so far."""

    files: dict[str, Any]
    where: str
    done: int

    def values(self) -> Iterable[Any]:
        return self.files.values()


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    all_fields = request.fields is None
    with closing(_samples(files, all_fields)) as samples:
        first = next(groups_of(samples), None)
    if first is None:
        raise BadSource(f"{', '.join(map(str, files))}: no records")

    def infer(name: str, data: Any) -> Field:
        if _kind(name) == "json":
            return Json()  # whatever value the first record has
        where = next(sample.where for sample in first if sample.files.get(name) is data)
        value = _decoded(where, name, data, None)
        if isinstance(value, np.ndarray) and value.dtype.kind in "SU":
            raise UnsupportedType(
                f"{where}.{name} is an array of strings, which no field holds; leave it out with fields=[...]"
            )
        return field_of(name, value)

    fields = fields_of_records(request, [sample.files for sample in first], infer)

    def read(start: int) -> Iterator[SourceBatch]:
        for group in groups_of(islice(_samples(files, all_fields), start, None)):
            for sample in group if all_fields else ():
                check_names(sample.where, sample.files.keys(), fields, len(first))
            records = [_record(sample, fields) for sample in group]
            yield columns_of_records(records, fields, group[-1].done)

    return RecordSource(fields, read, size=total_bytes(files))


def _record(sample: _Sample, fields: Fields) -> dict[str, Any]:
    """The values of a sample, for the fields that it has a file for."""
    return {
        name: _decoded(sample.where, name, sample.files[name], field)
        for name, field in fields.items()
        if name in sample.files
    }


def _samples(files: Sequence[Path], all_fields: bool) -> Generator[_Sample, None, None]:
    """The records of all tars in order. With `all_fields`, a member without an extension is an error."""
    before = 0
    for path in files:
        key: str | None = None
        sample: dict[str, Any] = {}
        done = before
        for member, data, position in members_of(path):
            folder, slash, base = member.rpartition("/")
            stem, dot, extension = base.partition(".")
            if not stem or (stem.startswith("__") and not dot):
                continue  # files of the operating system, such as ._0001.jpg, or of the format, such as __meta__
            if not dot and all_fields:
                raise BadSource(
                    f"{path}: {member} has no extension, so it is no field. Choose fields with fields=[...]"
                )
            if not dot:
                continue
            name = f"{folder}{slash}{stem}"
            if name != key:
                if sample:
                    yield _Sample(sample, f"{path}: {key}", done)
                key, sample = name, {KEY: name}
            extension = extension.lower()
            if extension in sample:
                raise BadSource(f"{path}: {name}.{extension} occurs twice in a row")
            sample[extension] = data
            done = before + position
        if sample:
            yield _Sample(sample, f"{path}: {key}", done)
        before += path.stat().st_size


def _kind(name: str) -> str:
    """The last part of an extension."""
    return name.rpartition(".")[2]


def _decoded(where: str, name: str, data: Any, field: Field | None) -> Any:
    """The value of a sample's file. Errors name the file."""
    try:
        return _value(name, data, field)
    except UnsupportedType as error:
        raise UnsupportedType(f"{where}.{name}: {error}") from None
    except (SchemaMismatch, ValueError, EOFError) as error:
        raise BadSource(f"{where}.{name} cannot be decoded: {error}") from None


def _value(name: str, data: Any, field: Field | None) -> Any:
    kind = _kind(name)
    if name == KEY or isinstance(field, Bytes):
        return data
    if kind == "txt" or isinstance(field, Text):
        return data.decode("utf-8")
    if kind == "json" or isinstance(field, Json):
        return parsed(data.decode("utf-8-sig"))
    if kind == "cls":
        return int(data)
    if kind == "npy":
        return _array(name, data, field)
    return data


def _array(name: str, data: bytes, field: Field | None) -> Any:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise no_objects(name) from None
    if field is not None and isinstance(field, Array | Ragged) and array.dtype.kind != "O":
        return native(array, field)
    return array if array.dtype.isnative else native(array, Bytes())
