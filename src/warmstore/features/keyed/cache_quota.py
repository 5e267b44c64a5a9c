"""The quota of a cache: at most `max_size` bytes on the disk. The chunks that were written first are evicted first.

The quota is for all versions of an id and all files in their folders. A process with a quota writes under a lock that
all such processes share. Other processes read, look up and compute meanwhile.
"""

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from warmstore.errors import SchemaMismatch, WarmstoreError, WriteFailed
from warmstore.features.keyed.cache_versions import version_paths
from warmstore.features.write_queue import Block
from warmstore.records.format.manifest import read_manifest
from warmstore.records.keyed_store import IndexedStore
from warmstore.records.log.log_entries import ENTRY
from warmstore.records.maintenance.rewrite import Utilisation, rewrite
from warmstore.records.write.chunk_eviction import evict, remove_abandoned
from warmstore.records.write.upgrade import upgrade
from warmstore.storage.disk_usage import entries_below
from warmstore.storage.files import Files
from warmstore.storage.humanize import parse_size
from warmstore.storage.locks import ReentrantFileLock
from warmstore.storage.memory.address_space import SLOT
from warmstore.storage.quota import ByteQuota
from warmstore.storage.temporary_folder import host_name

_log = logging.getLogger("warmstore")

Evicted = Callable[[int, int], object]

SMALLEST = 4_000_000
"""The smallest `max_size` in bytes: a key index takes more than a megabyte."""

_CHUNKS = 32  # chunks in a full cache: each eviction removes a small part of the cache
_SPARE = 1 << 16  # bytes for files that are written without a reservation: the log, store.json, usage counters
_LARGEST_SHARE = 8  # one sample, or the direct table of the index, may take 1/8 of `max_size`


def check_bound(max_size: int | str) -> None:
    """Raise ValueError for a text that is no size, or for a size that is too small for a cache."""
    if parse_size(max_size) < SMALLEST:
        raise ValueError(
            f"max_size is {max_size!r}; a cache needs {SMALLEST // 1_000_000} MB at least, for its key index and a few "
            "chunks"
        )


@dataclass(frozen=True)
class _File:
    """A file that may be removed. number: the number of a chunk; None for any other file.

    age: nanoseconds since 1970 of its last write; of a chunk at least that of an earlier chunk of its store. Else new
    chunks would look older than all others once the clock was set back, and be evicted at once.
    """

    age: int
    path: Path
    nbytes: int
    number: int | None


class CacheFiles:
    """All versions of a cache on the disk: their size, and the order in which their files are evicted.

    evicted: called with the number and the bytes of evicted files.
    """

    def __init__(self, folder: Path, name: str, max_size: int, files: Files, evicted: Evicted) -> None:
        self._folder = folder
        self._name = name
        self._max_size = max_size
        self._files = files
        self._evicted = evicted

    def nbytes(self) -> int:
        """Bytes of all versions: the sizes of their files."""
        return sum(size for _, _, size in self._files_now())

    def evictable(self) -> int:
        """Bytes of the files that may be removed."""
        return sum(file.nbytes for file in self._candidates())

    def evict(self, excess: int) -> bool:
        """Remove abandoned generations, else about `excess` bytes of the files that were written first."""
        if self._remove_abandoned():
            return True
        evicted = []
        for file in sorted(self._candidates(), key=lambda file: (file.age, file.path)):
            if excess <= 0:
                break
            evicted.append(file)
            excess -= file.nbytes
        self._remove(evicted)
        return bool(evicted)

    def refusal(self, size: int) -> WriteFailed:
        return WriteFailed(
            errno.ENOSPC,
            f"max_size={self._max_size:,} bytes is too small for this write, even after all other samples were "
            "evicted; pass a larger max_size",
            str(self._folder / self._name),
        )

    def _remove_abandoned(self) -> bool:
        """Remove generations that failed or killed rewrites left. Returns whether there were any."""
        removed = False
        for path in version_paths(self._folder, self._name):
            before = len(list(path.glob("g[0-9]*")))
            if before > 1:
                with contextlib.suppress(OSError):
                    remove_abandoned(path, self._files)
                removed |= len(list(path.glob("g[0-9]*"))) < before
        return removed

    def _remove(self, evicted: list[_File]) -> None:
        chunks: dict[Path, list[int]] = {}
        for file in evicted:
            if file.number is None:
                self._files.remove(file.path)
            else:
                chunks.setdefault(file.path.parent, []).append(file.number)
        for folder, numbers in chunks.items():
            evict(folder.parent, folder.name, numbers, self._files)
        self._evicted(len(evicted), sum(file.nbytes for file in evicted))
        _log.debug("%s: evicted %d files", self._folder / self._name, len(evicted))

    def _candidates(self) -> Iterator[_File]:
        current = {}
        for path in version_paths(self._folder, self._name):
            with contextlib.suppress(WarmstoreError):
                if upgrade(path, self._files, wait=False):
                    current[path / read_manifest(path, self._files).generation_folder] = path
        latest = dict.fromkeys(current, 0)
        for path, age, size in sorted(self._files_now()):  # chunks in the order in which they were begun
            if path.parent in current and path.suffix == ".arrow" and path.stem.isdecimal():
                latest[path.parent] = max(latest[path.parent], age)
                yield _File(latest[path.parent], path, size, int(path.stem))
            elif path.name.endswith(".tmp") or _is_foreign_index(path):
                yield _File(age, path, size, None)

    def _files_now(self) -> Iterator[tuple[Path, int, int]]:
        """The path, time of the last write in nanoseconds, and bytes of every file of every version."""
        for version in version_paths(self._folder, self._name):
            for path, status in entries_below(version):
                if not stat.S_ISDIR(status.st_mode):
                    yield Path(path), status.st_mtime_ns, status.st_size


