"""Who uses a tier's folder, and its removal when nobody does."""

import fcntl
import os
import shutil
from pathlib import Path

LOCK = ".lock"


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
    return folder.with_name(folder.name + LOCK)


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
