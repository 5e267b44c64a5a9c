"""The entries of a log: their fields and kinds, and the check of their hashes. docs/format.md shows the layout."""

from typing import Any

import numpy as np
import xxhash

from warmstore.errors import Damaged
from warmstore.records.log.byte_repair import with_one_byte_changed
from warmstore.records.log.entry_kinds import (
    ADOPTED,
    BATCH,
    CLOSED,
    COPIED,
    DELETE,
    DELETED,
    EVICTED,
    MERGED,
    SEALED,
    STAGED,
    UPDATE,
    UPDATED,
)
from warmstore.storage.array_types import Bools

__all__ = [
    "ADOPTED",
    "BATCH",
    "CLOSED",
    "COPIED",
    "DELETE",
    "DELETED",
    "ENTRY",
    "EVICTED",
    "KINDS",
    "MERGED",
    "NOWHERE",
    "PER_SECTOR",
    "SEALED",
    "SIZE",
    "STAGED",
    "UPDATE",
    "UPDATED",
    "ZEROS",
    "Entries",
    "damaged",
    "entries_of",
    "last_chunk",
    "matches",
    "new_entry",
    "searched",
    "torn_from",
]

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
        ("sequence", "<u8"),  # the number of this entry, so that a missing one is noticed
        ("hash", "<u8"),  # xxh3-64 of the 56 bytes before, seeded
    ]
)
KINDS = range(MERGED + 1)
NOWHERE = 0xFFFFFFFF
"""Stands for a chunk's number in an entry without a chunk of its own, such as an edit."""
SIZE = ENTRY.itemsize
ZEROS = bytes(SIZE)
PER_SECTOR = 512 // SIZE
"""Entries of one sector, which are appended together."""
_SEQUENCE = 48
"""The byte offset of the sequence number in an entry."""
_WORTH_A_PASS = 1024
"""The number of entries from which `matches` uses the hash in a `merged` entry."""

Entries = np.ndarray[Any, np.dtype[np.void]]


def new_entry(kind: int, chunk: int, **values: int) -> Entries:
    """A new entry. `Log.append` sets its sequence number and hash."""
    entry: Entries = np.zeros(1, ENTRY)
    entry["kind"], entry["chunk"] = kind, chunk
    for name, value in values.items():
        entry[name] = value
    return entry


def last_chunk(entries: Entries) -> int:
    """The highest chunk number in some entries; -1 if there is none."""
    chunks = entries["chunk"][entries["chunk"] != NOWHERE]
    return int(chunks.max()) if len(chunks) else -1


def entries_of(data: bytes, seed: int, where: str, first: int = 0) -> Entries:
    """The entries in the bytes of a log, from number `first` on, without a torn tail.

    Raises:
        Damaged: an entry does not match its hash and is not a torn tail.
    """
    data = data[: len(data) // SIZE * SIZE].removesuffix(ZEROS)
    good = matches(data, seed, first)
    if not good.all():
        raise damaged(where, first + int(np.argmin(good)), first + len(good))
    return np.frombuffer(data, ENTRY)


def numbered(entries: Entries, first: int, seed: int) -> bytes:
    """The bytes of entries that get the numbers from `first` on, with their hashes."""
    entries = entries.copy()
    entries["sequence"] = np.arange(first, first + len(entries))
    data, digest = entries.tobytes(), xxhash.xxh3_64_intdigest
    hashes = [digest(data[at : at + SIZE - 8], seed) for at in range(0, len(data), SIZE)]
    entries["hash"] = np.array(hashes, np.uint64)
    return entries.tobytes()


def matches(data: bytes, seed: int, first: int = 0) -> Bools:
    """Which entries in the bytes of a log, from number `first` on, have a known kind and match their hashes: bool [n].

    A `merged` entry has a hash of the whole log before it. Checking that one hash is faster than hashing each entry.
    """
    entries = np.frombuffer(data, ENTRY)
    good: Bools = entries["sequence"] == np.arange(first, first + len(entries), dtype=np.uint64)
    good &= entries["kind"] < len(KINDS)
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
        f"{where}: entry {number} of {count} does not match its checksum, and neither does its copy. The log lists the "
        "rows of the store, so later rows cannot be read; restore the file from a copy, or open it with salvage=True"
    )


def torn_from(data: bytes, first: int) -> int:
    """How many entries there are before the all-zero ones that end the last sector. `first`: the number of the first.

    Entries of one sector are appended together. After a power failure the log may have their bytes as zeros.
    """
    count = len(data) // SIZE
    least = max((first + count - 1) // PER_SECTOR * PER_SECTOR - first, 0)
    while count > least and data[(count - 1) * SIZE : count * SIZE] == ZEROS:
        count -= 1
    return count


def searched(entry: bytes, number: int, seed: int) -> bytes | None:
    """Repair an entry with one wrong byte; None if that fails."""

    def has_hash(data: bytes) -> bool:  # `matches` takes 30 times as long
        return xxhash.xxh3_64_intdigest(data[:-8], seed) == int.from_bytes(data[-8:], "little")

    found = with_one_byte_changed(entry, has_hash, known=number.to_bytes(8, "little"), at=_SEQUENCE)
    return found if found is not None and matches(found, seed, number)[0] else None
