"""The folders of tiers: found, created, shared between processes, and removed.

A tier is a folder with one version for each sequence of cached steps. The disk tier is in the plan's folder, where the
next run finds it. The memory tier is on a file system in memory, for as long as a process uses it.
"""

import contextlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from warmstore.errors import Damaged, NotAStore, StoreExists
from warmstore.pipeline.step_identities import Description, difference_of, key_of
from warmstore.pipeline.tiers.sample_schema import SampleSchema
from warmstore.pipeline.tiers.sample_store import StoreLocation
from warmstore.pipeline.tiers.tier_about import about_bytes, read_about
from warmstore.pipeline.tiers.tier_quota import ABOUT, SAMPLES
from warmstore.pipeline.tiers.tier_store import KINDS
from warmstore.records.format.chunk_names import chunk_bytes
from warmstore.records.local_store import LocalStore
from warmstore.storage.atomic import replace_file
from warmstore.storage.files import Files, file_lock
from warmstore.storage.folder_removal import is_hidden, sweep_hidden
from warmstore.storage.lease import SUFFIX, UsageLease, remove_unused
from warmstore.storage.lifecycle import Closeable
from warmstore.storage.quota import ByteQuota
from warmstore.storage.registry import PIPELINE, register

_log = logging.getLogger("warmstore")

SHARED = Path("/dev/shm")
_PREFIX = "warmstore"
_MARKER = "WARMSTORE"
_VERSION = re.compile(r"(?P<step>\d{1,4})-(?P<codec>[a-z0-9]+)-(?P<key>[0-9a-f]{16})")
LOCK = "versions.lock"
"""The file whose lock a process holds that creates or removes a version in the folder of a tier."""

PASS = ".pass.lock"
"""The suffix of the file whose lock a process holds that evaluates a filter, after the name of the version."""

_LOCKS = (LOCK, "room.lock")
_MARKER_TEXT = b"warmstore keeps samples of pipelines in this folder, and may remove all of it.\n"


@dataclass(frozen=True)
class Wanted:
    """A placement to open. steps: those before it. schema: infers the schema of its samples. tier: memory or disk.

    decodes: whether this process restores samples, so that a version with values of other encoders is made anew.
    """

    number: int
    step: int
    name: str
    tier: str
    codec: str
    steps: tuple[Description, ...]
    schema: Callable[[], SampleSchema | None]
    decodes: bool = True

    @property
    def version(self) -> str:
        """The name of its folder."""
        return version_name(self.step, self.codec, self.steps)


def version_name(step: int, codec: str, steps: Sequence[Description]) -> str:
    """The name of the folder with the results of some steps."""
    return f"{step}-{codec}-{key_of(steps)}"


def parsed_version(name: str) -> dict[str, str] | None:
    """The step, the codec and the key of the steps in the name of a version; None for another name."""
    found = _VERSION.fullmatch(name)
    return None if found is None else found.groupdict()


class MemoryTier(Closeable):
    """The folder of a memory tier. The last process that releases it removes it.

    Args:
        key: identifies the contents. limit: bytes.
    """

    _has_pending = False

    def __init__(self, key: str, limit: int) -> None:
        self.notes: list[str] = []
        self.limit = limit
        name = f"{_PREFIX}-{os.getuid()}-{key}"
        sweep(SHARED)
        parent = self._parent(name, limit)
        self._lease = UsageLease(parent / name)
        self.folder = parent / name
        _mark(self.folder, mode=0o700)
        if self.folder.is_symlink() or self.folder.stat().st_uid != os.getuid():
            raise StoreExists(f"{self.folder} belongs to another user, who could change samples; remove it")
        self.closed = False

    def close(self) -> None:
        """Release the folder, and remove it unless other processes use it. Idempotent."""
        if not self.closed:
            self.closed = True
            self._lease.release_and_remove()
            self._unregister()

    def _after_fork(self) -> None:
        self.closed = True
        self._lease.release()

    def _parent(self, name: str, limit: int) -> Path:
        free = _free(SHARED)
        if free >= limit or (SHARED / name).exists():
            return SHARED
        other = Path(tempfile.gettempdir())
        sweep(other)
        why = f"{SHARED} has {free:,} bytes free" if free else f"there is no {SHARED}"
        if _free(other) <= free:
            self.notes.append(f"{why}, less than the {limit:,} of the plan's memory: samples are kept until it is full")
            return SHARED
        self.notes.append(
            f"{why}, less than the {limit:,} of the plan's memory: the memory tier is in {other} instead, where the "
            f"page cache holds it while there is memory. Give the container a larger {SHARED} (docker run --shm-size)"
        )
        return other


def disk_folder(folder: Path) -> Path:
    """The folder of the disk tier of all pipelines that are given a folder. It is created and marked as ours.

    Raises:
        StoreExists: there is a folder of this name with files that are not ours.
    """
    folder.mkdir(parents=True, exist_ok=True)
    samples = tier_folder(folder)
    _mark(samples)
    register(PIPELINE, samples)
    return samples


def tier_folder(folder: Path) -> Path:
    """Where the disk tier is in a folder that is given to plans."""
    return folder / SAMPLES


