"""Leases of the chunks that a process needs, and the eviction of chunks without one.

A chunk holds samples that were written one after another. Growth, edits and other lists leave chunks of which no
present plan needs much. They are evicted, oldest first, when a present plan needs their bytes. A row that is evicted
while a process uses it is a missing sample, which is computed again: results never depend on leases.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from warmstore.errors import WarmstoreError
from warmstore.records.format.chunk_names import chunk_numbers, chunk_path
from warmstore.records.format.manifest import read_manifest
from warmstore.records.write.chunk_eviction import evict
from warmstore.storage.disk_usage import on_disk
from warmstore.storage.files import Files
from warmstore.storage.lease import UsageLease, is_locked, lock_path

_FOLDER = "needed"


@final
class ChunkLeases:
    """The leases that one process has on chunks of a store."""

    def __init__(self, store: Path) -> None:
        self._folder = _lease_folder(store)
        self._leases: dict[str, UsageLease] = {}

    def hold(self, chunks: Sequence[str]) -> None:
        """Lease these chunks and no others. A lease that cannot be taken is left out: nothing depends on it."""
        for chunk in self._leases.keys() - set(chunks):
            self._leases.pop(chunk).release()
        for chunk in chunks:
            if chunk not in self._leases:
                with contextlib.suppress(OSError):
                    self._folder.mkdir(exist_ok=True)
                    self._leases[chunk] = UsageLease(self._folder / chunk)

    def release(self) -> None:
        """Release all leases."""
        self.hold(())


@dataclass(frozen=True)
class _Chunk:
    store: Path
    generation: str
    number: int

    @property
    def path(self) -> Path:
        return chunk_path(self.store / self.generation, self.number)

    @property
    def lease(self) -> Path:
        return _lease_folder(self.store) / chunk_name(self.generation, self.number)


def chunk_name(generation: str, number: int) -> str:
    """The name of a chunk's lease."""
    return f"{generation}-{number:06d}"


def evict_unneeded(stores: Iterator[Path], excess: int) -> int:
    """Evict chunks without a lease until `excess` bytes are free, those first that were written longest ago.

    Args:
        stores: folders of record stores. One whose log is locked is left out: perhaps this thread is writing to it.

    Returns:
        The bytes that were freed.
    """
    found = []
    for store in stores:
        with contextlib.suppress(OSError, WarmstoreError):
            generation = read_manifest(store, Files()).generation_folder
            if is_locked(store / generation / "log"):
                continue
            for number in chunk_numbers(store / generation):
                chunk = _Chunk(store, generation, number)
                status = chunk.path.stat()
                found.append((status.st_mtime_ns, on_disk(status.st_size), chunk))
    freed = 0
    for _, size, chunk in sorted(found, key=lambda each: (each[0], each[2].path)):
        if freed >= excess:
            break
        with contextlib.suppress(OSError, WarmstoreError):
            if not is_locked(lock_path(chunk.lease)) and not is_locked(chunk.path):  # a live writer locks its chunk
                evict(chunk.store, chunk.generation, [chunk.number], Files())
                lock_path(chunk.lease).unlink(missing_ok=True)
                freed += size
    return freed


def _lease_folder(store: Path) -> Path:
    return store.with_name(f"{store.name}-{_FOLDER}")
