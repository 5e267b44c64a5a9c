"""Adopting chunks: chunks that other hosts wrote to their parts of a cache become chunks of this one, unchanged.

A chunk's checksums depend on the store that it was written for. So an entry in the log names that store and the chunk's
number there, and further entries commit its batches. Nothing is copied or hashed again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
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
from warmstore.storage.quota import Reserve

Keep = Callable[[Path, int, RemoteChunk, Entries], None]
"""Makes a chunk of a generation's folder come from a remote: called with the folder, the chunk's number there, the
remote chunk and its log entries."""


def attach(
    path: Path,
    head: RemoteSnapshot,
    objects: Objects,
    files: Files,
    *,
    lazily: Keep | None = None,
    room: Reserve | None = None,
    progress: bool | None = None,
) -> PullResult:
    """Adopt the chunks of another part of a cache that this part lacks.

    Args:
        lazily: called for each chunk instead of fetching its bytes, which are fetched when they are read.
        room: reserves disk space for the bytes that are fetched.

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
    with file_lock(path / ".adopt.lock", files):
        upgrade(path, files)  # earlier versions cannot read adopted chunks
        manifest = read_manifest(path, files)
        folder = path / manifest.generation_folder
        with open_log(path, manifest, files, write=True) as log:
            merged = first_chunks(head.entries, head.lists)
            for number, chunk in head.chunks.items():
                here, missing = _missing(log, head, number, merged)
                if not len(missing):
                    continue
                with room(chunk.size) if room is not None else contextlib.nullcontext():
                    if here is None:
                        here = _take_number(folder, log, files)
                        if lazily is not None:
                            lazily(folder, here, chunk, missing)
                        else:
                            target = chunk_path(folder, here)
                            staging = path / ".pull" / f"{head.seed:016x}-{number}"
                            fetch_chunks(staging, {number: chunk}, objects, files, {number: target}, progress)
                            files.remove_folder(staging)
                            files.sync_folder(folder)
                        missing = np.concatenate((_adopted(head, here, number), missing))
                    missing["chunk"] = here
                    log.append_all(missing)
                chunks, size = chunks + 1, size + chunk.size
                records += int(missing["rows"][missing["kind"] == BATCH].sum())
    with contextlib.suppress(OSError):
        files.remove_folder(path / ".pull")
    return PullResult(chunks, size, records)


def _adopted(head: RemoteSnapshot, here: int, number: int) -> Entries:
    return new_entry(ADOPTED, here, rows=number, body_hash=head.seed)


def _missing(
    log: Log, head: RemoteSnapshot, number: int, merged: dict[int, frozenset[int]]
) -> tuple[int | None, Entries]:
    """The number that a chunk of another store has here, or None; and its entries that the log lacks.

    Args:
        merged: for each merged chunk of the head, the original chunks of its rows. If all were adopted, nothing is new.
    """
    wanted = (head.entries["chunk"] == number) & np.isin(head.entries["kind"], (BATCH, COPIED, SEALED))
    of_chunk = head.entries[wanted].copy()
    of_chunk["kind"][of_chunk["kind"] == COPIED] = BATCH
    entries = log.read(0)
    adopted = entries[(entries["kind"] == ADOPTED) & (entries["body_hash"] == head.seed)]
    same = adopted["rows"] == number
    if not same.any():
        originals = {chunk for known in adopted["rows"].tolist() for chunk in merged.get(known, {known})}
        return (NOWHERE, of_chunk[:0]) if number in merged and merged[number] <= originals else (None, of_chunk)
    here = int(adopted["chunk"][same][0])
    if here == NOWHERE:
        return here, of_chunk[:0]
    done = (entries["chunk"] == here) & np.isin(entries["kind"], (BATCH, SEALED))
    return here, of_chunk[int(done.sum()) :]


def _take_number(folder: Path, log: Log, files: Files) -> int:
    number = max(last_chunk(log.read(0)), *chunk_numbers(folder), -1) + 1
    while True:
        try:
            files.close(files.create(chunk_path(folder, number)))
            return number
        except FileExistsError:
            number += 1