def stored_bytes(folder: Path, version: str) -> int:
    """Bytes of the records that the folder of a plan has of a version."""
    return chunk_bytes(tier_folder(folder) / version)


def is_marked(folder: Path) -> bool:
    """Whether a folder is a tier, so that it may be removed with everything in it."""
    try:
        return (folder / _MARKER).read_bytes() == _MARKER_TEXT
    except OSError:
        return False


def _mark(folder: Path, mode: int = 0o777) -> None:
    """Create the folder of a tier with its marker. A lost or damaged marker is written again."""
    folder.mkdir(mode=mode, exist_ok=True)
    if is_marked(folder):
        return
    if not _may_remove(folder):
        raise StoreExists(f"{folder} has files that are not warmstore's; remove them, or take another folder")
    # Synced, as samples are not: a folder whose marker a power failure has lost could neither be used nor removed.
    replace_file(folder / _MARKER, _MARKER_TEXT, durable=True)


def _is_ours(name: str) -> bool:
    """Whether an entry of a tier's folder has a name that only tiers give."""
    is_version = parsed_version(name.removesuffix(PASS).removesuffix(SUFFIX)) is not None
    return is_version or is_hidden(name) or name in _LOCKS or name.partition(".")[0] == _MARKER


def open_place(wanted: Wanted, tier: Path, quota: ByteQuota, *, direct: bool) -> tuple[StoreLocation, str]:
    """Find or create a placement's folder in the folder of a tier.

    A version whose stores a power failure has damaged is removed, unless another process uses it.

    Returns:
        The location; and if it is new, how its steps or encoders differ from those of the last version, or "".

    Raises:
        QuotaExceeded: the quota has no bytes for a new folder.
    """
    folder, lock = tier / wanted.version, tier / LOCK
    with file_lock(lock, Files(), briefly=True):
        about, reason = _found(folder, wanted)
    if about is None:
        schema = wanted.schema()  # without the lock: it runs steps, which may take long, and open places of this tier
        with file_lock(lock, Files(), briefly=True):
            about, _ = _found(folder, wanted)  # another process may have created it meanwhile
            if about is None:
                reason = reason or _reason(tier, wanted)
                content = about_bytes(list(wanted.steps), None if schema is None else schema.to_json())
                with quota.reserve(2 * 4096 + len(content)):
                    folder.mkdir()
                    replace_file(folder / ABOUT, content, durable=False)
    if about is not None:
        reason, schema = "", None if about["schema"] is None else SampleSchema.from_json(about["schema"])
    place = StoreLocation(
        wanted.number, wanted.step, wanted.name, folder, quota, schema, wanted.codec, direct, wanted.tier
    )
    return place, reason


def _found(folder: Path, wanted: Wanted) -> tuple[dict[str, Any] | None, str]:
    """What the folder of a placement says, or None; and why what was there is of no use. That is removed."""
    about = read_about(folder)
    useless = "" if about is None or not wanted.decodes else _outdated(about)
    if about is None or useless:
        shutil.rmtree(folder, ignore_errors=True)  # unfinished, of another format, or of other encoders
    elif (damage := _damage(folder)) and remove_unused(folder):
        useless = f"the cached samples cannot be read ({damage})"
    return None if useless else about, useless


def sweep(parent: Path) -> None:
    """Remove the tiers of processes that have ended."""
    sweep_hidden(parent)
    for folder in {path.with_suffix("") for path in parent.glob(f"{_PREFIX}-{os.getuid()}-*")}:
        with contextlib.suppress(OSError):
            if _may_remove(folder) and remove_unused(folder, lock_too=True):
                _log.info("%s: removed, its processes have ended", folder)


def _may_remove(folder: Path) -> bool:
    """Whether a folder with the name of a tier in memory is one, or what removals have left of one. Raises OSError."""
    return is_marked(folder) or all(_is_ours(path.name) for path in folder.iterdir())


def _reason(folder: Path, wanted: Wanted) -> str:
    """How a new version differs from the last one after steps of the same names; "" if there is none."""
    others = sorted(folder.glob(f"{wanted.step}-{wanted.codec}-*/{ABOUT}"), key=lambda path: path.stat().st_mtime)
    names = [step["name"] for step in wanted.steps]
    for path in reversed(others):
        about = read_about(path.parent)
        if about is not None and [step["name"] for step in about["steps"]] == names:
            return difference_of(about["steps"], wanted.steps)
    return ""


def _damage(folder: Path) -> str:
    """Why a store of a version cannot be opened; "" if all can. Neither samples nor logs are synced to the disk."""
    for kind in KINDS:
        if (folder / kind).exists():
            try:
                LocalStore._open_folder(folder / kind).close()
            except (Damaged, NotAStore) as error:
                return str(error)
    return ""


def _outdated(about: dict[str, Any]) -> str:
    """Why the samples of a version cannot be restored; "" if they can."""
    return "" if about["schema"] is None else SampleSchema.from_json(about["schema"]).objection


def memory_room() -> int:
    """Free bytes where memory tiers are."""
    return max(_free(SHARED), _free(Path(tempfile.gettempdir())))


def _free(folder: Path) -> int:
    try:
        return int(psutil.disk_usage(str(folder)).free) if os.access(folder, os.W_OK) else 0
    except OSError:
        return 0
