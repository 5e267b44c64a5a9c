"""The states of folders of every kind, as `CachedFolder`s. A folder that cannot be read is one with a problem.

Feature caches and record stores are read without NumPy and pyarrow: a machine may have thousands of them.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from warmstore.errors import WarmstoreError, message_of
from warmstore.features.keyed.usage_counters import read_usage
from warmstore.inventory.cached_folder import UNREADABLE, CachedFolder
from warmstore.inventory.discovery import FoundFolder
from warmstore.records.maintenance.store_summary import StoreSummary, summarize
from warmstore.storage.disk_usage import allocated_bytes
from warmstore.storage.reading_lease import is_read
from warmstore.storage.registry import COMPILED, COPY, FEATURES, FUNCTIONS, PIPELINE, STORE

_CHUNKS = "chunks.json"  # in the generation of a copy; see `replicate.remote_copy`
# Fields in store.json of feature caches and results; see `features.outputs.output_schema`, `functions.results`.
_KEY = {"key": {"kind": "array", "dtype": "uint64", "shape": [2]}}
_RESULTS = _KEY | {"value": {"kind": "bytes"}}
_LEAF = "leaf/"


def read_states(found: Iterable[FoundFolder]) -> Iterator[CachedFolder]:
    """The states of some folders. The tier of a pipeline has one for each version."""
    for folder in found:
        try:
            if folder.kind == UNREADABLE:
                os.scandir(folder.path).close()  # raises why
            elif folder.kind == PIPELINE:
                yield from _versions(folder)
            elif folder.kind == COMPILED:
                yield _compiled(folder)
            else:
                yield _store(folder)
        except (WarmstoreError, OSError, ValueError, ImportError) as error:
            if folder.path.exists():  # not removed meanwhile
                size = _nbytes(folder)
                yield CachedFolder(folder.kind, folder.path, nbytes=size, used=folder.opened, problem=message_of(error))


def _nbytes(folder: FoundFolder) -> int:
    """Bytes of a folder without those that are listed by themselves; 0 if it cannot be read."""
    try:
        return allocated_bytes(folder.path) - sum(map(allocated_bytes, folder.inner))
    except OSError:
        return 0


def _store(folder: FoundFolder) -> CachedFolder:
    path, summary = folder.path, summarize(folder.path)
    kind = _kind(summary)
    usage = read_usage(path / "cost.json") if kind in (FEATURES, FUNCTIONS) else None
    used = [folder.opened, summary.written]
    if usage is not None:
        used.append(_modified(path / "cost.json"))
    in_use = summary.writing or is_read(path)
    if kind == COPY:
        from warmstore.storage.lease import is_locked, lock_path

        used += [_modified(lock_path(path)), _modified(summary.generation / "pages")]
        in_use = is_locked(lock_path(path))
    return CachedFolder(
        kind,
        path,
        entries=summary.records,
        nbytes=_nbytes(folder),
        created=summary.created,
        used=max(used),
        hits=None if usage is None else usage.hits,
        misses=None if usage is None else usage.misses,
        in_use=in_use,
        is_data=kind == STORE or (kind == FEATURES and not isinstance(summary.metadata.get("fingerprint"), dict)),
    )


def _kind(summary: StoreSummary) -> str:
    """The kind of a store. What is not certainly a cache is data, which is removed only if that is asked for."""
    structure = summary.metadata.get("structure")
    columns = {name: field for name, field in summary.fields.items() if not name.startswith(_LEAF)}
    if columns == _KEY and isinstance(structure, dict) and "node" in structure:
        return FEATURES
    if summary.fields == _RESULTS and isinstance(summary.metadata.get("function"), str):
        return FUNCTIONS
    return COPY if (summary.generation / _CHUNKS).exists() else STORE


def _versions(folder: FoundFolder) -> Iterator[CachedFolder]:
    from warmstore.pipeline.tiers.tier_folders import is_marked
    from warmstore.pipeline.tiers.tier_inspection import read_versions

    tier = folder.path if is_marked(folder.path) else folder.path.parent
    if not is_marked(tier):
        return
    for state in read_versions(tier):
        if folder.path not in (tier, state.path):
            continue
        yield CachedFolder(
            PIPELINE,
            state.path,
            entries=state.samples,
            nbytes=state.nbytes,
            created=_modified(state.path / "about.json"),
            used=state.used,
            in_use=state.in_use,
            problem=state.damage,
        )


def _compiled(folder: FoundFolder) -> CachedFolder:
    """The state of a compile cache, whose index is only read: opening the store could evict artifacts."""
    from warmstore.inventory.compiled_index import ask

    question = (
        "SELECT count(*), coalesce(min(created), 0), coalesce(max(last_used), 0), coalesce(sum(hits), 0) "
        "FROM artifacts JOIN uses USING (id)"
    )
    ((count, created, used, hits),) = ask(folder.path, question)
    misses = sum(value for name, value in ask(folder.path, "SELECT name, value FROM counters") if name == "miss")
    return CachedFolder(
        COMPILED,
        folder.path,
        entries=count,
        nbytes=_nbytes(folder),
        created=created,
        used=used or folder.opened,
        hits=hits,
        misses=misses,
    )


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
