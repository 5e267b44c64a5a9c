"""Where a plan's samples are kept: folders found, made, shared with who uses them too, and cleared away.

A tier is a folder with a version for each row of steps whose results it keeps. The disk's is under the plan's folder,
and is found by the next run. Memory's is on a file system in memory, for as long as somebody uses it.
"""

import contextlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from warmstore.pipeline.step_identities import Description, difference_of, key_of
from warmstore.pipeline.tiers.sample_schema import SampleSchema
from warmstore.pipeline.tiers.sample_store import StoreLocation
from warmstore.storage.atomic import replace_file
from warmstore.storage.files import Files, file_lock
from warmstore.storage.lease import UsageLease, remove_unused
from warmstore.storage.lifecycle import Closeable
from warmstore.storage.quota import ByteQuota

_log = logging.getLogger("warmstore")

SHARED = Path("/dev/shm")
_PREFIX = "warmstore"
_ABOUT = "about.json"
_FORMAT = 3


@dataclass(frozen=True)
class Wanted:
    """A placement to be opened. steps: what the samples went through. schema: finds out what they look like."""

    number: int
    step: int
    name: str
    codec: str
    steps: tuple[Description, ...]
    schema: Callable[[], SampleSchema | None]

    @property
    def version(self) -> str:
        """The name of its folder."""
        return f"{self.step}-{self.codec}-{key_of(self.steps)}"


class MemoryTier(Closeable):
    """The folder of a tier in memory, which goes when the last process that made or found it lets go.

    Args:
        key: of what is kept there. limit: bytes.
    """

    def __init__(self, key: str, limit: int) -> None:
        self.notes: list[str] = []
        self.limit = limit
        name = f"{_PREFIX}-{os.getuid()}-{key}"
        sweep(SHARED)
        self.folder = self._parent(name, limit) / name
        self._lease = UsageLease(self.folder)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.closed = False

    def close(self) -> None:
        """Let go, and remove the folder unless others use it. Twice is fine."""
        if not self.closed:
            self.closed = True
            self._lease.release_and_remove()
            self.unregister()

    def _after_fork(self) -> None:
        self.closed = True
        self._lease.release()

    def _parent(self, name: str, limit: int) -> Path:
        free = _free(SHARED)
        if free >= limit or (SHARED / name).exists():
            return SHARED
        other = Path(tempfile.gettempdir())
        sweep(other)
        said = f"{SHARED} has {free:,} bytes free" if free else f"there is no {SHARED}"
        if _free(other) <= free:
            self.notes.append(
                f"{said}, less than the {limit:,} of the plan's memory: samples are kept until it is full"
            )
            return SHARED
        self.notes.append(
            f"{said}, less than the {limit:,} of the plan's memory: the memory tier lies in {other} instead, where the "
            f"page cache holds it while there is memory. Give the container a larger {SHARED} (docker run --shm-size)"
        )
        return other


def disk_folder(folder: Path, lineage: str) -> Path:
    """The folder of a pipeline's tier on the disk. lineage: the source, and the names of its steps."""
    return folder / f"pipeline-{lineage}"


def open_place(wanted: Wanted, tier: Path, quota: ByteQuota, *, direct: bool) -> tuple[StoreLocation, str]:
    """Find or make a placement's folder in that of a tier.

    Returns:
        The place; and in words, why there is nothing in it where there might have been.

    Raises:
        QuotaExceeded: there is not even room for that.
    """
    tier.mkdir(parents=True, exist_ok=True)
    folder = tier / wanted.version
    reason = ""
    with file_lock(tier / "versions.lock", Files()):
        about = _read(folder)
        if about is None:
            shutil.rmtree(folder, ignore_errors=True)
            reason = _reason(tier, wanted)
            schema = wanted.schema()
            about = {
                "format": _FORMAT,
                "steps": list(wanted.steps),
                "schema": None if schema is None else schema.to_json(),
            }
            content = json.dumps(about).encode()
            with quota.reserve(2 * 4096 + len(content)):
                folder.mkdir()
                replace_file(folder / _ABOUT, content, durable=False)
    schema = None if about["schema"] is None else SampleSchema.from_json(about["schema"])
    return StoreLocation(wanted.number, wanted.step, wanted.name, folder, quota, schema, wanted.codec, direct), reason


def sweep(parent: Path) -> None:
    """Remove the tiers of processes that have died."""
    for folder in {path.with_suffix("") for path in parent.glob(f"{_PREFIX}-{os.getuid()}-*")}:
        with contextlib.suppress(OSError):
            if remove_unused(folder, lock_too=True):
                _log.info("%s: removed, its processes have ended", folder)


def _reason(folder: Path, wanted: Wanted) -> str:
    """What tells the version to be made from the last one that was kept after the same step."""
    others = sorted(folder.glob(f"{wanted.step}-{wanted.codec}-*/{_ABOUT}"), key=lambda path: path.stat().st_mtime)
    about = _read(others[-1].parent) if others else None
    return difference_of(about["steps"], wanted.steps) if about is not None else ""


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        about: dict[str, Any] = json.loads((folder / _ABOUT).read_bytes())
        return about if about["format"] == _FORMAT else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _free(folder: Path) -> int:
    try:
        return int(psutil.disk_usage(str(folder)).free) if os.access(folder, os.W_OK) else 0
    except OSError:
        return 0
