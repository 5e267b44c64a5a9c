"""The private folder of one process that its compilers use as their cache.

Files in a compiler's cache are code: entries are unpickled, libraries are loaded, sources are executed. So compilers
never see the shared store. Each process has an empty folder of its own, which other users cannot enter. Artifacts are
copied into it after their hash was checked.
"""

import errno
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from warmstore.storage.disk_usage import entries_below
from warmstore.storage.lease import SUFFIX, UsageLease, remove_unused

_log = logging.getLogger("warmstore")

ROOM = 64 << 20  # least free bytes for compilers; a full disk ends a compilation, and with it the program
_LEFT = 86400.0  # seconds after which a folder without a lock file is no longer new


class ScratchDir:
    """A folder `path` of mode 0700 and its lease, made by `create`."""

    def __init__(self, path: Path, lease: UsageLease) -> None:
        self.path = path
        self._lease = lease

    @classmethod
    def create(cls, candidates: list[Path]) -> "ScratchDir":
        """Create a folder in the first suitable one of `candidates`, after removing folders of killed processes there.
        Raises OSError if none is suitable."""
        refusals, number = [], errno.EACCES
        for parent in candidates:
            try:
                if reason := why_not(parent):
                    refusals.append(f"{parent}: {reason}")
                    continue
                for path in parent.glob("live-*"):
                    if path.suffix != SUFFIX:
                        sweep_folder(path)
                return cls._create_in(parent)
            except OSError as error:
                refusals.append(f"{parent}: {error}")
                number = error.errno or number
        raise OSError(number, "no folder is suitable to compile in; " + "; ".join(refusals))

    @classmethod
    def _create_in(cls, parent: Path) -> "ScratchDir":
        path = Path(tempfile.mkdtemp(prefix="live-", dir=parent))
        lease = UsageLease(path, mode=0o600)
        if not path.is_dir():
            lease.release()
            raise FileNotFoundError(errno.ENOENT, "another process removed the new folder", str(path))
        return cls(path, lease)

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Relative path and status of every regular file. Links are skipped."""
        for path, status in entries_below(self.path):
            if stat.S_ISREG(status.st_mode):
                yield os.path.relpath(path, self.path), status

    def leave(self) -> None:
        """In a forked child: leave the lease to the parent."""
        self._lease.release()

    def remove(self) -> None:
        """Remove the folder, if this process made it. Safe to call twice."""
        self._lease.release_and_remove()


def places(store: Path) -> list[Path]:
    """Parents of scratch directories for a store, the best first."""
    return [store / "live", *other_places()]


def other_places() -> list[Path]:
    """Parents of scratch directories outside of the store, the best first."""
    return [Path(tempfile.gettempdir()), Path("/var/tmp"), Path("/dev/shm")]


def has_space(path: Path | str) -> bool:
    """Whether a path has white space. torch does not quote paths when it calls the C++ compiler."""
    return any(map(str.isspace, str(path)))


def why_not(parent: Path) -> str:
    """Why compilers should not write below a folder; "" if they may. Creates a missing folder."""
    if has_space(parent):
        return "has a space in its path, which torch does not quote when it calls the C++ compiler"
    try:
        str(parent).encode()
    except UnicodeEncodeError:
        return "has a path that is no UTF-8, which compilers and the index of the store do not take"
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if reason := why_not_trusted(parent, sticky=True):
        return reason
    if not os.access(parent, os.W_OK | os.X_OK):
        return "is not writable"
    if os.statvfs(parent).f_flag & getattr(os, "ST_NOEXEC", 8):
        return "is mounted noexec, so compiled libraries cannot be loaded from it"
    if not has_room(parent):
        return f"has less than {ROOM >> 20} MiB free"
    return ""


def why_not_trusted(folder: Path, *, sticky: bool = False) -> str:
    """Why other users could have written files in a folder; "" if only this user and root could.

    `sticky`: Accepts a folder with the sticky bit, such as /tmp, in which nobody can replace the files of others.
    """
    status = folder.stat()
    if status.st_uid not in (0, os.getuid()):
        return f"belongs to user {status.st_uid}, who could add files that run as code here"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (sticky and status.st_mode & stat.S_ISVTX):
        return "is writable by others, who could add files that run as code here; chmod go-w it"
    return ""


def has_room(folder: Path, needed: int = ROOM) -> bool:
    """Whether the disk of a folder has `needed` bytes free. False for a missing folder."""
    try:
        system = os.statvfs(folder)
    except OSError:
        return False
    return system.f_bavail * system.f_frsize >= needed


def sweep_folder(path: Path) -> bool:
    """Remove a scratch directory without a lease: its process was killed. Returns whether it does not exist now.

    One without a lock file is new, or was made again by a compiler after its process had removed it.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    if not path.name.startswith("live-") or not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return False
    try:
        gone = remove_unused(path, lock_too=True, without_lock=time.time() - status.st_mtime > _LEFT)
    except OSError:
        return False
    if gone:
        _log.debug("removed %s of a killed process", path)
    return gone