class CacheQuota:
    """Keeps all versions of a cache within `max_size` bytes. For several threads and processes. evicted: see
    `CacheFiles`."""

    def __init__(self, folder: Path, name: str, max_size: int, files: Files, evicted: Evicted) -> None:
        self.max_size = max_size
        self.chunk_size = min(max_size // _CHUNKS, SLOT)
        self.largest = max_size // _LARGEST_SHARE
        self._versions = CacheFiles(folder, name, max_size, files, evicted)
        self._quota = ByteQuota(
            max_size - _SPARE, self._versions, ReentrantFileLock(folder / f".{name}.room", files).held
        )
        self._copying = 0  # the id of a process that copies all chunks into space reserved before

    @contextlib.contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Reserve `size` bytes and hold the write lock of the cache in this context; 0 only holds the lock.

        Raises:
            WriteFailed: there is no room, even after everything evictable was evicted.
        """
        with self._quota.reserve(0):
            if size and self._copying != os.getpid():
                self._quota.make_room(size)
            yield

    @contextlib.contextmanager
    def reserve_copy(self) -> Iterator[None]:
        """Reserve space for a copy of all chunks in this context, by evicting the oldest of them if necessary."""
        with self._quota.reserve(0):
            rest = self._versions.nbytes() - self._versions.evictable()
            self._quota.make_room(self._quota.limit - (self._quota.limit + rest) // 2)
            self._copying = os.getpid()
            try:
                yield
            finally:
                self._copying = 0

    def check(self, block: Block) -> None:
        """Raise SchemaMismatch if a sample takes more than an eighth of `max_size`."""
        if largest := block.larger_than(self.largest):
            raise SchemaMismatch(
                f"a sample of {largest:,} bytes is too large for max_size={self.max_size:,}: a sample may take up to "
                f"{self.largest:,}. Pass a larger max_size, or cache smaller outputs"
            )


def rebalance(keyed: IndexedStore, quota: CacheQuota | None, progress: bool | None) -> Utilisation:
    """Rewrite the store with the latest row of each key; see `FeatureCache.rebalance`."""
    store = keyed.store
    with store._editing(), quota.reserve_copy() if quota is not None else contextlib.nullcontext():
        return rewrite(store._session, store.fields, {}, progress=progress, keep=keyed.latest)


def tidy(keyed: IndexedStore, quota: CacheQuota) -> None:
    """Rebalance if the log is too long for the quota, or has edits, which prevent the eviction of chunks."""
    snapshot = keyed.store._snapshot
    if snapshot.entries * ENTRY.itemsize > quota.chunk_size or snapshot.order is not None:
        rebalance(keyed, quota, progress=False)


def _is_foreign_index(path: Path) -> bool:
    """Whether a file is the key index of another host, which can rebuild it: each container leaves one."""
    return path.suffix in (".index", ".direct") and path.stem != f"keys-{host_name()}"
