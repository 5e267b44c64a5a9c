"""Copies artifacts from the store into the scratch directory, where compilers find them: the harvester's counterpart.

What the store does not have is fetched from the remote first, if there is one. Each file appears whole or not at all,
and only after its hash was checked.
"""

from __future__ import annotations

import logging
import os
import threading
from itertools import groupby
from typing import TYPE_CHECKING

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.environment import Environment
from warmstore.compiling.rules import choose
from warmstore.compiling.scratch.compiler_files import belongs, to_use
from warmstore.compiling.scratch.harvester import Harvester
from warmstore.compiling.scratch.scratch_quota import ScratchQuota
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import BadArtifact, TooLarge
from warmstore.storage.atomic import draft_of
from warmstore.storage.files import write_whole

if TYPE_CHECKING:
    from warmstore.compiling.remote.remote_artifacts import RemoteArtifacts

_log = logging.getLogger("warmstore")

_NO_FILES = frozenset({"answer", "details", "package"})  # kinds that no compiler reads as files


class Restorer:
    """Restores artifacts that are usable in one environment. `used` gets those that were restored or read, by key."""

    def __init__(
        self,
        store: ArtifactStore,
        scratch: ScratchQuota,
        environment: Environment,
        harvester: Harvester,
        used: dict[str, Artifact],
        remote: RemoteArtifacts | None,
    ) -> None:
        self._store = store
        self._scratch = scratch
        self._environment = environment
        self._harvester = harvester
        self._used = used
        self._remote = remote
        self._lock = threading.Lock()

    def leave(self) -> None:
        """In a forked child: replace the lock, which another thread of the parent may have held."""
        self._lock = threading.Lock()

    def fetch(self, path: str) -> bool:
        """Fetch the artifacts below a path from the remote into the store. Returns whether it had any."""
        return self._remote is not None and self._remote.fetch(path)

    def ensure(self, path: str) -> None:
        """Fetch the artifacts below a path from the remote, if the store has no usable one."""
        if not any(artifact is not None for artifact, _ in self._store.below(path, self._environment)):
            self.fetch(path)

    def restore(self, path: str) -> tuple[int, list[str]]:
        """Restore every usable artifact below a path. Returns their number, and why others are not usable."""
        count, reasons = 0, []
        for artifact, why in self._store.below(path, self._environment):
            if artifact is None:
                reasons += why
                continue
            try:
                self._restore(artifact)
                count += 1
            except (OSError, LookupError, ValueError) as error:
                reasons.append(str(error))
        return count, reasons

    def restore_job(self, name: str, kinds: frozenset[str] | None) -> int:
        """Restore what a job used, of these kinds or of all. Returns the number of artifacts."""
        count = 0
        if self._remote is not None and not self._store.job(name):
            self._remote.fetch_job(name, kinds)
        for _, group in groupby(self._store.all(name), key=lambda artifact: artifact.key):
            candidates = (artifact for artifact in group if kinds is None or artifact.kind in kinds)
            artifact, _ = choose(candidates, self._environment)
            if artifact is None or artifact.kind in _NO_FILES:
                continue
            try:
                self._restore(artifact)
                count += 1
            except (OSError, LookupError, ValueError) as error:
                _log.info("%s of job %s cannot be restored: %s", artifact.key, name, error)
        return count

    def read(self, path: str) -> tuple[list[bytes], list[str]]:
        """The bytes of every usable artifact below a path, and why others are not usable."""
        self.ensure(path)
        found, reasons = [], []
        for artifact, why in self._store.below(path, self._environment):
            reasons += why
            if artifact is not None:
                try:
                    found.append(self._store.read(artifact))
                    self._used[artifact.key] = artifact
                except (OSError, LookupError, ValueError) as error:
                    reasons.append(str(error))
        return found, reasons

    def _restore(self, artifact: Artifact) -> None:
        """Write one artifact into the scratch directory. Raises BadArtifact for an unsafe key, TooLarge if the quota is
        full."""
        if not belongs(artifact.key, artifact.kind):
            raise BadArtifact(f"{artifact.key!r} is not a path for an artifact of kind {artifact.kind!r}")
        folder = self._scratch.live.path
        target = folder / artifact.key
        data = to_use(artifact.key, self._store.read(artifact), str(folder))
        if not self._scratch.reserve(len(data)):
            raise TooLarge(
                f"{artifact.key} is stored, but the limit of {self._store.limit:,} bytes has no room for a copy in use"
            )
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        hidden = target.with_name(f".{os.getpid()}.{threading.get_ident()}.tmp")  # the harvester skips such names
        with self._lock, draft_of(target, draft=hidden, files=self._store.files) as draft:
            write_whole(self._store.files, draft, data)
            self._harvester.knows(str(target), draft.stat())
        self._used[artifact.key] = artifact
