"""Usage leases of folders, and the removal of folders without a lease.

A lease of the folder NAME is a shared `flock` on the file NAME.lock beside it. The kernel releases it when the process
ends. A process that removes a folder first takes the lock exclusively, without waiting.

For folders whose users must not write beside them see `reading_lease`.
"""

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

from warmstore.storage.files import Files, is_at, unlock_and_close
from warmstore.storage.folder_removal import hide, sweep_hidden
from warmstore.storage.reading_lease import lock_alone

SUFFIX = ".lock"
"""The suffix of the lock file, after the name of the folder."""


def lock_path(folder: Path) -> Path:
    """The lock file of a folder."""
    return folder.with_name(folder.name + SUFFIX)


class UsageLease:
    """Marks a folder as in use, until `release`, until nobody has this object, or until the end of this process and of
    its forked children.

    The constructor waits for a removal in progress, so the folder may be missing afterwards. Each new lease sets the
    modification time of the lock file, which shows the last use. `mode` is that of a new lock file.

    Raises:
        OSError: The lock file cannot be created or written, or it is a link.
    """

    _descriptor = -1  # until the constructor has finished

    def __init__(self, folder: Path, *, mode: int = 0o666) -> None:
        self.folder = folder
        self._pid = os.getpid()
        self._descriptor = _leased(lock_path(folder), mode)

    def release(self) -> None:
        """End this process's use. Safe to call twice. A forked child does not end the lease of its parent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.release()  # of a constructor that an interrupt has ended: the lease would stay as long as this process

    def release_and_remove(self) -> bool:
        """Release the lease, and remove the folder and the lock file unless other processes, apart from forked
        children, use it. Returns whether the folder was removed. Does nothing in a forked child."""
        try:
            if os.getpid() != self._pid or self._descriptor < 0:
                return False  # a forked child shares its parent's lock, and would take it away
            if not lock_alone(self._descriptor):
                return False
            gone = _remove(self.folder, lock_too=True)
            # Forked children share the lock, and others may have opened the file before it was removed.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN if gone else fcntl.LOCK_SH)
            return gone
        finally:
            self.release()


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock on a file, such as the lease of a folder on its `lock_path`."""
    try:
        try:
            descriptor = _open(path, 0, 0o666)
        except PermissionError:  # another user's, which may be readable
            descriptor = _open(path, 0, 0o666, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not lock_alone(descriptor)
    finally:
        unlock_and_close(descriptor)


def remove_unused(folder: Path, *, lock_too: bool = False, without_lock: bool = True) -> bool:
    """Remove a folder without a lease. Returns whether the folder is missing now.

    Args:
        lock_too: Also remove the lock file, for folders whose names are not used again.
        without_lock: Also remove a folder without a lock file. False for folders that exist before their first lease.
    """
    path = lock_path(folder)
    try:
        descriptor = _open(path, os.O_CREAT if without_lock else 0, 0o666)
    except FileNotFoundError:
        return not folder.exists()
    try:
        if not lock_alone(descriptor):
            return False
        if not is_at(descriptor, path):  # another process removed both
            return not folder.exists()
        return _remove(folder, lock_too=lock_too)
    finally:
        unlock_and_close(descriptor)


def _leased(path: Path, mode: int) -> int:
    """The descriptor of a lock file with a shared lock. The file is still at its path."""
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
        os.close(descriptor)  # another process removed the file in between


def _open(path: Path, flags: int, mode: int, access: int = os.O_RDWR) -> int:
    return os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW | flags, mode)


def _remove(folder: Path, *, lock_too: bool) -> bool:
    at = folder
    if folder.is_dir() and not folder.is_symlink():
        with contextlib.suppress(OSError):  # the parent cannot be written, or the file system does not rename folders
            at = hide(folder, Files())
    shutil.rmtree(at, ignore_errors=True)  # a process that still writes there may prevent it
    if at != folder:
        sweep_hidden(folder.parent)
    gone = not at.exists() and not folder.exists()
    if gone and lock_too:
        lock_path(folder).unlink(missing_ok=True)
    return gone
