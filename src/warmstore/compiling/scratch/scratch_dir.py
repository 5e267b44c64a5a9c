"""The private folder that one process's frameworks compile into and read from.

Files in a compiler's cache are code: entries are pickles, libraries are loaded, sources are executed. So frameworks
never see the shared store. Each process gets an empty folder of its own, which no other user can enter, and only files
whose hash was checked while they were copied come into it.
"""

import errno
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from warmstore.storage.disk_usage import entries_below
from warmstore.storage.lease import SUFFIX, UsageLease, remove_unused

_log = logging.getLogger("warmstore")

ROOM = 64 << 20  # bytes that must be free where compilers write; a full disk ends a compilation, and with it the run


class ScratchDir:
    """A folder `path` of mode 0700, and the lease of the process that made it by `create`."""

    def __init__(self, path: Path, lease: UsageLease) -> None:
        self.path = path
        self._lease = lease

    @classmethod
    def create(cls, candidates: list[Path]) -> "ScratchDir":
        """Make one in the first of `candidates` that is safe, roomy, writable and allows loading libraries.

        Raises:
            OSError: none of them is; the message says why for each.
        """
        refusals = []
        for parent in candidates:
            try:
                if reason := why_not(parent):
                    refusals.append(f"{parent}: {reason}")
                    continue
                _sweep(parent)
                return cls._create_in(parent)
            except OSError as error:
                refusals.append(f"{parent}: {error}")
        raise OSError("there is no folder to compile in; " + "; ".join(refusals))

    @classmethod
    def _create_in(cls, parent: Path) -> "ScratchDir":
        path = Path(tempfile.mkdtemp(prefix="live-", dir=parent))
        lease = UsageLease(path, mode=0o600)
        if not path.is_dir():
            lease.release()
            raise FileNotFoundError(errno.ENOENT, "somebody removed it when it was new", str(path))
        return cls(path, lease)

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Relative path and status of every regular file, links left out."""
        for path, status in entries_below(self.path):
            if stat.S_ISREG(status.st_mode):
                yield os.path.relpath(path, self.path), status

    def leave(self) -> None:
        """In a forked child: forget the lease, which stays the parent's."""
        self._lease.release()

    def remove(self) -> None:
        """Remove the folder, if this is the process that made it. Removing twice is fine."""
        self._lease.release_and_remove()


def places(store: Path) -> list[Path]:
    """Where compilers of a store may write, the best first."""
    return [store / "live", *other_places()]


def other_places() -> list[Path]:
    """Where compilers may write when the folder of the store will not do, the best first."""
    return [Path(tempfile.gettempdir()), Path("/var/tmp"), Path("/dev/shm")]


def has_space(path: Path | str) -> bool:
    """Whether torch cannot call the C++ compiler with a path: it quotes none."""
    return any(map(str.isspace, str(path)))


def why_not(parent: Path) -> str:
    """Why compilers should not write below this folder, which is made when missing; empty when they may."""
    if has_space(parent):
        return "has a space in its path, which torch does not quote where it calls the C++ compiler"
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
    """Why what lies in a folder may be somebody else's; empty when only this user and root can write there.

    `sticky`: everybody may write, but nobody may replace what others have there, as in /tmp.
    """
    status = folder.stat()
    if status.st_uid not in (0, os.getuid()):
        return f"belongs to user {status.st_uid}, who could put programs there that would run here"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (sticky and status.st_mode & stat.S_ISVTX):
        return "can be written by others, who could put programs there that would run here; chmod go-w it"
    return ""


def has_room(folder: Path, needed: int = ROOM) -> bool:
    """Whether the disk has room for so many bytes, by default what one graph needs; false where the folder is gone."""
    try:
        system = os.statvfs(folder)
    except OSError:
        return False
    return system.f_bavail * system.f_frsize >= needed


def _sweep(parent: Path) -> None:
    """Remove the folders of processes that were killed."""
    for path in parent.glob("live-*"):
        if path.suffix != SUFFIX:
            sweep_folder(path)


def sweep_folder(path: Path) -> bool:
    """Remove a live folder that nobody has a lease of: its process was killed. Returns whether it is gone."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    if not path.name.startswith("live-") or not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return False
    try:
        gone = remove_unused(path, lock_too=True, without_lock=False)
    except OSError:
        return False
    if gone:
        _log.debug("removed %s, which a process that was killed left behind", path)
    return gone
