"""Merging small chunks, so that many short sessions leave few files and a store opens quickly.

Sixty-four closed chunks of one level become one chunk of the next level. So a row is copied once per level, and never
again once its chunk is large. Rows keep their numbers, so positions and key indices stay valid. A log entry commits the
new place of the rows; then the old files are unlinked. A process that has them mapped continues to read them.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import numpy as np

from warmstore.errors import Damaged, WarmstoreError
from warmstore.records.format.chunk_names import chunk_numbers, chunk_path
from warmstore.records.format.encoded_rows import stored_rows
from warmstore.records.log.commit_log import GenerationClosed
from warmstore.records.log.log_entries import COPIED, DELETE, MERGED, SEALED, UPDATE, Entries, new_entry
from warmstore.records.write.edit_lock import edit_lock
from warmstore.records.write.generation import Generation
from warmstore.storage.files import Files, is_locked
from warmstore.storage.interrupts import uninterrupted

_log = logging.getLogger("warmstore")

FAN_IN = 64
"""Chunks that are merged into one."""
_LARGE = 16 << 20
"""Bytes from which a chunk is no longer merged."""
_BATCH_BYTES = 64 << 20
_MOST_MERGES = 64
"""The most merges in one call: a store with many chunks of earlier versions is merged in steps."""


def merge_small_chunks(path: Path, generation: Generation, files: Files, chunk_size: int) -> None:
    """Merge small chunks, unless another process is editing the store. After an error the store is unchanged.

    Args:
        path: the store's folder.
        chunk_size: the most bytes of a chunk of this writer.
    """
    large = min(_LARGE, chunk_size // FAN_IN)
    levels = generation.batches.levels
    if not large or max(Counter(levels.get(chunk, 0) for chunk in _chunks(generation)).values(), default=0) < FAN_IN:
        return
    with edit_lock(path, files, wait=False) as held:
        if not held:
            return
        try:
            generation.refresh()
            damaged: set[int] = set()
            for _ in range(_MOST_MERGES):
                chunks = _small_chunks(generation, large, damaged)
                if not chunks:
                    break
                try:
                    _merge(generation, chunks, files)
                except _DamagedChunks as error:
                    damaged |= error.chunks  # they stay as they are; the others are merged
                    continue
                _remove_merged(generation, files)
        except GenerationClosed:
            return
        except (OSError, WarmstoreError) as error:
            _log.warning("%s: small chunks were not merged: %s", path, error)


class _DamagedChunks(Exception):
    """Some chunks have damaged rows."""

    def __init__(self, chunks: Iterable[int]) -> None:
        super().__init__(chunks)
        self.chunks = frozenset(chunks)


def _chunks(generation: Generation) -> list[int]:
    """The chunks that have live batches, in the order of their first rows."""
    chunks, first = np.unique(generation.snapshot.chunk, return_index=True)
    ordered: list[int] = chunks[np.argsort(first)].tolist()
    return ordered


def _small_chunks(generation: Generation, large: int, damaged: Collection[int]) -> list[int]:
    """The next chunks to merge: those with the first rows, of the lowest level that has enough chunks."""
    batches = generation.batches
    entries = generation.log.read(0)
    kinds = entries["kind"]
    sealed = set(entries["chunk"][kinds == SEALED].tolist())
    # Chunks that the log refers to for more than their rows.
    special = {*entries["chunk"][np.isin(kinds, (UPDATE, DELETE))].tolist(), *batches.adopted, *batches.evicted}
    by_level: dict[int, list[int]] = {}
    for chunk in _chunks(generation):
        file = batches.chunks.path(chunk)
        if chunk in special or chunk in damaged or not 0 < batches.chunks.file_size(chunk) < large:
            continue
        if chunk in sealed or not is_locked(file):  # without footer and lock: its writer is dead
            by_level.setdefault(batches.levels.get(chunk, 0), []).append(chunk)
    for level in sorted(by_level):
        if len(by_level[level]) >= FAN_IN:
            return by_level[level][:FAN_IN]
    return []


def _merge(generation: Generation, chunks: list[int], files: Files) -> None:
    """Copy the rows of some chunks into a new one, and commit the merge.

    Raises:
        _DamagedChunks: rows of some chunks are damaged; nothing is merged.
        OSError, WriteFailed: the disk refused; nothing is merged.
    """
    snapshot, batches, gatherer = generation.snapshot, generation.batches, generation.recheck()
    starts: list[int] = []
    copied: list[Entries] = []
    with uninterrupted():
        writer = generation.new_writer()
    try:
        for first, last in _runs(generation, chunks):
            rows = np.arange(first, last)
            which = snapshot.batch_of(rows)
            block = {}
            for name in generation.manifest.fields:
                gathered = gatherer.gather(snapshot, name, rows, which)
                if gathered.bad is not None and gathered.bad.any():
                    raise _DamagedChunks(np.unique(snapshot.chunk[which[gathered.bad]]).tolist())
                block[name] = stored_rows(gathered)
            entry = generation.write_batch(writer, block)
            entry["kind"] = COPIED
            starts.append(first)
            copied.append(entry)
        sealed = writer.seal()
        level = 1 + max(batches.levels.get(chunk, 0) for chunk in chunks)
        merged = new_entry(
            MERGED, writer.number, rows=sum(int(entry["rows"][0]) for entry in copied), header=len(copied)
        )
        for name, value in batches.numbers.append(np.array([level, *starts], np.int64)).items():
            merged[name] = value
        with generation.log.locked():
            since = generation.log.read(snapshot.entries)
            if np.isin(since["chunk"], chunks).any():
                raise Damaged(f"chunks {chunks[0]} to {chunks[-1]} changed while they were merged")
            generation.log.append_locked(*copied, sealed)
            merged["header_hash"] = generation.log.prefix_hash()
            generation.log.append_locked(merged)
    except BaseException:
        writer.release()
        if not any(generation.log.holds(entry) for entry in copied[:1]):
            files.remove(writer.path)
        raise
    generation.refresh()


def _runs(generation: Generation, chunks: Collection[int]) -> Iterator[tuple[int, int]]:
    """The rows of some chunks as consecutive runs [first, last) of up to about 64 MiB."""
    snapshot = generation.snapshot
    which = np.flatnonzero(np.isin(snapshot.chunk, list(chunks)))
    first = snapshot.first_row[which]
    last = np.append(snapshot.first_row, snapshot.rows)[which + 1]
    sizes = np.sum([size[which] for size in snapshot.size], axis=0)
    begin = 0
    for at in range(1, len(which) + 1):
        if at == len(which) or first[at] != last[at - 1] or sizes[begin : at + 1].sum() > _BATCH_BYTES:
            yield int(first[begin]), int(last[at - 1])
            begin = at


def _remove_merged(generation: Generation, files: Files) -> None:
    """Remove the files of chunks that were merged, also those that a killed merge left."""
    for number in generation.batches.merged_away.intersection(chunk_numbers(generation.folder)):
        path = chunk_path(generation.folder, number)
        try:
            files.remove(path)
        except OSError as error:
            _log.warning("%s was merged and cannot be removed: %s", path, error)
