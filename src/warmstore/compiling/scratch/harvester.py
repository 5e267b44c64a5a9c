"""Stores the files that compilers write: in the background while the program runs, and the rest at its end.

No error reaches a compiler. A file that cannot be stored is compiled again by the next process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from warmstore.compiling.scratch.compiler_files import is_rewritten, is_whole, kind_of, to_keep
from warmstore.compiling.scratch.scratch_dir import ScratchDir
from warmstore.compiling.scratch.scratch_quota import ScratchQuota
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.compiling.warn_once import WarnOnce
from warmstore.errors import TooLarge
from warmstore.storage.conditions import Condition
from warmstore.storage.files import read_whole
from warmstore.storage.threads import Thread

_LOOK_AGAIN = 30.0  # seconds between scans of the scratch directory, for compilers without a hook

# Later kinds refer to earlier ones: a graph to its libraries, a differentiated graph to its two graphs.
_ORDER = {"fx_graph": 1, "aot_autograd": 2, "package": 3}


class Harvester:
    """Scans the scratch directories of a process, in a thread.

    Args:
        put: Stores one artifact, given path, kind, bytes and the seconds since the file was written.
        landed: Called with each path that was given to `made`, after the scan.
        scanned: Called by the thread after each scan.
    """

    def __init__(
        self,
        store: ArtifactStore,
        scratch: ScratchQuota,
        put: Callable[[str, str, bytes, float], None],
        landed: Callable[[str], None],
        complain: WarnOnce,
        scanned: Callable[[], object],
    ) -> None:
        self.kept = 0
        self._store = store
        self._scratch = scratch
        self._put = put
        self._landed = landed
        self._complain = complain
        self._scanned = scanned
        self._known: dict[str, tuple[int, int]] = {}
        self._harvesting = threading.RLock()
        self._wake = Condition()
        self._made: list[str] = []
        self._closing = False
        self._thread = Thread(target=self._keep_harvesting, name="warmstore-harvest", daemon=True)
        self._thread.start()

    def knows(self, path: str, status: os.stat_result) -> None:
        """Record a file, by its absolute path, that was restored or stored. It is skipped until it changes."""
        self._known[path] = (status.st_size, status.st_mtime_ns)

    def made(self, path: str | None) -> None:
        """Scan soon. `landed` is called with the path, if any, after the scan."""
        with self._wake.lock:
            if path is not None:
                self._made.append(path)
            self._wake.notify_all()

    def close(self) -> None:
        """End the thread and store the remaining files."""
        with self._wake.lock:
            self._closing = True
            self._wake.notify_all()
        self._thread.join()
        self.harvest()

    def harvest(self) -> None:
        """Store every new and complete file, if the store can be written."""
        if not self._store.read_only:
            with self._harvesting:
                for folder in list(self._scratch.kept):
                    self._harvest(folder)
                self._scratch.look()

    def _keep_harvesting(self) -> None:
        while True:
            with self._wake.lock:
                if not self._made and not self._closing:
                    self._wake.wait(_LOOK_AGAIN)
                if self._closing:
                    return
                made, self._made = self._made, []
            self.harvest()
            for path in made:
                self._landed(path)
            self._scanned()

    def _harvest(self, folder: ScratchDir) -> None:
        try:
            new = [
                (path, status)
                for path, status in folder.files()
                if self._known.get(f"{folder.path}/{path}") != (status.st_size, status.st_mtime_ns)
            ]
            # Entries that refer to others come last, so that a process that finds an entry finds what it refers to.
            for path, status in sorted(new, key=lambda found: _ORDER.get(kind_of(found[0]) or "", 0)):
                kind = kind_of(path)
                if kind is not None:
                    try:
                        self._keep(folder, path, kind, status)
                    except TooLarge as error:
                        self.knows(f"{folder.path}/{path}", status)
                        self._complain("%s is not stored", path, error)
        except Exception as error:
            self._complain("new artifacts cannot be stored in %s", str(self._store.folder), error)

    def _keep(self, folder: ScratchDir, path: str, kind: str, status: os.stat_result) -> None:
        try:
            data = read_whole(self._store.files, folder.path / path)
        except FileNotFoundError:
            return
        if not is_whole(path, data) or len(data) != status.st_size:
            return  # still being written; a later scan finds it complete
        content = to_keep(path, data, str(folder.path)) if is_rewritten(path) else data
        self._put(path, kind, content, max(time.time() - status.st_mtime, 0.0))
        self.knows(f"{folder.path}/{path}", status)
        self.kept += 1
