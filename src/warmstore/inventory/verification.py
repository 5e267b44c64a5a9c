"""Verifying a folder of any kind: every byte is read and compared with its hash."""

import shlex
from dataclasses import dataclass

from warmstore.errors import WarmstoreError, message_of
from warmstore.inventory.cached_folder import CachedFolder
from warmstore.storage.registry import COMPILED, COPY, PIPELINE


@dataclass(frozen=True)
class Verified:
    """What was found in one folder. lines: what is damaged, or what was read. repair: what mends it, or ""."""

    folder: CachedFolder
    ok: bool
    lines: tuple[str, ...]
    repair: str = ""


def verify(folder: CachedFolder, *, progress: bool | None = None) -> Verified:
    """Check one folder. Damaged artifacts of compile caches are dropped, since they are compiled again; everything else
    is only looked at."""
    try:
        if folder.kind == COMPILED:
            return _compiled(folder)
        if folder.kind == PIPELINE:
            return _version(folder, progress)
        if folder.kind == COPY:
            return Verified(folder, True, ("a copy of a remote: each block is compared with its hash when it is read",))
        return _store(folder, progress)
    except (WarmstoreError, OSError, ValueError) as error:
        return Verified(folder, False, (message_of(error),), _repair(folder))


def _store(folder: CachedFolder, progress: bool | None) -> Verified:
    from warmstore.replicate.record_store import RecordStore

    with RecordStore.open(folder.path) as store:
        report = store.verify(progress=progress)
    lines = str(report).splitlines()
    return Verified(folder, report.ok, tuple(lines if report.ok else lines[:-1]), "" if report.ok else _repair(folder))


def _version(folder: CachedFolder, progress: bool | None) -> Verified:
    from warmstore.pipeline.tiers.tier_store import KINDS
    from warmstore.records.format.manifest import NAME
    from warmstore.replicate.record_store import RecordStore

    lines, ok = [], True
    for kind in KINDS:
        if (folder.path / kind / NAME).exists():
            with RecordStore.open(folder.path / kind) as store:
                report = store.verify(progress=progress)
            ok = ok and report.ok
            lines += str(report).splitlines()[: None if report.ok else -1]
    advice = "" if ok else f"damaged samples are computed again when they are read, or remove them: {folder.free}"
    return Verified(folder, ok, tuple(lines) or ("no samples",), advice)


def _compiled(folder: CachedFolder) -> Verified:
    from warmstore.compiling.store.artifact_store import ArtifactStore

    with ArtifactStore(folder.path, max_size=1 << 62) as store:  # a limit that evicts nothing
        dropped = store.verify()
        whole = f"{len(store.all()):,} artifacts are whole"
    return Verified(folder, not dropped, (*dropped, whole))


def _repair(folder: CachedFolder) -> str:
    return "" if folder.kind == COMPILED else f"warmstore store verify {shlex.quote(str(folder.path))} --repair"
