"""The entries of a log: what one says, and which of a log's bytes are whole entries. docs/format.md draws one."""

from typing import Any

import numpy as np
import xxhash

from warmstore.errors import Damaged

ENTRY = np.dtype(
    [
        ("chunk", "<u4"),  # number of the chunk's file
        ("rows", "<u4"),
        ("offset", "<u8"),  # where the batch's header starts in the chunk
        ("header", "<u4"),  # bytes of header: the Arrow message with its length prefix
        ("kind", "<u4"),
        ("body", "<u8"),  # bytes of body
        ("header_hash", "<u8"),  # xxh3-64
        ("body_hash", "<u8"),  # xxh3-64
        ("sequence", "<u8"),  # this entry's own number, so that none can vanish from the middle
        ("hash", "<u8"),  # xxh3-64 of the 56 bytes before, seeded
    ]
)
BATCH, SEALED, UPDATE, DELETE, CLOSED, EVICTED, ADOPTED = 1, 2, 3, 4, 5, 6, 7
"""Kinds of entries of every format. UPDATE and DELETE have their positions in the chunk: formats 1 to 3 only."""
STAGED, UPDATED, DELETED, COPIED, MERGED = 8, 9, 10, 11, 12
"""Kinds of entries of format 4."""
KINDS = range(MERGED + 1)
NOWHERE = 0xFFFFFFFF
"""In place of a chunk's number: rows of an adopted chunk that were written anew, among others."""
SIZE = ENTRY.itemsize
ZEROS = bytes(SIZE)
_WORTH_A_PASS = 1024
"""Entries from which one hash of all of them is looked for."""

Entries = np.ndarray[Any, np.dtype[np.void]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


def new_entry(kind: int, chunk: int, **values: int) -> Entries:
    """One entry, complete but for its sequence and hash, which `Log.append` fills in."""
    entry: Entries = np.zeros(1, ENTRY)
    entry["kind"], entry["chunk"] = kind, chunk
    for name, value in values.items():
        entry[name] = value
    return entry


def last_chunk(entries: Entries) -> int:
    """The highest number of a chunk that entries speak of, -1 where there is none."""
    chunks = entries["chunk"][entries["chunk"] != NOWHERE]
    return int(chunks.max()) if len(chunks) else -1


def entries_of(data: bytes, seed: int, where: str, first: int = 0) -> Entries:
    """The entries that the bytes of a log say, from number `first` on, without a torn tail.

    Raises:
        Damaged: an entry that is not a torn tail does not match its hash.
    """
    data = data[: len(data) // SIZE * SIZE].removesuffix(ZEROS)
    good = matches(data, seed, first)
    if not good.all():
        raise damaged(where, first + int(np.argmin(good)), first + len(good))
    return np.frombuffer(data, ENTRY)


def matches(data: bytes, seed: int, first: int = 0) -> Bools:
    """Which of the entries in the bytes of a log, from number `first` on, match their hashes: bool [n].

    A `merged` entry has a hash of the whole log before it: one pass over all of it stands for one over each entry.
    """
    entries = np.frombuffer(data, ENTRY)
    good: Bools = entries["sequence"] == np.arange(first, first + len(entries), dtype=np.uint64)
    digest = xxhash.xxh3_64_intdigest

    def check(begin: int, end: int) -> None:
        hashes = [digest(data[at : at + SIZE - 8], seed) for at in range(begin * SIZE, end * SIZE, SIZE)]
        good[begin:end] &= entries["hash"][begin:end] == np.array(hashes, np.uint64)

    merges: list[int] = []
    if not first and len(entries) > _WORTH_A_PASS:
        merges = np.flatnonzero(entries["kind"] == MERGED)[-1:].tolist()
    known = 0
    for last in merges:
        check(last, last + 1)
        if good[last] and digest(memoryview(data)[: last * SIZE], seed) == int(entries["header_hash"][last]):
            known = last
    check(known, len(entries))
    return good


def damaged(where: str, number: int, count: int) -> Damaged:
    return Damaged(
        f"{where}: entry {number} of {count} does not match its checksum, nor does its copy. The log says which rows "
        "exist, so the store is not read past it; restore the file from a copy, or open it with salvage=True"
    )
