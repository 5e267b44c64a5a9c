"""The scratch directories of one process, whose bytes count in the quota of the store.

Bytes are reserved in the store before a file is restored. Compilers write without asking, so some bytes are reserved in
advance. If the quota or the disk is full, compilers get another scratch directory, and the program continues.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from warmstore.compiling.scratch.scratch_dir import ScratchDir, has_room, other_places, sweep_folder
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import TooLarge, WarmstoreError
from warmstore.storage.disk_usage import BLOCK, folder_bytes, on_disk

_log = logging.getLogger("warmstore")

_AHEAD = 32 << 20  # bytes reserved in advance, if the limit is large
_SHARE = 16  # of a small limit, this fraction is reserved in advance
_SHORTLY = 2.0  # seconds that a compiler waits for the store's lock
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


class ScratchQuota:
    """The scratch directory of a process, at first `live`. `moved` is called with the path of each later one."""

    def __init__(self, store: ArtifactStore, live: ScratchDir, moved: Callable[[Path], None] | None = None) -> None:
        self.live = live
        self.kept = [live]
        self._all = [live]
        self._store = store
        self._moved = moved
        self._ahead = max(1 << 18, min(_AHEAD, store.limit // _SHARE))
        self._used = 0  # bytes in the current scratch directory
        self._reserved = 0  # bytes reserved for it in the store
        self._lock = threading.RLock()
        if not store.read_only:
            with suppress(WarmstoreError):
                self._release_killed()

    @property
    def is_kept(self) -> bool:
        """Whether new files are stored. They are not after they exceeded the limit."""
        return self.live is self.kept[-1]

    def reserve(self, size: int) -> bool:
        """Reserve the bytes of a file in the quota. False if there is no room."""
        needed = on_disk(size) + 4 * BLOCK  # for new folders
        with self._lock:
            if not self._reserve(needed):
                return False
            self._used += needed
            return True

    def look(self) -> bool:
        """Measure what compilers have written, and reserve bytes in advance. Returns whether the quota allows it."""
        with self._lock:
            if self.is_kept and not self._store.read_only:
                with suppress(OSError):  # a failing disk, or a folder that cannot be listed: the last count stays
                    self._used = folder_bytes(self.live.path)
            return self._reserve(self._ahead // 2)

    def prepare(self, *, compiling: bool) -> bool:
        """Move to another scratch directory if the disk or, before compiling, the quota is full.

        Returns whether it moved.
        """
        with self._lock:
            if not has_room(self.live.path):
                return self.move()
            if not compiling or self.look():
                return False
            _log.warning(
                "compile cache: the files of this program's compilers exceed the limit of %s bytes; new ones are "
                "written to another folder and not stored. Raise max_size", f"{self._store.limit:,}",
            )  # fmt: skip
            return self.move(kept=False)

    def move(self, *, kept: bool = True) -> bool:
        """Move to a scratch directory on another disk or, without `kept`, out of the store. Returns whether it did."""
        with self._lock:
            here = self.live.path.parent
            try:
                live = ScratchDir.create([place for place in other_places() if place != here or not kept])
            except OSError as error:
                _log.warning("compile cache: %s has no room, and %s", here, error)
                return False
            _log.warning("compile cache: %s has no room; compilers now work in %s", here, live.path)
            if kept and self.is_kept:
                self.kept.append(live)
            self._all.append(live)
            self.live, self._used, self._reserved = live, 0, 0
            if self._moved is not None:
                self._moved(live.path)
            return True

    def is_to_blame(self, error: BaseException) -> bool:
        """Whether a compiler failed because of its scratch directory: the disk is full, or the directory is gone."""
        seen: set[int] = set()
        cause: BaseException | None = error
        while cause is not None and id(cause) not in seen:
            if isinstance(cause, OSError) and cause.errno in _FULL:
                return True
            seen.add(id(cause))
            cause = cause.__cause__ or cause.__context__
        return not self.live.path.exists() or not has_room(self.live.path)

    def close(self) -> None:
        """Remove the folders, then release their bytes."""
        for folder in self._all:
            folder.remove()
        if not self._store.read_only:
            with suppress(WarmstoreError):
                for folder in self.kept:
                    self._store.release(_name(folder), _SHORTLY)

    def leave(self) -> None:
        """In a forked child: leave the folders to the parent."""
        self._lock = threading.RLock()
        for folder in self._all:
            folder.leave()

    def _reserve(self, more: int) -> bool:
        if self._store.read_only or not self.is_kept or self._used + more <= self._reserved:
            return True
        for ahead in (self._ahead, 0):
            wanted = self._used + more + ahead
            try:
                self._store.reserve(_name(self.live), wanted, _SHORTLY)
            except TooLarge:
                continue
            except WarmstoreError as error:
                _log.debug("compile cache: no bytes can be reserved: %s", error)
                return True  # the disk is the limit now
            self._reserved = wanted
            return True
        return False

    def _release_killed(self) -> None:
        """Remove the folders of killed processes, and release their bytes."""
        for name in self._store.reserved():
            kind, _, path = name.partition(" ")
            if kind == "live" and path != str(self.live.path) and sweep_folder(Path(path)):
                self._store.release(name, _SHORTLY)


def _name(folder: ScratchDir) -> str:
    return f"live {folder.path}"
