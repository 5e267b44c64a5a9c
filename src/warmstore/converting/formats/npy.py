"""`.npy` files: one field each, named after its file, or "data" where there is only one.

Rows are read into memory of their own, not mapped: mapped pages would count as ours for as long as the file is open.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from warmstore.converting.field_inference import array_field, native, no_objects
from warmstore.converting.objects.arrays import drop_pages
from warmstore.converting.record_source import RecordSource, Request, SourceBatch, equal_lengths, rows_at_once
from warmstore.errors import BadSource
from warmstore.records.format.fields import Fields


class Npy:
    """The header of one array in a file of NumPy's format, version 1 to 3."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        try:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            # Version 3 is version 2 with UTF-8 in the names of a structure's parts, which cannot be kept anyway.
            self.shape, self.column_major, self.dtype = read.get(version, np.lib.format.read_array_header_2_0)(file)
        except (ValueError, EOFError) as error:
            raise BadSource(f"{name} is not an array in NumPy's format: {error}") from None
        if self.dtype.hasobject:
            raise no_objects(name)
        self.start = file.tell()
        if not self.shape:
            raise BadSource(
                f"{name} is a single {self.dtype}, not one value per record; leave it out with fields=[...]"
            )
        self.column_major = self.column_major and len(self.shape) > 1

    @property
    def width(self) -> int:
        """Bytes per row."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def read(self, file: IO[bytes], count: int) -> np.ndarray[Any, Any]:
        """The next `count` rows of a file that stands at a row, [count, ...]."""
        data = bytearray(count * self.width)
        view = memoryview(data)
        while view:
            taken = file.readinto(view)  # type: ignore[attr-defined]
            if not taken:
                raise BadSource(f"{file.name}: the file ends before its array does; it was cut short")
            view = view[taken:]
        return np.frombuffer(data, self.dtype, count * self._items).reshape(count, *self.shape[1:])

    @property
    def _items(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64))


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    paths = {request.name: files[0]} if len(files) == 1 else _by_name(files)
    headers = {}
    for name, path in paths.items():
        if request.fields is None or name in request.fields:
            with open(path, "rb") as file:
                headers[name] = Npy(str(path), file)
    fields = request.choose(list(paths), lambda name: array_field(name, headers[name].dtype, headers[name].shape[1:]))
    rows = equal_lengths(files[0].parent, {name: headers[name].shape[0] for name in fields})
    for name in fields:
        header, path = headers[name], paths[name]
        if path.stat().st_size < header.start + rows * header.width:
            raise BadSource(f"{path}: the file ends before its array does; it was cut short")
    step = rows_at_once(sum(headers[name].width for name in fields))
    return RecordSource(fields, lambda start: _read(fields, paths, headers, rows, step, start), rows)


def _read(
    fields: Fields, paths: dict[str, Path], headers: dict[str, Npy], rows: int, step: int, start: int
) -> Iterator[SourceBatch]:
    readers = {name: _rows(paths[name], headers[name], rows, step, start) for name in fields}
    for _ in range(start, rows, step):
        yield SourceBatch({name: native(next(reader), fields[name]) for name, reader in readers.items()})


def _rows(path: Path, header: Npy, rows: int, step: int, start: int) -> Iterator[np.ndarray[Any, Any]]:
    with open(path, "rb") as file:
        if header.column_major:
            yield from mapped_rows(file, header, step, start)
            return
        file.seek(header.start + start * header.width)
        for first in range(start, rows, step):
            yield header.read(file, min(step, rows - first))


def mapped_rows(file: Any, header: Npy, step: int, start: int) -> Iterator[np.ndarray[Any, Any]]:
    """Rows of an array that is stored column by column: they lie all over the file, so it is mapped."""
    array = np.memmap(file, header.dtype, "r", header.start, header.shape, "F")
    for first in range(start, len(array), step):
        yield np.array(array[first : first + step], order="C", subok=False)
        drop_pages(array)


def _by_name(files: Sequence[Path]) -> dict[str, Path]:
    paths = {path.stem: path for path in files}
    if len(paths) < len(files):
        raise BadSource(f"two .npy files have one name, so they cannot be two fields: {', '.join(map(str, files))}")
    return paths
