"""The memory of a remote: the name of this host as a writer, and the highest number of each series of manifests.

The memory is a file in the store's folder. A manifest with a lower number than the remembered one, or with the same
number and other content, shows that somebody restored an old state of the remote. Such a manifest is refused.
"""

from __future__ import annotations

import json
import platform
import secrets
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from filelock import FileLock

from warmstore.compiling.remote.signed_manifests import SignedManifest
from warmstore.storage.atomic import replace_file
from warmstore.storage.files import PLAIN, Files, read_whole

_PATIENCE = 5.0  # seconds to wait for another process of this host


class RemoteMemory:
    """The memory of the remote at `url`, shared by all processes that use the store's folder."""

    def __init__(self, folder: Path, url: str, files: Files = PLAIN) -> None:
        self._files = files
        self._path = folder / "remote" / f"{sha256(url.encode()).hexdigest()[:16]}.json"
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.lock = FileLock(self._path.with_suffix(".lock"), timeout=_PATIENCE)
        """Held while a process of this host publishes."""
        self._known: dict[str, Any] = self._read()

    def writer(self) -> str:
        """The name under which this host writes. A copy of the folder, or another host, gets another name."""
        where = self._path.parent.stat()
        place = [platform.node(), where.st_dev, where.st_ino]

        def name(known: dict[str, Any]) -> None:
            if known.get("place") != place or not isinstance(known.get("writer"), str):
                known |= {"place": place, "writer": secrets.token_hex(16)}

        if self._known.get("place") != place:
            self._change(name)
        writer: str = self._known["writer"]
        return writer

    def sequence(self, series: str) -> int:
        """The highest number that was seen of a series; 0 for none."""
        return self._seen(series)[0]

    def objection(self, manifest: SignedManifest) -> str | None:
        """Why a signed manifest is refused; None if it is accepted."""
        sequence, digest = self._seen(manifest.series)
        if manifest.sequence < sequence:
            return (
                f"{manifest.name} is older than number {sequence} of its writer, which was seen before: somebody "
                f"restored an old state; if it was you, remove {self._path}"
            )
        if manifest.sequence == sequence and manifest.digest != digest:
            return (
                f"{manifest.name} differs from the manifest of that name that was seen before: somebody replaced it; "
                f"if it was you, remove {self._path}"
            )
        return None

    def saw(self, found: Iterable[SignedManifest]) -> None:
        """Remember the numbers of these manifests."""
        new = {
            manifest.series: [manifest.sequence, manifest.digest]
            for manifest in found
            if manifest.sequence > self.sequence(manifest.series)
        }
        if new:
            self._change(lambda known: known.setdefault("seen", {}).update(new))

    def _seen(self, series: str) -> tuple[int, str]:
        match self._known.get("seen", {}).get(series):
            case [int(sequence), str(digest)]:
                return sequence, digest
        return 0, ""

    def _read(self) -> dict[str, Any]:
        try:
            known = json.loads(read_whole(self._files, self._path))
        except (OSError, ValueError):
            known = {}
        known = known if isinstance(known, dict) else {}
        return known if isinstance(known.get("seen", {}), dict) else {}

    def _change(self, change: Callable[[dict[str, Any]], None]) -> None:
        with FileLock(self._path.with_suffix(".write.lock"), timeout=_PATIENCE):
            self._known = self._read()
            change(self._known)
            replace_file(self._path, json.dumps(self._known).encode(), durable=False, files=self._files)
