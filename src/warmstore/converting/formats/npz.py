"""`.npz` archives: one field per array. Each is read from its place in the archive, a few megabytes at a time."""

import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.converting.field_inference import array_field, native
from warmstore.converting.formats.npy import Npy, mapped_rows
from warmstore.converting.record_source import RecordSource, Request, SourceBatch, equal_lengths, reading, rows_at_once
from warmstore.errors import BadSource
from warmstore.records.format.fields import Fields


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    if len(files) > 1:
        raise BadSource(f"{len(files)} .npz files; convert one, or give their arrays as an iterable with batched=True")
    path = files[0]
    headers = {}
    with reading(path), zipfile.ZipFile(path) as archive:
        names = [member.removesuffix(".npy") for member in archive.namelist()]
        for name in names:
            if request.fields is None or name in request.fields:
                with archive.open(_member(archive, name)) as file:
                    headers[name] = Npy(f"{path}: {name}", file)
    fields = request.choose(names, lambda name: array_field(name, headers[name].dtype, headers[name].shape[1:]))
    rows = equal_lengths(path, {name: headers[name].shape[0] for name in fields})
    step = rows_at_once(sum(headers[name].width for name in fields))
    return RecordSource(fields, lambda start: _read(path, fields, headers, rows, step, start), rows)


def _read(
    path: Path, fields: Fields, headers: dict[str, Npy], rows: int, step: int, start: int
) -> Iterator[SourceBatch]:
    with reading(path), ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        readers = {name: _rows(stack, archive, name, headers[name], rows, step, start) for name in fields}
        for _ in range(start, rows, step):
            yield SourceBatch({name: native(next(reader), fields[name]) for name, reader in readers.items()})


def _rows(
    stack: ExitStack, archive: zipfile.ZipFile, name: str, header: Npy, rows: int, step: int, start: int
) -> Iterator[np.ndarray[Any, Any]]:
    member: Any = stack.enter_context(archive.open(_member(archive, name)))
    if header.column_major:
        # Its rows lie all over a stream that can only be read forwards.
        with tempfile.TemporaryFile() as unpacked:
            shutil.copyfileobj(member, unpacked, 1 << 20)
            unpacked.flush()
            yield from mapped_rows(unpacked, header, step, start)
        return
    member.seek(header.start + start * header.width)
    for first in range(start, rows, step):
        yield header.read(member, min(step, rows - first))


def _member(archive: zipfile.ZipFile, name: str) -> str:
    return f"{name}.npy" if f"{name}.npy" in archive.NameToInfo else name
