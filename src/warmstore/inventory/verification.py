"""Verifying a folder of any kind: every byte is read and compared with its hash."""

import shlex
from dataclasses import dataclass

from warmstore.errors import WarmstoreError, message_of
from warmstore.inventory.cached_folder import UNREADABLE, CachedFolder
from warmstore.storage.registry import COMPILED, COPY, FEATURES, FUNCTIONS, PIPELINE, STORE


@dataclass(frozen=True)
class Verified:
    """What was found in one folder. lines: what is damaged, or what was read. repair: what mends it, or ""."""

    folder: CachedFolder
    ok: bool
    lines: tuple[str, ...]
    repair: str = ""


def verify(folder: CachedFolder, *, progress: bool | None = None) -> Verified:
    """Check one folder. Damaged artifacts of compile caches are dropped, since they are compiled again; everything else
    is only looked at. A folder with a problem is not well."""
    if folder.kind == UNREADABLE:
        return Verified(folder, False, (folder.problem,))
    try:
        found = _verified(folder, progress)
    except (WarmstoreError, OSError, ValueError) as error:
        return Verified(folder, False, (message_of(error),), _repair(folder))
    if folder.problem and found.ok:
        return Verified(folder, False, (folder.problem,), _repair(folder))
    return found


def _verified(folder: CachedFolder, progress: bool | None) -> Verified:
    if folder.kind == COMPILED:
        return _compiled(folder)
    if folder.kind == PIPELINE:
        return _version(folder, progress)
    return _copy(folder) if folder.kind == COPY else _store(folder, progress)


def _store(folder: CachedFolder, progress: bool | None) -> Verified:
    from warmstore.replicate.record_store import RecordStore

    with RecordStore.open(folder.path) as store:
        report = store.verify(progress=progress)
    lines = str(report).splitlines()
    return Verified(folder, report.ok, tuple(lines if report.ok else lines[:-1]), "" if report.ok else _repair(folder))


def _version(folder: CachedFolder, progress: bool | None) -> Verified:
    from warmstore.pipeline.tiers.tier_store import KINDS
    from warmstore.records.format.manifest import holds_store
    from warmstore.replicate.record_store import RecordStore

    lines, ok = [], True
    for kind in KINDS:
        if holds_store(folder.path / kind):
            with RecordStore.open(folder.path / kind) as store:
                report = store.verify(progress=progress)
            ok = ok and report.ok
            lines += str(report).splitlines()[: None if report.ok else -1]
    advice = "" if ok else f"damaged samples are computed again when they are read, or remove them: {folder.free}"
    return Verified(folder, ok, tuple(lines) or ("no samples",), advice)


def _copy(folder: CachedFolder) -> Verified:
    """A copy of a remote, without the remote: the blocks that were read before."""
    from warmstore.records.format.manifest import read_manifest
    from warmstore.replicate.block_states import check_blocks
    from warmstore.replicate.remote_copy import read_chunks
    from warmstore.storage.files import PLAIN

    generation = folder.path / read_manifest(folder.path, PLAIN).generation_folder
    matching, damaged = check_blocks(generation, read_chunks(generation, PLAIN), PLAIN)
    lines = (*damaged, f"{matching:,} blocks of a remote match their hashes")
    return Verified(folder, not damaged, lines, _repair(folder) if damaged else "")


def _compiled(folder: CachedFolder) -> Verified:
    from warmstore.compiling.store.artifact_quota import UNLIMITED
    from warmstore.compiling.store.artifact_store import ArtifactStore

    with ArtifactStore(folder.path, UNLIMITED) as store:
        dropped = store.verify()
        whole = f"{len(store.all()):,} artifacts are whole"
    return Verified(folder, not dropped, (*dropped, whole))


def _repair(folder: CachedFolder) -> str:
    """The command that mends a folder, or says what to do."""
    path = shlex.quote(str(folder.path))
    if folder.kind in (STORE, FEATURES, FUNCTIONS):
        return f"warmstore store verify {path} --repair"
    return folder.free if folder.kind in (PIPELINE, COPY) else ""
