"""The quota of a cache: `max_size` bytes on the disk, of which the chunks that were written longest ago go first.

It is that of an id, over all its versions and everything in their folders. Every write of a process that was given one
happens under a lock that all of them share. Other processes read, look up and compute meanwhile.
"""

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warmstore.errors import SchemaMismatch, WarmstoreError, WriteFailed
from warmstore.features.keyed.cache_versions import version_paths
from warmstore.features.outputs.output_structure import nbytes_of
from warmstore.features.write_queue import Block
from warmstore.records.format.manifest import read_manifest
from warmstore.records.index.key_index import host_name
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

_log = logging.getLogger("warmstore")

SMALLEST = 4_000_000
"""Bytes that any bound needs: a key index takes more than a megabyte."""

_CHUNKS = 32  # into which the bound is cut: evicting one takes a small part of what is cached
_SPARE = 1 << 16  # for what nobody asks room for: entries of the log, store.json, figures
_LARGEST_SHARE = 8  # of the bound is as much as one sample, or the direct table of the index, may take


def check_bound(max_size: int | str) -> None:
    """Raise ValueError for a size that is none, or that no cache fits in."""
    if parse_size(max_size) < SMALLEST:
        raise ValueError(
            f"max_size is {max_size!r}; a bounded cache needs {SMALLEST // 1_000_000} MB at least, for its key index "
            "and a few chunks"
        )


@dataclass(frozen=True)
class _File:
    """Something whose removal gives room. number: of the chunk, None for what is no chunk."""

    age: int  # nanoseconds since 1970 of its last write
    path: Path
    nbytes: int
    number: int | None


class CacheFiles:
    """All versions of a cache on the disk: how many bytes they take, and which of their files go first."""

    def __init__(self, folder: Path, name: str, max_size: int, files: Files) -> None:
        self._folder = folder
        self._name = name
        self._max_size = max_size
        self._files = files

    def nbytes(self) -> int:
        """Bytes of all versions: the sizes of their files."""
        return sum(size for _, _, size in self._files_now())

    def evictable(self) -> int:
        """Bytes of what can go."""
        return sum(file.nbytes for file in self._candidates())

    def evict(self, excess: int) -> bool:
        """Remove about `excess` bytes: what dead writers left, else the files that were written longest ago."""
        if self._remove_abandoned():
            return True
        going = []
        for file in sorted(self._candidates(), key=lambda file: (file.age, file.path)):
            if excess <= 0:
                break
            going.append(file)
            excess -= file.nbytes
        self._remove(going)
        return bool(going)

    def refusal(self, size: int) -> WriteFailed:
        return WriteFailed(
            errno.ENOSPC,
            f"max_size={self._max_size:,} bytes leave no room for what is to be written, though all else was "
            "evicted; allow more",
            str(self._folder / self._name),
        )

    def _remove_abandoned(self) -> bool:
        """Remove generations that rewrites left which failed or died; say whether any was."""
        removed = False
        for path in version_paths(self._folder, self._name):
            before = len(list(path.glob("g[0-9]*")))
            if before > 1:
                with contextlib.suppress(OSError):
                    remove_abandoned(path, self._files)
                removed |= len(list(path.glob("g[0-9]*"))) < before
        return removed

    def _remove(self, going: list[_File]) -> None:
        for file in going:
            if file.number is None:
                self._files.remove(file.path)
        by_folder: dict[Path, list[int]] = {}
        for file in going:
            if file.number is not None:
                by_folder.setdefault(file.path.parent, []).append(file.number)
        for folder, numbers in by_folder.items():
            evict(folder.parent, folder.name, numbers, self._files)
        _log.debug("%s: %d files went for others' room", self._folder / self._name, len(going))

    def _candidates(self) -> Iterator[_File]:
        current = {}
        for path in version_paths(self._folder, self._name):
            with contextlib.suppress(WarmstoreError):
                if upgrade(path, self._files, wait=False):
                    current[path / read_manifest(path, self._files).generation_folder] = path
        for path, age, size in self._files_now():
            if path.parent in current and path.suffix == ".arrow" and path.stem.isdecimal():
                yield _File(age, path, size, int(path.stem))
            elif path.name.endswith(".tmp") or _is_foreign_index(path):
                yield _File(age, path, size, None)

    def _files_now(self) -> Iterator[tuple[Path, int, int]]:
        """Every file of every version, when it was last written, and its bytes."""
        for version in version_paths(self._folder, self._name):
            for path, status in entries_below(version):
                if not stat.S_ISDIR(status.st_mode):
                    yield Path(path), status.st_mtime_ns, status.st_size


class CacheQuota:
    """Keeps all versions of a cache within `max_size` bytes. For several threads and processes."""

    def __init__(self, folder: Path, name: str, max_size: int, files: Files) -> None:
        self.max_size = max_size
        self.chunk_size = min(max_size // _CHUNKS, SLOT)
        self.largest = max_size // _LARGEST_SHARE
        self._versions = CacheFiles(folder, name, max_size, files)
        self._quota = ByteQuota(
            max_size - _SPARE, self._versions, ReentrantFileLock(folder / f".{name}.room", files).held
        )
        self._copying = 0  # the process that makes a copy, for which room was made before

    @contextlib.contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Let the cache grow by `size` bytes inside a `with`; 0 only keeps all others from writing.

        Raises:
            WriteFailed: there is no room, though everything that could go has gone.
        """
        with self._quota.reserve(0):
            if size and self._copying != os.getpid():
                self._quota.make_room(size)
            yield

    @contextlib.contextmanager
    def reserve_copy(self) -> Iterator[None]:
        """Let a copy of all chunks be made inside a `with`, after evicting until it has room."""
        with self._quota.reserve(0):
            rest = self._versions.nbytes() - self._versions.evictable()
            self._quota.make_room(self._quota.limit - (self._quota.limit + rest) // 2)
            self._copying = os.getpid()
            try:
                yield
            finally:
                self._copying = 0

    def check(self, block: Block) -> None:
        """Raise SchemaMismatch where a sample takes too large a part of the bound."""
        widest = 0
        for leaf in block.leaves:
            values = leaf.values if isinstance(leaf.values, list) else leaf.values[:1]
            widest += max((nbytes_of([value]) for value in values), default=0)
        if widest > self.largest:
            raise SchemaMismatch(
                f"a sample of {widest:,} bytes is too large for max_size={self.max_size:,}: one may take up to "
                f"{self.largest:,}. Allow more, or cache something smaller"
            )


def rebalance(keyed: IndexedStore, quota: CacheQuota | None, progress: bool | None) -> Utilisation:
    """Write what is worth keeping anew; see `FeatureCache.rebalance`."""
    store = keyed.store
    with store.editing(), quota.reserve_copy() if quota is not None else contextlib.nullcontext():
        return rewrite(store.session, store.fields, {}, progress=progress, keep=keyed.latest)


def tidy(keyed: IndexedStore, quota: CacheQuota) -> None:
    """Rebalance where the log has grown too long for the bound, or has edits, with which chunks cannot be evicted."""
    snapshot = keyed.store.snapshot
    if snapshot.entries * ENTRY.itemsize > quota.chunk_size or snapshot.order is not None:
        rebalance(keyed, quota, progress=False)


def _is_foreign_index(path: Path) -> bool:
    """Whether this is the key index of another host, which would build it anew: containers leave one each."""
    return path.suffix in (".index", ".direct") and path.stem != f"keys-{host_name()}"
