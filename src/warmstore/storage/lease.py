"""Who uses a folder right now: a usage lease, and the removal of folders that nobody uses.

A lease of the folder NAME is a shared `flock` on the file NAME.lock beside it. The kernel releases it when the process
ends, however it ends. Whoever removes a folder first takes the lock exclusively, without waiting.
"""

import fcntl
import os
import shutil
from pathlib import Path

from warmstore.storage.files import is_at

SUFFIX = ".lock"
"""Of the lock's file, behind the name of the folder."""


def lock_path(folder: Path) -> Path:
    """The lock's file of a folder."""
    return folder.with_name(folder.name + SUFFIX)


class UsageLease:
    """Says that a folder is in use, until `release` or the end of this process and of those that were forked from it.

    It waits for a removal that is under way; the folder may be gone when the lease is there. Each new lease touches the
    lock's file, so the time of its last change is that of the last use.

    Args:
        folder: need not be there.
        mode: of the lock's file, where this makes it.

    Raises:
        OSError: the lock's file cannot be made or written, or it is a link.
    """

    def __init__(self, folder: Path, *, mode: int = 0o666) -> None:
        self.folder = folder
        self._pid = os.getpid()
        self._descriptor = _leased(lock_path(folder), mode)

    def release(self) -> None:
        """End this process's use. Twice is fine. In a forked child the parent's lease stays."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def release_and_remove(self) -> bool:
        """Release the lease, and remove the folder and the lock's file unless others use it; say whether it is gone.

        Processes that were forked from this one do not count as others, and remove nothing themselves.
        """
        try:
            if os.getpid() != self._pid or self._descriptor < 0:
                return False  # a forked child shares its parent's lock: asking would take it away
            return _lock_alone(self._descriptor) and _remove(self.folder, lock_too=True)
        finally:
            self.release()


def remove_unused(folder: Path, *, lock_too: bool = False, without_lock: bool = True) -> bool:
    """Remove a folder unless somebody uses it; say whether it is gone.

    Args:
        lock_too: the lock's file as well, where folders come and go under ever new names.
        without_lock: also where there is no lock's file, so that nobody ever had a lease. False where a folder is there
            before its first lease.
    """
    path = lock_path(folder)
    try:
        descriptor = _open(path, os.O_CREAT if without_lock else 0, 0o666)
    except FileNotFoundError:
        return not folder.exists()
    try:
        if not _lock_alone(descriptor):
            return False
        if not is_at(descriptor, path):  # another process removed both
            return not folder.exists()
        return _remove(folder, lock_too=lock_too)
    finally:
        os.close(descriptor)


def _leased(path: Path, mode: int) -> int:
    """The descriptor of a lock's file that is locked, shared, and is at its path."""
    while True:
        descriptor = _open(path, os.O_CREAT, mode)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if is_at(descriptor, path):
                os.utime(path)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # somebody removed the file in between


def _open(path: Path, flags: int, mode: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, mode)


def _lock_alone(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(folder: Path, *, lock_too: bool) -> bool:
    shutil.rmtree(folder, ignore_errors=True)  # what still writes there may keep it
    gone = not folder.exists()
    if gone and lock_too:
        lock_path(folder).unlink(missing_ok=True)
    return gone
