"""The bytes that a tier may take, and who uses it: a limit that holds at every moment, whoever writes.

Whoever is about to make a file longer takes the tier's lock, counts the bytes that are there, and writes only if it
stays within the limit, all before the lock is given back. So nobody has to keep account, and a killed process leaves
no wrong one behind.
"""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from warmstore.records.files import HUGE_PAGE, Buffer, Files, file_lock

_PAGE = 4096
_LOCK = ".lock"


class OverBudget(OSError):
    """A write would take a tier over its budget."""


def is_over_budget(error: BaseException | None) -> bool:
    """Whether that is why a write failed."""
    while error is not None and not isinstance(error, OverBudget):
        error = error.__cause__
    return error is not None


class Room:
    """So many bytes for a folder and everything in it, in whole pages, of which a folder itself takes one.

    In the folder are versions: folders of which each has a lock beside it, held by everybody who uses it. Versions that
    nobody uses go, oldest first, when there is not room enough.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit

    def used(self) -> int:
        """Bytes that are taken now."""
        return _size_of(self.folder)

    def free(self, wanted: int) -> int:
        """Bytes that are left, after versions that nobody uses have made room for `wanted` where they could."""
        left = self.limit - self.used()
        if left < wanted and self._remove_unused(wanted - left):
            left = self.limit - self.used()
        return left

    @contextlib.contextmanager
    def claim(self, growth: int) -> Iterator[None]:
        """Let the folder grow by so many bytes inside a `with`.

        Raises:
            OverBudget: it would be more than may be.
        """
        with file_lock(self.folder / "room.lock", Files()):
            if self.free(growth) < growth:
                raise OverBudget(errno.ENOSPC, f"the tier's budget of {self.limit:,} bytes is taken", str(self.folder))
            yield

    def _remove_unused(self, wanted: int) -> bool:
        removed = 0
        locks = sorted(self.folder.glob("*" + _LOCK), key=_modified)
        for lock in locks:
            version = lock.with_suffix("")
            if removed >= wanted or not version.is_dir():
                continue
            size = _size_of(version)
            with contextlib.suppress(OSError):
                removed += size if remove_unused(version) else 0
        return removed > 0


class RoomFiles(Files):
    """Files that keep within a room, and leave it to the kernel when they reach the disk.

    What a power failure leaves half written is found by its checksums, and computed again.
    """

    def __init__(self, room: Room) -> None:
        self.room = room

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        with self._growing(descriptor, offset + sum(map(len, buffers))):
            return super().write(descriptor, buffers, offset)

    def allocate(self, descriptor: int, offset: int, length: int) -> None:
        with self._growing(descriptor, offset + length):
            super().allocate(descriptor, offset, length)

    def extend(self, descriptor: int, offset: int) -> bool:
        with self._growing(descriptor, offset + HUGE_PAGE):
            return super().extend(descriptor, offset)

    def make_folder(self, folder: Path) -> None:
        with self.room.claim(_PAGE):
            super().make_folder(folder)

    def sync(self, descriptor: int) -> None:
        """Nothing: see the class."""

    def sync_folder(self, folder: Path) -> None:
        """Nothing: see the class."""

    def _growing(self, descriptor: int, end: int) -> contextlib.AbstractContextManager[None]:
        growth = _pages(end) - _pages(self.size(descriptor))
        return self.room.claim(growth) if growth > 0 else contextlib.nullcontext()


class Hold:
    """Says that a folder is in use, for as long as this process or what it forks lives, or until `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pid = os.getpid()
        path = lock_of(folder)
        while True:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)
            if os.fstat(self._descriptor).st_nlink:
                break
            os.close(self._descriptor)  # somebody removed it in between
        os.utime(path)

    def is_last(self) -> bool:
        """Whether nobody else holds it, but for processes that were forked from this one; only to be asked at the end.

        It is then this one's alone until `close`.
        """
        if os.getpid() != self._pid or self._descriptor < 0:
            return False  # a forked child shares its parent's lock: asking would take it away
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Say so no longer. Twice is fine."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def lock_of(folder: Path) -> Path:
    """The file whose lock says that a folder is in use: it lies beside it."""
    return folder.with_name(folder.name + _LOCK)


def remove_unused(folder: Path, *, lock_too: bool = False) -> bool:
    """Remove a folder unless somebody uses it; say whether it is gone.

    Args:
        lock_too: its lock's file as well, where folders come and go under ever new names.
    """
    path = lock_of(folder)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return remove(folder, lock_too=lock_too)
    finally:
        os.close(descriptor)


def remove(folder: Path, *, lock_too: bool) -> bool:
    """Remove a folder whose lock is held alone, and then its lock; say whether it is gone."""
    shutil.rmtree(folder, ignore_errors=True)  # what still writes there may keep it
    gone = not folder.exists()
    if gone and lock_too:
        lock_of(folder).unlink(missing_ok=True)
    return gone


def _size_of(folder: Path) -> int:
    total = _PAGE
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        total += _size_of(Path(entry.path))
                    else:
                        total += _pages(entry.stat(follow_symlinks=False).st_size)
    except FileNotFoundError:
        return 0
    return total


def _pages(length: int) -> int:
    return -(-length // _PAGE) * _PAGE


def _modified(path: Path) -> float:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0.0
