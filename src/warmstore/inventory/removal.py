"""Garbage collection over all kinds: what to remove for an age or a size, and its removal by the means of each kind.

Caches leave in the order of their last use: whole versions of feature caches and of pipelines, whole copies of remotes,
and single artifacts of compile caches. What a live process uses stays. What may exist nowhere else stays too, unless it
is asked for.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warmstore.errors import ReadOnly, message_of
from warmstore.inventory.cached_folder import CachedFolder
from warmstore.storage.disk_usage import allocated_bytes
from warmstore.storage.registry import COMPILED, COPY, FEATURES, PIPELINE

if TYPE_CHECKING:
    from warmstore.compiling.artifact import Artifact


@dataclass(frozen=True)
class Removal:
    """What to remove: a folder, or `artifacts` of a compile cache.

    entries: samples, records or artifacts; None if unknown. nbytes: allocated. used: when the last of it was used, in
    seconds since 1970. whole: whether the folder goes.
    """

    folder: CachedFolder
    entries: int | None
    nbytes: int
    used: float
    whole: bool
    artifacts: "tuple[Artifact, ...]" = ()


@dataclass(frozen=True)
class RemovalPlan:
    """What a collection removes and leaves.

    removals: the least recently used first. left: bytes of the caches that stay. in_use, data: folders that would go
    too, but are in use, or may exist nowhere else. limit: the size asked for; None without one.
    """

    removals: tuple[Removal, ...]
    left: int
    in_use: tuple[CachedFolder, ...]
    data: tuple[CachedFolder, ...]
    limit: int | None

    @property
    def nbytes(self) -> int:
        """Bytes that the removals free."""
        return sum(removal.nbytes for removal in self.removals)


@dataclass(frozen=True)
class _Unit:
    """What is removed as a whole. folder: its index. artifact: of a compile cache."""

    used: float
    folder: int
    nbytes: int
    artifact: "Artifact | None" = None


def plan_removals(
    folders: Sequence[CachedFolder],
    *,
    older_than: float | None = None,
    max_size: int | None = None,
    include_data: bool = False,
    now: float | None = None,
) -> RemovalPlan:
    """Choose what to remove.

    Args:
        older_than: remove what was last used so many seconds ago, or earlier.
        max_size: then remove the least recently used until the rest takes at most so many bytes. What may exist nowhere
            else counts only with `include_data`, since nothing of it is removed otherwise.
        now: seconds since 1970.
    """
    now = time.time() if now is None else now

    def is_old(used: float) -> bool:
        return older_than is not None and max(now - used, 0) >= older_than  # the clock may have been set back

    considered = [folder for folder in folders if include_data or not folder.is_data]
    total = sum(folder.nbytes for folder in considered)
    chosen: dict[int, list[_Unit]] = {}
    busy: dict[int, None] = {}
    units = [unit for number, folder in enumerate(considered) for unit in _units(number, folder)]
    for unit in sorted(units, key=lambda unit: (unit.used, unit.folder)):
        if not is_old(unit.used) and (max_size is None or total <= max_size):
            continue
        if considered[unit.folder].in_use:
            busy[unit.folder] = None
            continue
        chosen.setdefault(unit.folder, []).append(unit)
        total -= unit.nbytes
    data = [folder for folder in folders if folder.is_data and not include_data]
    return RemovalPlan(
        tuple(_removal(considered[number], chosen[number]) for number in chosen),
        total,
        tuple(considered[number] for number in busy),
        tuple(folder for folder in data if older_than is None or is_old(folder.used)),
        max_size,
    )


def _units(number: int, folder: CachedFolder) -> list[_Unit]:
    """What of a folder can be removed by itself; nothing of one whose content is unknown."""
    if folder.is_unknown:
        return []
    if folder.kind != COMPILED:
        return [_Unit(folder.used, number, folder.nbytes)]
    from warmstore.inventory.compiled_index import by_last_use

    return [_Unit(artifact.last_used, number, size, artifact) for artifact, size in by_last_use(folder.path)]


def _removal(folder: CachedFolder, units: list[_Unit]) -> Removal:
    used, nbytes = max(unit.used for unit in units), sum(unit.nbytes for unit in units)
    artifacts = tuple(unit.artifact for unit in units if unit.artifact is not None)
    if artifacts:
        return Removal(folder, len(artifacts), nbytes, used, whole=False, artifacts=artifacts)
    return Removal(folder, folder.entries, nbytes, used, whole=True)


def remove(removal: Removal) -> int:
    """Carry out one removal. Returns the bytes that it freed. Artifacts that were used or replaced since stay.

    Raises:
        ReadOnly: a process uses the folder by now, or it cannot be changed.
        WarmstoreError, OSError: as the kinds raise.
    """
    folder = removal.folder
    before = allocated_bytes(folder.path)
    if folder.kind == COMPILED:
        from warmstore.compiling.store.artifact_quota import UNLIMITED
        from warmstore.compiling.store.artifact_store import ArtifactStore

        with ArtifactStore(folder.path, UNLIMITED) as store:
            store.remove(removal.artifacts)
    elif folder.kind == FEATURES:
        from warmstore.features.cache_inspection import clear

        clear(folder.path)
    elif folder.kind == PIPELINE:
        from warmstore.pipeline.tiers.tier_inspection import remove_version

        if not remove_version(folder.path):
            raise ReadOnly(f"{folder.path} is in use by now, or something in it cannot be removed")
    elif folder.kind == COPY:
        from warmstore.storage.lease import remove_unused

        if not remove_unused(folder.path, lock_too=True):
            raise ReadOnly(f"{folder.path} is in use by now, or cannot be changed")
    else:
        from warmstore.records.maintenance.remove_store import remove_store

        remove_store(folder.path)
    return before - allocated_bytes(folder.path)


def failure_of(removal: Removal, error: Exception) -> str:
    """Why a removal failed, in one line."""
    text = message_of(error)
    return text if str(removal.folder.path) in text else f"{removal.folder.path}: {text}"
