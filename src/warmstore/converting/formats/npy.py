"""`.npy` files: one field a file, named after the file; the field of a file that is the source is "data".

Rows are read, not mapped: mapped pages would count as this process's memory while the file is open.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np

from warmstore.converting.field_inference import array_field, native, no_objects
from warmstore.converting.objects.arrays import drop_pages
from warmstore.converting.record_source import RecordSource, Request, SourceBatch, equal_lengths, rows_at_once
from warmstore.errors import BadSource


class Npy:
    """The header of one array in a file of NumPy's format, version 1 to 3."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        try:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            # Version 3 is version 2 with UTF-8 in the names of a structure's parts, and no field holds structures.
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
        """The next `count` rows, [count, ...], of a file that is positioned at a row."""
        data = bytearray(count * self.width)
        view = memoryview(data)
        while view:
            count_read = file.readinto(view)  # type: ignore[attr-defined]
            if not count_read:
                raise BadSource(f"{file.name}: the file ends before its array does; it was cut short")
            view = view[count_read:]
        items = count * int(np.prod(self.shape[1:], dtype=np.int64))
        return np.frombuffer(data, self.dtype, items).reshape(count, *self.shape[1:])

    def batches(self, file: IO[bytes], step: int, start: int) -> Iterator[np.ndarray[Any, Any]]:
        """The rows from number `start` on, `step` at a time, of a file that can be mapped or is row-major."""
        if self.column_major:  # a row is scattered over the file
            array = np.memmap(file, self.dtype, "r", self.start, self.shape, "F")
            for first in range(start, len(array), step):
                yield np.array(array[first : first + step], order="C", subok=False)
                drop_pages(array)
            return
        file.seek(self.start + start * self.width)
        for first in range(start, self.shape[0], step):
            yield self.read(file, min(step, self.shape[0] - first))


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    paths = {request.name: files[0]} if request.paths == (files[0],) else _by_name(files)
    headers = {}
    for name, path in paths.items():
        if request.fields is None or name in request.fields:
            with open(path, "rb") as file:
                headers[name] = Npy(str(path), file)

    def rows_of(_: None, name: str, step: int, start: int) -> Iterator[np.ndarray[Any, Any]]:
        with open(paths[name], "rb") as file:
            yield from headers[name].batches(file, step, start)

    source = source_of_arrays(request, files[0].parent, list(paths), headers, nullcontext, rows_of)
    for name in source.fields:
        header, path = headers[name], paths[name]
        if path.stat().st_size < header.start + header.shape[0] * header.width:
            raise BadSource(f"{path}: the file ends before its array does; it was cut short")
    return source


def source_of_arrays(
    request: Request,
    what: Path,
    names: list[str],
    headers: dict[str, Npy],
    opened: Callable[[], AbstractContextManager[Any]],
    rows_of: Callable[[Any, str, int, int], Iterator[np.ndarray[Any, Any]]],
) -> RecordSource:
    """A source with a field for each array.

    Args:
        opened: opens an archive for reading; its value is passed on to `rows_of`.
        rows_of: the rows of an array, called with the archive, the name, the rows of a batch, and the first row.
    """
    fields = request.choose(names, lambda name: array_field(name, headers[name].dtype, headers[name].shape[1:]))
    rows = equal_lengths(what, {name: headers[name].shape[0] for name in fields})
    step = rows_at_once(sum(headers[name].width for name in fields))

    def read(start: int) -> Iterator[SourceBatch]:
        with opened() as archive:
            arrays = {name: rows_of(archive, name, step, start) for name in fields}
            for _ in range(start, rows, step):
                yield SourceBatch({name: native(next(array), fields[name]) for name, array in arrays.items()})

    return RecordSource(fields, read, rows)


def _by_name(files: Sequence[Path]) -> dict[str, Path]:
    paths = {path.stem: path for path in files}
    if len(paths) < len(files):
        raise BadSource(f"two .npy files have one name, so they cannot be two fields: {', '.join(map(str, files))}")
    return paths
