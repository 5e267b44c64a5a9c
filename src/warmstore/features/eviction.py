"""The bound on a cache's bytes on disk: whoever writes makes room first, and the oldest chunks go first.

The bound is that of an id, over all its versions and everything in their folders. Every write of a process that was
given one happens under a lock that all of them share, so that no two fill the same room. Other processes read, look up
and compute meanwhile.
"""

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warmstore.errors import SchemaMismatch, WarmstoreError, WriteFailed
from warmstore.features.blocks import Block
from warmstore.features.reader import Reader
from warmstore.features.structure import nbytes_of
from warmstore.features.versions import version_paths
from warmstore.records.address_space import SLOT
from warmstore.records.eviction import evict, remove_abandoned
from warmstore.records.files import Files, file_lock
from warmstore.records.key_index import host_name
from warmstore.records.log_entries import ENTRY
from warmstore.records.manifest import read_manifest
from warmstore.records.rewrite import Utilisation, rewrite
from warmstore.records.upgrade import upgrade
from warmstore.storage.humanize import parse_size

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


class Bound:
    """Keeps all versions of a cache within `max_size` bytes. For several threads and processes."""

    def __init__(self, folder: Path, name: str, max_size: int, files: Files) -> None:
        self.max_size = max_size
        self.chunk_size = min(max_size // _CHUNKS, SLOT)
        self.largest = max_size // _LARGEST_SHARE
        self._folder = folder
        self._name = name
        self._files = files
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: what the parent's threads hold is theirs."""
        self._thread_lock = threading.RLock()
        self._depth = 0
        self._paused = False

    @contextlib.contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Have room for `size` more bytes, and hold it while they are written; 0 only keeps all others from writing.

        Raises:
            WriteFailed: there is no room, though everything that could go has gone.
        """
        with self._thread_lock, contextlib.ExitStack() as stack:
            if not self._depth:  # a lock held twice by one process would wait for itself
                stack.enter_context(file_lock(self._folder / f".{self._name}.room", self._files))
            self._depth += 1
            try:
                if size and not self._paused:
                    self._shrink_to(self.max_size - _SPARE - size)
                yield
            finally:
                self._depth -= 1

    @contextlib.contextmanager
    def room_for_a_copy(self) -> Iterator[None]:
        """Have room for a copy of all chunks, and hold it while they are copied."""
        with self.room(0):
            rest = self.nbytes() - sum(file.nbytes for file in self._candidates())
            self._shrink_to((self.max_size - _SPARE + rest) // 2)
            self._paused = True
            try:
                yield
            finally:
                self._paused = False

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

    def nbytes(self) -> int:
        """Bytes of all versions on the disk: the sizes of their files."""
        return sum(size for _, _, size in self._files_now())

    def _shrink_to(self, most: int) -> None:
        excess = self.nbytes() - most
        if excess <= 0:
            return
        for path in version_paths(self._folder, self._name):
            if sum(1 for _ in path.glob("g[0-9]*")) > 1:
                with contextlib.suppress(OSError):
                    remove_abandoned(path, self._files)
        while (excess := self.nbytes() - most) > 0:
            files = sorted(self._candidates(), key=lambda file: (file.age, file.path))
            going = []
            for file in files:
                if excess <= 0:
                    break
                going.append(file)
                excess -= file.nbytes
            if not going:
                raise WriteFailed(
                    errno.ENOSPC,
                    f"max_size={self.max_size:,} bytes leave no room for what is to be written, though all else was "
                    "evicted; allow more",
                    str(self._folder / self._name),
                )
            self._remove(going)

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
            yield from _files_in(version)


def _files_in(folder: Path) -> Iterator[tuple[Path, int, int]]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # others come and go
                if entry.is_dir(follow_symlinks=False):
                    yield from _files_in(folder / entry.name)
                else:
                    state = entry.stat(follow_symlinks=False)
                    yield folder / entry.name, state.st_mtime_ns, state.st_size


def rebalance(reader: Reader, bound: Bound | None, progress: bool | None) -> Utilisation:
    """Write what is worth keeping anew; see `FeatureCache.rebalance`."""
    store = reader.store
    with store.editing(), bound.room_for_a_copy() if bound is not None else contextlib.nullcontext():
        return rewrite(store, store.fields, {}, progress=progress, keep=reader.latest)


def tidy(reader: Reader, bound: Bound) -> None:
    """Rebalance where the log has grown too long for the bound, or has edits, with which chunks cannot be evicted."""
    snapshot = reader.store.snapshot
    if snapshot.entries * ENTRY.itemsize > bound.chunk_size or snapshot.order is not None:
        rebalance(reader, bound, progress=False)


def _is_foreign_index(path: Path) -> bool:
    """Whether this is the key index of another host, which would build it anew: containers leave one each."""
    return path.suffix in (".index", ".direct") and path.stem != f"keys-{host_name()}"
