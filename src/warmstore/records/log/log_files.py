"""The files of a log: how they are created and opened, how many entries they have, and whether a log has ended."""

import contextlib
import errno
import logging
import os
from pathlib import Path

import numpy as np

from warmstore.errors import NotAStore
from warmstore.records.log.log_entries import CLOSED, ENTRY, PER_SECTOR, SIZE, ZEROS, torn_from
from warmstore.storage.files import COPY, Files, is_at, read_whole, write_all

_logger = logging.getLogger("warmstore")


def open_log(path: Path, copy: Path, files: Files, *, write: bool) -> tuple[int, bool]:
    """Open a log. A missing one is restored from its copy, or without `write` the copy is opened.

    Returns:
        The descriptor, and whether it is that of the copy.

    Raises:
        NotAStore: both are missing.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            return files.open(path, write=write), False
        if not write:
            descriptor = files.open(copy)
            _logger.warning("%s is missing; its copy is read. verify(repair=True) restores it", path)
            return descriptor, True
        data = read_whole(files, copy)
        with contextlib.suppress(FileExistsError):
            create_file(path, data, files)
            _logger.warning("%s was missing and is restored from its copy", path)
        return files.open(path, write=True), False
    except FileNotFoundError:
        raise NotAStore(f"{path} is missing: the store's folder is incomplete; restore it from a copy") from None


def whole_entries(files: Files, descriptor: int, size: int) -> int:
    """The number of entries in a log of `size` bytes, without a torn tail."""
    length = size // SIZE
    if not length or files.read(descriptor, SIZE, (length - 1) * SIZE) != ZEROS:
        return length
    first = (length - 1) // PER_SECTOR * PER_SECTOR
    return first + torn_from(files.read(descriptor, (length - first) * SIZE, first * SIZE), first)


def check_not_removed(path: Path, descriptor: int) -> None:
    """Raise OSError if an open log was removed: entries would be acknowledged that nobody can find. A moved one is
    still in some folder."""
    # Some file systems count no links: one without any may be there all the same.
    if not os.fstat(descriptor).st_nlink and not is_at(descriptor, path):
        raise OSError(errno.ESTALE, "the store was removed from its folder while it was open; the rows are in no file")


def create_log(folder: Path, files: Files, data: bytes = b"") -> None:
    """Create a log and its copy in a new folder, with the entries in `data`. Both are on the disk when this returns."""
    for name in ("log", "log" + COPY):
        create_file(folder / name, data, files)
    files.sync_folder(folder)


def is_closed(folder: Path, files: Files) -> bool:
    """Whether the log in a generation's folder, or its copy if that cannot be read, ends with a `closed` entry."""
    for name in ("log", "log" + COPY):
        try:
            data = read_whole(files, folder / name)
        except OSError:
            continue
        data = data[: len(data) // SIZE * SIZE]
        if data and np.frombuffer(data[-SIZE:], ENTRY)["kind"][0] == CLOSED:
            return True
    return False


def create_file(path: Path, data: bytes, files: Files) -> None:
    """Create a file. Its data, not its name, is on the disk when this returns."""
    descriptor = files.create(path)
    try:
        write_all(files, descriptor, [data], 0)
        files.sync(descriptor)
    finally:
        files.close(descriptor)
