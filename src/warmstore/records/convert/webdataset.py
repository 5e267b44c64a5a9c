"""WebDataset tars: neighbouring files of one name are a record, what follows its first dot names the field.

Of each field's extension the last part decides: .txt is Text, .json Json, .cls an int64, .npy an array, anything else
Bytes. The names of the records are the field `__key__`. Tars are streamed, and nothing in them is unpickled.
"""

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.errors import BadSource, SchemaMismatch
from warmstore.records.convert.inference import field_of, native, no_objects
from warmstore.records.convert.iterable import columns_of_records, nbytes_of
from warmstore.records.convert.source import BATCH_BYTES, BATCH_ROWS, Batch, Request, Source, total_bytes
from warmstore.records.fields import Array, Bytes, Field, Fields, Json, Ragged, Text

KEY = "__key__"


def open_source(request: Request, files: Sequence[Path]) -> Source:
    samples = _samples(files)
    first = next(samples, None)
    samples.close()
    if first is None:
        raise BadSource(f"{', '.join(map(str, files))}: no records")
    raw, _, _ = first

    def infer(name: str) -> Field:
        return field_of(name, _decoded(name, raw[name], None))

    fields = request.choose(list(raw), infer)

    def read(start: int) -> Iterator[Batch]:
        return _batches(_samples(files), fields, start)

    return Source(fields, read, size=total_bytes(files))


def _batches(samples: Iterator[tuple[dict[str, Any], str, int]], fields: Fields, start: int) -> Iterator[Batch]:
    group: list[dict[str, Any]] = []
    size = done = 0
    known = fields.keys()
    for number, (raw, where, done) in enumerate(samples):
        if number < start:
            continue
        if not known <= raw.keys():
            raise SchemaMismatch(
                f"{where} has the files {sorted(raw.keys() - {KEY})}; {sorted(known - raw.keys())} miss"
            )
        record = {}
        for name, field in fields.items():
            try:
                record[name] = _decoded(name, raw[name], field)
            except (SchemaMismatch, ValueError) as error:
                raise BadSource(f"{where}.{name} cannot be decoded: {error}") from None
        group.append(record)
        size += sum(map(nbytes_of, record.values()))
        if size >= BATCH_BYTES or len(group) >= BATCH_ROWS:
            yield columns_of_records(group, fields, done)
            group, size = [], 0
    if group:
        yield columns_of_records(group, fields, done)


def _samples(files: Sequence[Path]) -> Any:
    """Records of all tars in order: their files' bytes by field, where they are, and bytes of tar read by then."""
    before = 0
    for path in files:
        with open(path, "rb") as file, _streamed(path, file) as tar:
            key: str | None = None
            record: dict[str, Any] = {}
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # tarfile would keep every member it ever saw
                folder, slash, base = member.name.rpartition("/")
                stem, dot, extension = base.partition(".")
                if not member.isfile() or not stem or not dot:
                    continue
                name = f"{folder}{slash}{stem}"
                if name != key:
                    if record:
                        yield record, f"{path}: {key}", before + file.tell()
                    key, record = name, {KEY: name}
                extension = extension.lower()
                if extension in record:
                    raise BadSource(f"{path}: {name}.{extension} is there twice in a row")
                content = tar.extractfile(member)
                record[extension] = content.read() if content else b""
            if record:
                yield record, f"{path}: {key}", before + file.tell()
        before += path.stat().st_size


def _streamed(path: Path, file: Any) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=file, mode="r|*")
    except tarfile.ReadError as error:
        raise BadSource(f"{path} is not a tar: {error}") from None


def _decoded(name: str, data: Any, field: Field | None) -> Any:
    """A file's value. A field that the caller chose otherwise gets the bytes."""
    kind = name.rpartition(".")[2]
    if name == KEY or isinstance(field, Bytes):
        return data
    if kind == "txt" or isinstance(field, Text):
        return data.decode("utf-8")
    if kind == "json" or isinstance(field, Json):
        return json.loads(data)
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
