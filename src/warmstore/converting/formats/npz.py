"""`.npz` archives: one field per array, read from the archive a few megabytes at a time."""

import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.converting.formats.npy import Npy, source_of_arrays
from warmstore.converting.record_source import RecordSource, Request, reading
from warmstore.errors import BadSource


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    if len(files) > 1:
        raise BadSource(f"{len(files)} .npz files; convert one, or give their arrays as an iterable with batched=True")
    path = files[0]
    headers: dict[str, Npy] = {}

    @contextmanager
    def opened() -> Iterator[zipfile.ZipFile]:
        with reading(path), zipfile.ZipFile(path) as archive:
            yield archive

    def rows_of(archive: zipfile.ZipFile, name: str, step: int, start: int) -> Iterator[np.ndarray[Any, Any]]:
        with archive.open(_member(archive, name)) as member:
            if headers[name].column_major:  # a member can only be read forwards
                with tempfile.TemporaryFile() as unpacked:
                    shutil.copyfileobj(member, unpacked, 1 << 20)
                    unpacked.flush()
                    yield from headers[name].batches(unpacked, step, start)
            else:
                yield from headers[name].batches(member, step, start)

    with opened() as archive:
        names = [member.removesuffix(".npy") for member in archive.namelist()]
        for name in names:
            if request.fields is None or name in request.fields:
                with archive.open(_member(archive, name)) as file:
                    headers[name] = Npy(f"{path}: {name}", file)
    return source_of_arrays(request, path, names, headers, opened, rows_of)


def _member(archive: zipfile.ZipFile, name: str) -> str:
    return f"{name}.npy" if f"{name}.npy" in archive.NameToInfo else name
