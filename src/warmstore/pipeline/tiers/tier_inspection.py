"""The versions of a disk tier, read without their pipelines, for the command line; and their removal."""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warmstore.errors import NotAStore, WarmstoreError, message_of
from warmstore.pipeline.step_identities import Description
from warmstore.pipeline.tiers.sample_schema import SampleSchema
from warmstore.pipeline.tiers.tier_about import about_damage, read_about
from warmstore.pipeline.tiers.tier_folders import LOCK, is_marked, tier_folder
from warmstore.pipeline.tiers.tier_quota import ABOUT
from warmstore.pipeline.tiers.tier_store import KINDS
from warmstore.records.format.manifest import NAME
from warmstore.records.maintenance.chunk_states import chunk_states
from warmstore.storage.disk_usage import allocated_bytes
from warmstore.storage.files import Files, file_lock
from warmstore.storage.lease import is_locked, lock_path, remove_unused


@dataclass(frozen=True)
class VersionState:
    """One version of a tier.

    step, codec: the number of steps before it, and how values are stored. steps: what identifies these steps; None
    for a version of another format, which is removed when its pipeline runs. schema: of most samples; None if they have
    nothing in common. samples, others: rows, and those of them that are in the store of other samples. chunks: files
    with rows. nbytes: allocated on the disk. used: time of the last use, in seconds since 1970. in_use: whether a
    process uses it now, or it cannot be known. damage: why it cannot be read, or "".
    """

    path: Path
    step: int
    codec: str
    steps: tuple[Description, ...] | None
    schema: SampleSchema | None
    samples: int
    others: int
    chunks: int
    nbytes: int
    used: float
    in_use: bool
    damage: str


def find_tier(folder: Path) -> Path:
    """The folder of the disk tier in the folder of plans, or the folder itself if it is a tier.

    Raises:
        NotAStore: neither is a tier.
    """
    for path in (tier_folder(folder), folder):
        if is_marked(path):
            return path
    raise NotAStore(f"{folder} has no samples of pipelines; name the folder that was given to plan(folder=...)")


def read_versions(tier: Path) -> list[VersionState]:
    """The states of all versions of a tier, the last used first; also of those that this user may not look into."""
    found = []
    for path in tier.iterdir():
        if not path.name.startswith(".") and _may_exist(path / ABOUT):
            with contextlib.suppress(FileNotFoundError):  # it is removed meanwhile
                found.append(_read_version(path))
    return sorted(found, key=lambda state: (-state.used, state.path.name))


def named_versions(tier: Path, names: Collection[str]) -> list[VersionState]:
    """The versions with these names, or that begin with them; all if there are no names.

    Raises:
        ValueError: no version has one of the names, or one is empty.
    """
    states = read_versions(tier)
    for name in names:
        if not name or not any(state.path.name.startswith(name) for state in states):
            raise ValueError(f"{tier} has no version {name!r}; `warmstore pipelines ls` lists them")
    return [state for state in states if not names or state.path.name.startswith(tuple(names))]


def remove_version(version: Path) -> bool:
    """Remove a version unless a process uses it. Returns whether it was removed.

    Raises:
        NotAStore: its folder is not that of a tier.
        OSError: it cannot be changed.
    """
    tier = version.parent
    if not is_marked(tier):
        raise NotAStore(f"{tier} has no samples of pipelines")
    with file_lock(tier / LOCK, Files()):  # no process creates the version, which has no lease until it is there
        return remove_unused(version)


def _may_exist(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # such as in a folder of another user
        return True
    return True


def _read_version(path: Path) -> VersionState:
    about = read_about(path)
    step, _, rest = path.name.partition("-")
    rows, chunks, damage = [0, 0], 0, about_damage(path)
    for kind, name in enumerate(KINDS):
        if about is not None and _may_exist(path / name / NAME):
            try:
                states = chunk_states(path / name)
                rows[kind] = sum(chunk.records for chunk in states)
                chunks += len(states)
            except (OSError, WarmstoreError) as error:
                damage = message_of(error)
    schema: Any = None if about is None else about["schema"]
    lock = lock_path(path)
    try:
        in_use = is_locked(lock)
    except OSError as error:
        in_use, damage = True, damage or message_of(error)
    try:
        nbytes = allocated_bytes(path)
    except OSError as error:
        nbytes, damage = 0, damage or message_of(error)
    try:
        used = (lock if lock.exists() else path / ABOUT).stat().st_mtime
    except PermissionError:
        used = path.stat().st_mtime
    return VersionState(
        path=path,
        step=int(step) if step.isdigit() else -1,
        codec=rest.partition("-")[0],
        steps=None if about is None else tuple(about["steps"]),
        schema=None if schema is None else SampleSchema.from_json(schema),
        samples=sum(rows),
        others=rows[1],
        chunks=chunks,
        nbytes=nbytes,
        used=used,
        in_use=in_use,
        damage=damage,
    )
