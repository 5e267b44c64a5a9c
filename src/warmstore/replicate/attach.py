"""Adopt chunks: chunks that other hosts wrote for their part of a cache become chunks of this part, unchanged.

A chunk's checksums depend on the store that it was written for. So an ADOPTED entry in the log names that store and the
chunk's number in it. Further entries commit the chunk's batches. No chunk is hashed again.
"""

import contextlib
import itertools
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np

from warmstore.errors import SchemaMismatch
from warmstore.records.format.chunk_names import chunk_numbers, chunk_path
from warmstore.records.format.generation_log import open_log
from warmstore.records.format.manifest import read_manifest
from warmstore.records.log.commit_log import Log
from warmstore.records.log.log_entries import (
    ADOPTED,
    BATCH,
    COPIED,
    DELETE,
    DELETED,
    EVICTED,
    NOWHERE,
    SEALED,
    STAGED,
    UPDATE,
    Entries,
    last_chunk,
    new_entry,
)
from warmstore.records.read.live_batches import first_chunks
from warmstore.records.write.upgrade import upgrade
from warmstore.remote.objects import Objects
from warmstore.replicate.pull import PullResult, fetch_chunks
from warmstore.replicate.remote_chunk import RemoteChunk
from warmstore.replicate.remote_snapshot import RemoteSnapshot
from warmstore.storage.files import Files, file_lock
from warmstore.storage.lease import lock_path
from warmstore.storage.quota import Reserve

STAGING = ".pull"
"""The folder in a store where chunks are fetched before they are adopted, under its lock."""

Keep = Callable[[Path, int, RemoteChunk, Entries], None]
"""Lists a chunk of a generation's folder as remote, given folder, local number, remote chunk and log entries."""


def attach(
    path: Path,
    head: RemoteSnapshot,
    objects: Objects,
    files: Files,
    *,
    numbers: Collection[int] | None = None,
    keep_remote: Keep | None = None,
    room: Reserve | None = None,
    progress: bool | None = None,
) -> PullResult:
    """Adopt the chunks of another part of a cache that this part lacks.

    Args:
        numbers: of the chunks to adopt; chunks among them that were adopted and evicted since are adopted again. None:
            all chunks that were never adopted.
        keep_remote: called for each chunk instead of fetching its bytes. Its blocks are fetched when they are read.
        room: reserves disk space for the fetched bytes.

    Raises:
        SchemaMismatch: the other part has other fields, or edits.
        Damaged, RemoteUnavailable, RemoteRefused: chunks fetched before stay adopted; the next call continues.
    """
    local = read_manifest(path, files)
    if head.manifest.id == local.id:
        return PullResult(0, 0, 0)
    if head.manifest.fields != local.fields:
        raise SchemaMismatch(f"{head.name} has other fields, or another codec, than {path}; only equal caches can join")
    if np.isin(head.entries["kind"], (UPDATE, DELETE, STAGED, DELETED)).any():
        raise SchemaMismatch(f"{head.name} has edits; rebalance it where it was written, and push it again")
    chunks = size = records = 0
    with file_lock(lock_path(path / STAGING), files):
        upgrade(path, files)  # earlier versions cannot read adopted chunks
        manifest = read_manifest(path, files)
        folder = path / manifest.generation_folder
        with open_log(path, manifest, files, write=True) as log:
            merged = first_chunks(head.entries, head.lists)
            for number, chunk in head.chunks.items():
                if numbers is not None and number not in numbers:
                    continue
                local_number, missing = _missing(log, head, number, merged, again=numbers is not None)
                if not len(missing):
                    continue
                with room(chunk.size) if room is not None else contextlib.nullcontext():
                    if local_number is None:
                        local_number = create_chunk(folder, log, files)
                        if keep_remote is not None:
                            keep_remote(folder, local_number, chunk, missing)
                        else:
                            staging = path / STAGING / f"{head.seed:016x}-{number}"
                            targets = {0: chunk_path(folder, local_number)}
                            fetch_chunks(staging, {0: chunk}, objects, files, targets, progress)
                            files.remove_folder(staging)
                            files.sync_folder(folder)
                        adopted = new_entry(ADOPTED, local_number, rows=number, body_hash=head.seed)
                        missing = np.concatenate((adopted, missing))
                    missing["chunk"] = local_number
                    log.append_all(missing)
                chunks, size = chunks + 1, size + chunk.size
                records += int(missing["rows"][missing["kind"] == BATCH].sum())
        with contextlib.suppress(OSError):  # under the lock: another process may fetch into it next
            files.remove_folder(path / STAGING)
    return PullResult(chunks, size, records)


def _missing(
    log: Log, head: RemoteSnapshot, number: int, merged: dict[int, frozenset[int]], *, again: bool
) -> tuple[int | None, Entries]:
    """The local number of another store's chunk, or None if it was not adopted; and its entries that the log lacks.

    Args:
        merged: for each merged chunk of the head, the original chunks of its rows. If all of these were adopted, the
            merged chunk adds no rows.
        again: a chunk that was evicted counts as not adopted.
    """
    wanted = (head.entries["chunk"] == number) & np.isin(head.entries["kind"], (BATCH, COPIED, SEALED))
    of_chunk = head.entries[wanted].copy()
    of_chunk["kind"][of_chunk["kind"] == COPIED] = BATCH
    entries = log.read(0)
    adopted = entries[(entries["kind"] == ADOPTED) & (entries["body_hash"] == head.seed)]
    matches = adopted["rows"] == number
    if not matches.any():
        originals = {chunk for known in adopted["rows"].tolist() for chunk in merged.get(known, {known})}
        return (NOWHERE, of_chunk[:0]) if number in merged and merged[number] <= originals else (None, of_chunk)
    local_number = int(adopted["chunk"][matches][-1])
    if local_number == NOWHERE:
        return local_number, of_chunk[:0]
    if again and local_number in entries["chunk"][entries["kind"] == EVICTED]:
        return None, of_chunk
    done = (entries["chunk"] == local_number) & np.isin(entries["kind"], (BATCH, SEALED))
    return local_number, of_chunk[int(done.sum()) :]


def create_chunk(folder: Path, log: Log, files: Files) -> int:
    """Create an empty chunk file under the next free number."""
    first_free = max(last_chunk(log.read(0)), *chunk_numbers(folder), -1) + 1
    for number in itertools.count(first_free):
        with contextlib.suppress(FileExistsError):
            files.close(files.create(chunk_path(folder, number)))
            return number
    raise AssertionError
