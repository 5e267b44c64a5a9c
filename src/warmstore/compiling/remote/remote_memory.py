"""The memory of a remote: the manifests that were replaced, as this host has seen.

The memory is a file in the store's folder. A replaced manifest that counts again shows that somebody restored an old
state of the remote. Such a manifest is refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path

from filelock import FileLock

from warmstore.storage.atomic import replace_file
from warmstore.storage.files import PLAIN, Files, read_whole
from warmstore.storage.interrupts import uninterrupted

_PATIENCE = 5.0  # seconds to wait for another process of this host


class RemoteMemory:
    """The memory of one remote, shared by all processes that use the store's folder.

    remote: its `Objects.identity`. mirror: the folder for fetched manifests. replaced: hashes of replaced manifests.
    """

    def __init__(self, folder: Path, remote: str, files: Files = PLAIN) -> None:
        self._files = files
        self._path = folder / "remote" / f"{sha256(remote.encode()).hexdigest()[:16]}.json"
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.mirror = self._path.with_suffix(".log")
        self.replaced = self._read()

    def saw(self, replaced: Collection[str]) -> None:
        """Remember hashes of manifests that were replaced."""
        if not self.replaced.issuperset(replaced):
            with uninterrupted(), FileLock(self._path.with_suffix(".write.lock"), timeout=_PATIENCE):
                self.replaced = self._read().union(replaced)
                known = json.dumps({"replaced": sorted(self.replaced)})
                replace_file(self._path, known.encode(), durable=False, files=self._files)

    def _read(self) -> frozenset[str]:
        try:
            return frozenset(str(digest) for digest in json.loads(read_whole(self._files, self._path))["replaced"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return frozenset()
