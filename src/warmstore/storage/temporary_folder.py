"""Temporary folders. What a killed process leaves is removed by the next process that makes one in the same place."""

import contextlib
import logging
import os
import re
import secrets
import shutil
import tempfile
import weakref
from contextlib import AbstractContextManager
from pathlib import Path

from warmstore.storage.lease import SUFFIX, UsageLease, lock_path, remove_unused

_log = logging.getLogger("warmstore")


def host_name() -> str:
    """The name of this host, for the names of files."""
    return os.uname().nodename.replace("/", "_")


class TemporaryFolder(AbstractContextManager[Path]):
    """A new, empty folder that only this user can read. It is removed at the end of a `with` or of this object, and at
    the exit of the process; a forked child does not remove it.

    Args:
        kind: what it is for, in lowercase letters.
        parent: an existing folder; by default that of temporary files. It may be shared by hosts, whose locks need not
            be seen by each other: only folders of this host are removed.

    Attributes:
        path: The folder.
        remove: Call it to remove the folder now.
    """

    def __init__(self, kind: str, parent: str | os.PathLike[str] | None = None) -> None:
        place = Path(tempfile.gettempdir() if parent is None else parent)
        _sweep(place)
        self.path = place / f"{_prefix()}{kind}-{secrets.token_hex(8)}"
        try:
            lease = UsageLease(self.path, mode=0o600)
        except OSError:  # a file system without locks, where nobody removes what others left
            lease = None
            lock_path(self.path).unlink(missing_ok=True)
        self.remove = weakref.finalize(self, _remove, self.path, lease, os.getpid())
        self.path.mkdir(mode=0o700)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *exception: object) -> None:
        self.remove()


def _prefix() -> str:
    return f"warmstore-{os.getuid()}-{host_name()}-"


def _remove(folder: Path, lease: UsageLease | None, process: int) -> None:
    if lease is not None:
        lease.release_and_remove()
    elif os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path) -> None:
    """Remove the folders of processes of this host and user that have ended."""
    name = re.compile(re.escape(_prefix()) + r"[a-z]+-[0-9a-f]{16}" + re.escape(SUFFIX))
    with contextlib.suppress(OSError):
        for lock in [path for path in parent.iterdir() if name.fullmatch(path.name)]:
            with contextlib.suppress(OSError):
                if remove_unused(folder := lock.with_suffix(""), lock_too=True):
                    _log.info("%s: removed, its process has ended", folder)
