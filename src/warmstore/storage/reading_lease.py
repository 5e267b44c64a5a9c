"""Leases of folders by those who only read them, which change nothing on the disk. Imports no NumPy: lists of many
folders ask for them.

Whoever writes beside a folder marks it by `UsageLease` instead.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


class ReadingLease:
    """Marks a folder as in use by a shared `flock` on the folder itself, until `release`, or the end of this object or
    of this process and its forked children. It needs no right to write, and leaves no file.

    A folder that is missing, or whose file system has no locks of folders, has no such lease.
    """

    _descriptor = -1  # also where the constructor was interrupted

    def __init__(self, folder: Path) -> None:
        with contextlib.suppress(OSError):
            self._descriptor = _opened(folder)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def release(self) -> None:
        """End this process's use. Safe to call twice."""
        self.__del__()

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _close(descriptor)


@contextlib.contextmanager
def unread(folder: Path) -> Iterator[bool]:
    """Yield whether nobody has a `ReadingLease` of a folder. New ones wait until the end of this context.

    Raises:
        OSError: the folder cannot be opened.
    """
    descriptor = _opened(folder)
    try:
        try:
            alone = lock_alone(descriptor)
        except OSError:  # the file system has no locks of folders, and so nobody has one
            alone = True
        yield alone
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # see `unlock_and_close`
        os.close(descriptor)


def is_read(folder: Path) -> bool:
    """Whether a process has a `ReadingLease` of a folder."""
    with unread(folder) as unused:
        return not unused


def lock_alone(descriptor: int) -> bool:
    """Lock a file exclusively, without waiting. Returns whether no other has a lock on it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
