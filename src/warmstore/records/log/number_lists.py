"""The file `numbers` of a generation: lists of positions and row numbers that entries of its log refer to.

A list is written and synced before the entry that refers to it. A list without an entry is left over from an
unfinished write. `numbers.copy` holds the same bytes, written first and not synced. A damaged list is read from there.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from warmstore.records.log.log_entries import Entries
from warmstore.storage.array_types import Int64
from warmstore.storage.atomic import replace_file
from warmstore.storage.files import COPY, Files, read_whole, write_all

_logger = logging.getLogger("warmstore")

NAME = "numbers"


class NumberLists:
    """Reads lists from the bytes of the file, whatever their source."""

    def __init__(self, data: bytes, seed: int, where: str) -> None:
        self.where = where
        self._data = data
        self._seed = seed

    def read(self, entries: Entries) -> list[Int64 | None]:
        """The list that each entry refers to, int64 [n]; None for a damaged one."""
        return [self._list(entry) for entry in entries]

    def _list(self, entry: Any) -> Int64 | None:
        first, size = int(entry["offset"]), int(entry["body"])
        part = self._data[first : first + size]
        if len(part) != size or xxhash.xxh3_64_intdigest(part, self._seed) != int(entry["body_hash"]):
            return None
        return np.frombuffer(part, "<i8").astype(np.int64, copy=False)


class Numbers:
    """The lists of one generation, in its two files. The caller of `append` holds the edit lock.

    Args:
        seed: the generation's seed, for the hashes of the lists.
    """

    def __init__(self, folder: Path, files: Files, seed: int) -> None:
        self.path = folder / NAME
        self.where = str(self.path)
        self._files = files
        self._seed = seed

    def append(self, numbers: Int64) -> dict[str, int]:
        """Write a list, int64 [n]. It is on the disk when this returns.

        Returns:
            The fields of an entry that refers to it: `offset` and `body` in bytes, and `body_hash`.

        Raises:
            OSError: the disk refused. No entry refers to the written bytes.
        """
        data = numbers.astype("<i8").tobytes()
        with contextlib.ExitStack() as stack:
            descriptors = [self._opened(path, stack) for path in (self.path.with_name(NAME + COPY), self.path)]
            # At the same offset in both files, even if one of them was cut off.
            end = -(-max(map(self._files.size, descriptors)) // 8) * 8
            for descriptor in descriptors:
                write_all(self._files, descriptor, [data], end)
                if descriptor == descriptors[-1]:
                    self._files.sync(descriptor)
        return {"offset": end, "body": len(data), "body_hash": xxhash.xxh3_64_intdigest(data, self._seed)}

    def read(self, entries: Entries) -> list[Int64 | None]:
        """The list that each entry refers to, int64 [n]; None for one that is damaged in both files."""
        found: list[Int64 | None] = [None] * len(entries)
        if not len(entries):
            return found
        for lists in self._both():
            missing = [at for at, numbers in enumerate(found) if numbers is None]
            for at, numbers in zip(missing, lists.read(entries[missing]), strict=True):
                found[at] = numbers
                if numbers is not None and lists.where != self.where:
                    _logger.warning("%s: a list is damaged and is read from the copy", self.path)
        return found

    def _both(self) -> Iterator[NumberLists]:
        for path in (self.path, self.path.with_name(NAME + COPY)):
            try:
                data = read_whole(self._files, path)
            except OSError:
                data = b""
            yield NumberLists(data, self._seed, str(path))

    def whole(self) -> bytes:
        """The bytes of the longer of the two files, for another host."""
        found = b""
        for path in (self.path, self.path.with_name(NAME + COPY)):
            with contextlib.suppress(OSError):
                found = max(found, read_whole(self._files, path), key=len)
        return found

    def take(self, whole: bytes) -> None:
        """Replace both files by the bytes of another host's file, which contains these lists."""
        for path in (self.path.with_name(NAME + COPY), self.path):
            if whole:
                replace_file(path, whole, durable=True, files=self._files)

    def damaged(self, entries: Entries) -> list[str]:
        """The names of the files in which a list that these entries refer to is damaged."""
        return [
            Path(lists.where).name for lists in self._both() if any(numbers is None for numbers in lists.read(entries))
        ]

    def mend(self, entries: Entries) -> None:
        """Restore lists that are damaged in one file from the other one."""
        for name in self.damaged(entries):
            with contextlib.ExitStack() as stack:
                descriptor = self._opened(self.path.with_name(name), stack)
                for entry, numbers in zip(entries, self.read(entries), strict=True):
                    if numbers is not None:
                        write_all(self._files, descriptor, [numbers.astype("<i8").tobytes()], int(entry["offset"]))
                self._files.sync(descriptor)

    def _opened(self, path: Path, stack: contextlib.ExitStack) -> int:
        """Open one of the files for writing, until the stack unwinds. A missing file is created."""
        try:
            descriptor = self._files.open(path, write=True)
        except FileNotFoundError:
            descriptor = self._files.create(path)
            stack.callback(self._files.close, descriptor)
            self._files.sync_folder(path.parent)
            return descriptor
        stack.callback(self._files.close, descriptor)
        return descriptor
