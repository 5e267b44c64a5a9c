"""Large values in the files of a store, of which each caller gets copy-on-write pages instead of a copy."""

from typing import Any

import numpy as np

from warmstore.records.format.encoded_rows import ByteRanges
from warmstore.storage.files import PLAIN
from warmstore.storage.memory.private_pages import private_pages

LARGE = 256 << 10
"""Bytes from which on a value is mapped."""


class _Open:
    """An open file, closed with the last value in it."""

    descriptor = -1  # also where the file could not be opened

    def __init__(self, path: str) -> None:
        self.descriptor = PLAIN.open(path)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            PLAIN.close(self.descriptor)


class LargeValue:
    """A value in a file.

    Args:
        view: the value in the mapping of the store, where it was checked.
    """

    def __init__(self, file: _Open, offset: int, view: memoryview) -> None:
        self._file = file
        self._offset = offset
        self._view = view

    def own(self) -> Any:
        """The value as an array, uint8, of the caller's own; the view if the process has too many mappings."""
        pages = private_pages(self._file.descriptor, self._offset, len(self._view))
        return self._view if pages is None else pages


class LargeValues:
    """Finds large values in files, which it opens once."""

    def __init__(self) -> None:
        self._files: dict[str, _Open] = {}

    def of(self, spans: ByteRanges, view: memoryview) -> LargeValue | None:
        """The value in one span; None if its file cannot be mapped."""
        place = spans.space.place_of(int(spans.starts[0]))
        if place is None:
            return None
        path, offset = place
        file = self._files.get(path)
        try:
            if file is None:
                file = self._files[path] = _Open(path)
            if PLAIN.size(file.descriptor) < offset + len(view):
                return None
        except OSError:
            return None  # it was removed meanwhile
        value = LargeValue(file, offset, view)
        # Another file may have the name by now.
        return value if np.array_equal(np.frombuffer(value.own(), np.uint8), np.frombuffer(view, np.uint8)) else None

    def forget(self) -> None:
        """Close the files without values in use."""
        self._files = {}
