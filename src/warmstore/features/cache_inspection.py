"""The state of caches on the disk, read without their modules, for the command line and reports."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from warmstore.errors import Damaged, NotAStore
from warmstore.features.keyed.cache_quota import rebalance
from warmstore.features.keyed.cache_store import is_cache, schema_of
from warmstore.features.keyed.cache_versions import Fingerprint, id_name, version_paths
from warmstore.features.keyed.usage_counters import Usage, read_usage
from warmstore.features.outputs.output_schema import KEY, OutputSchema
from warmstore.records.format.manifest import holds_store, manifest_file
from warmstore.records.keyed_store import IndexedStore, read_keys
from warmstore.records.maintenance.chunk_states import chunk_states
from warmstore.records.maintenance.remove_store import remove_store
from warmstore.records.maintenance.rewrite import Utilisation
from warmstore.replicate.record_store import RecordStore
from warmstore.storage.disk_usage import allocated_bytes
from warmstore.storage.files import Files

_BLOCK = 1 << 20


@dataclass(frozen=True)
class CacheState:
    """One version of a cache.

    id: the id that `FeatureCache` was given. entries: rows. evicted: rows evicted since the last rebalance. bytes:
    allocated on the disk. created, written: times of store.json and of the last commit, in seconds since 1970. writers:
    live processes that have a chunk. usage: of all closed runs.
    """

    path: Path
    id: str
    entries: int
    evicted: int
    bytes: int
    created: float
    written: float
    writers: int
    usage: Usage
    fingerprint: Fingerprint | None
    schema: OutputSchema

    @property
    def seconds_saved(self) -> float:
        """Hits times the average seconds to compute a sample."""
        return self.usage.hits * self.usage.per_sample


def read_state(path: Path) -> CacheState:
    """Read the state of one version of a cache.

    Raises:
        NotAStore, Damaged, NewerFormat: as when a store is opened.
        StoreExists: a store that is no cache.
    """
    with RecordStore.open(path) as store:
        schema = schema_of(store)
        return CacheState(
            path=path,
            id=unquote(id_name(path)),
            entries=store._snapshot.length,
            evicted=store._snapshot.gaps.count if store._snapshot.gaps is not None else 0,
            bytes=allocated_bytes(path),
            created=manifest_file(path).stat().st_mtime,
            written=(path / store._manifest.generation_folder / "log").stat().st_mtime,
            writers=sum(chunk.writing for chunk in chunk_states(path)),
            usage=read_usage(path / "cost.json"),
            fingerprint=store.metadata.get("fingerprint"),
            schema=schema,
        )


def find_caches(path: Path) -> list[Path]:
    """The versions at a path: all versions of a cache, one version, or the versions of all caches in a folder.

    Raises:
        NotAStore: the path has no cache.
        StoreExists: the path is a store that is no cache.
    """
    if path.name in ("", ".."):  # such as ".": the name of the folder is that of the cache
        path = path.resolve()
    is_version = id_name(path) != path.name and holds_store(path)
    found = [path] if is_version else version_paths(path.parent, path.name)
    if found:
        with RecordStore.open(found[0]) as store:
            schema_of(store)  # raises
        return found
    for folder in sorted(path.iterdir()) if path.is_dir() else ():
        if not folder.name.startswith(".") and holds_store(folder):
            with RecordStore.open(folder) as store:
                found += [folder] if is_cache(store) else []
    if not found:
        raise NotAStore(f"{path} has no feature cache; name the folder given to FeatureCache, or a folder in it")
    return found


def duplicates(store: RecordStore) -> int:
    """The number of rows that a later row with the same key supersedes. Takes 8 bytes of memory per row.

    Raises:
        Damaged: a key cannot be read.
    """
    snapshot = store._snapshot
    folded = np.empty(snapshot.length, np.uint64)
    for first in range(0, len(folded), _BLOCK):
        last = min(first + _BLOCK, len(folded))
        rows = snapshot.rows_at(np.arange(first, last, dtype=np.int64))
        keys, bad = read_keys(store._gatherer, KEY, rows)
        if bad is not None:
            raise Damaged(f"{store.path} has damaged rows; `warmstore store verify` names them")
        # All ints have the same high half, and hashes are uniform: sums collide as rarely as 64-bit hashes.
        folded[first:last] = keys.halves[:, 0] + keys.halves[:, 1] * np.uint64(0x9E3779B97F4A7C15)
    return len(folded) - len(np.unique(folded))


def rebalance_folder(folder: Path, *, progress: bool | None = None) -> Utilisation:
    """Rebalance a record store, or a version of a cache: see `RecordStore.rebalance` and `FeatureCache.rebalance`."""
    store = RecordStore.open(folder, "a")
    if not is_cache(store):
        with store:
            return store.rebalance(progress=progress)
    with contextlib.closing(IndexedStore(store, KEY)) as keyed:
        return rebalance(keyed, None, progress)


def clear(path: Path, files: Files | None = None) -> None:
    """Remove one version of a cache with its folder. Other processes see the whole version or none.

    Raises:
        StoreExists: the store is no cache, or its folder has something that is not the cache's.
        ReadOnly: a live process uses it, or the folder cannot be changed.
    """
    with RecordStore.open(path) as store:
        schema_of(store)  # raises
    remove_store(path, files)
