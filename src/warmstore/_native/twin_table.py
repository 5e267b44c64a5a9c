"""The table of keys of the compiled floor in plain NumPy: see `twin`. `table.c` describes the table."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash

from warmstore._native.twin_checks import Bytes, Int64, UInt64, check_length
from warmstore._native.twin_copies import gather_rows

SIGNED, _UNSIGNED = 0x77735F7369676E64, 0x77735F756E736967
"""The second halves of the keys of small ints, and of larger ones."""


def keys(ids: list[Any], keys: UInt64) -> tuple[int, bool]:
    """The keys of ids, as `warmstore.records.index.sample_keys` has them.

    Args:
        ids: str and int.
        keys: uint64 [n, 2], written.

    Returns:
        The number of leading ids that are a str or an int of 64 bits; and whether all of those are ints that fit a
        signed 64-bit number.
    """
    check_length("keys", keys, 16 * len(ids))
    small, signs = True, (SIGNED, _UNSIGNED)
    for at, value in enumerate(ids):
        if isinstance(value, str):
            try:
                keys[at] = np.frombuffer(xxhash.xxh3_128_digest(value.encode()), np.uint64)
            except UnicodeEncodeError:
                return at, small
            small = False
        elif type(value) is int and -(1 << 63) <= value < 1 << 64:
            keys[at] = value % (1 << 64), signs[value >= 1 << 63]
            small = small and value < 1 << 63
        else:
            return at, small
    return len(ids), small


def lookup(
    directory: Int64, words: UInt64, buckets: int, direct: Int64, direct_count: int, keys: UInt64, rows: Int64
) -> tuple[int, bool]:
    """The row of each key in a table.

    Args:
        directory: int64 [4096].
        words: uint64, 32 per bucket.
        buckets: their number. A reference to any other bucket finds nothing.
        direct: int64, rows + 1 by small int; the first `direct_count` are valid.
        keys: uint64 [n, 2].
        rows: int64 [n], written; -1 for an unknown key.

    Returns:
        How many keys were found, and whether an entry referred to a bucket that does not exist.
    """
    _check_table(directory, words, buckets)
    check_length("keys", keys, 2 * rows.nbytes)
    if not 0 <= direct_count <= len(direct):
        raise ValueError(f"direct_count={direct_count}; direct has {direct.nbytes} bytes")
    is_beyond = False
    for at, (low, high) in enumerate(keys.tolist()):
        row = int(direct[low]) - 1 if high == SIGNED and low < direct_count else -1
        if row < 0:
            fingerprint = fingerprint_of(low, high)
            entry, leads_beyond = None, False
            while entry != int(directory[fingerprint >> 52]):  # repeated if the partition moved meanwhile
                entry = int(directory[fingerprint >> 52])
                row, leads_beyond = _find(words, buckets, entry, fingerprint)
            is_beyond |= leads_beyond
        rows[at] = row
    return int((rows >= 0).sum()), is_beyond


def _find(words: UInt64, buckets: int, entry: int, fingerprint: int) -> tuple[int, bool]:
    """The row of a fingerprint, or -1, and whether its partition refers to a bucket that does not exist."""
    for bucket in _probes(entry, fingerprint):
        if not 0 < bucket < buckets:
            return -1, True
        taken = _taken(words, bucket)
        if fingerprint in taken:
            return int(words[32 * bucket + 16 + taken.index(fingerprint)].view(np.int64)), False
        if len(taken) < 16:
            break
    return -1, False


def _taken(words: UInt64, bucket: int) -> list[int]:
    """The fingerprints of a bucket: those before the first free slot, also in a damaged table."""
    cells: list[int] = words[32 * bucket : 32 * bucket + 16].tolist()
    return cells[: cells.index(0)] if 0 in cells else cells


def fetch(
    directory: Int64,
    words: UInt64,
    buckets: int,
    direct: Int64,
    direct_count: int,
    keys: UInt64,
    memory: Bytes,
    own: Int64,
    first_row: Int64,
    span: int,
    limit: int,
    columns: tuple[tuple[Int64, int, Bytes], ...],
    threads: int,
) -> tuple[bool, bool]:
    """Look keys up, copy their rows, and compare the key that each row carries: `lookup` and `gather_rows` in one.

    Args:
        own: the bases of the column of keys, 16 bytes a row; all columns have the same batches.
        columns: bases, width and out of each column to copy.

    Returns:
        Whether every key has a row in all columns that carries the key; otherwise the copied values are meaningless.
        And whether an entry referred to a bucket that does not exist.

    Raises:
        ValueError: a number or the length of a buffer is wrong.
    """
    rows = np.empty(keys.nbytes // 16, np.int64)
    found, is_beyond = lookup(directory, words, buckets, direct, direct_count, keys, rows)
    place = first_row, span, limit
    carried = np.empty(keys.nbytes, np.uint8)
    is_complete = found == len(rows)
    for bases, width, out in (*columns, (own, 16, carried)):
        if width < 1:
            raise ValueError(f"width={width}")
        check_length("out", out, len(rows) * width)
        is_complete = is_complete and gather_rows(memory, bases, *place, rows, width, out, threads)
    return is_complete and carried.tobytes() == keys.tobytes(), is_beyond


def count_partitions(keys: UInt64, coming: Int64) -> None:
    """Add to `coming`, int64 [4096], the number of keys, uint64 [n, 2], of each partition."""
    for low, high in keys.tolist():
        coming[fingerprint_of(low, high) >> 52] += 1


def insert(directory: Int64, counts: Int64, words: UInt64, buckets: int, keys: UInt64, rows: Int64) -> int:
    """Add keys to a table, or replace the rows of known keys.

    Args:
        directory, words, buckets: as in `lookup`.
        counts: int64 [4096], the keys of each partition; updated.
        keys, rows: uint64 [n, 2] and int64 [n].

    Returns:
        The number of leading keys that were added. The next one finds its partition full.
    """
    _check_table(directory, words, buckets)
    check_length("keys", keys, 2 * rows.nbytes)
    for at, ((low, high), row) in enumerate(zip(keys.tolist(), rows.tolist(), strict=True)):
        fingerprint = fingerprint_of(low, high)
        added = _place(words, buckets, int(directory[fingerprint >> 52]), fingerprint, row)
        if added < 0:
            return at
        counts[fingerprint >> 52] += added
    return len(rows)


def grow(directory: Int64, words: UInt64, buckets: int, partitions: Int64, entries: Int64) -> bool:
    """Copy partitions to unused buckets, and enter their new places in the directory.

    Args:
        partitions, entries: int64 [n], and their new directory entries.

    Returns:
        Whether this succeeded; in a damaged table there may be no room.
    """
    _check_table(directory, words, buckets)
    for partition, entry in zip(partitions.tolist(), entries.tolist(), strict=True):
        if not 0 <= partition < len(directory):
            raise IndexError(f"partition {partition}; there are {len(directory)}")
        room = _buckets(entry)
        if not 0 < room.start < room.stop <= buckets:
            return False
        words[32 * room.start : 32 * room.stop] = 0
        for bucket in _buckets(int(directory[partition])):
            if not 0 < bucket < buckets:
                return False
            rows = words[32 * bucket + 16 : 32 * bucket + 32].view(np.int64).tolist()
            for fingerprint, row in zip(_taken(words, bucket), rows, strict=False):
                if _place(words, buckets, entry, fingerprint, row) < 0:
                    return False
        directory[partition] = entry
    return True


def fingerprint_of(low: int, high: int) -> int:
    mixed = low ^ high
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % (1 << 64)
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % (1 << 64)
    return mixed ^ mixed >> 31 or 1


def _buckets(entry: int) -> range:
    """The buckets of a partition; in a damaged table they may not exist."""
    first = entry >> 8
    return range(first, first + (1 << min(entry & 0xFF, 40)) if entry > 0 else first)


def _probes(entry: int, fingerprint: int) -> Iterator[int]:
    """The buckets of a partition, starting with the first choice of a fingerprint."""
    buckets = _buckets(entry)
    home = fingerprint >> (52 - min(entry & 0xFF, 40))
    for probe in range(len(buckets)):
        yield buckets[(home + probe) % len(buckets)]


def _place(words: UInt64, buckets: int, entry: int, fingerprint: int, row: int) -> int:
    """Store a fingerprint: returns 1 for a new one, 0 for a known one, -1 if the partition is full."""
    for bucket in _probes(entry, fingerprint):
        if not 0 < bucket < buckets:
            return -1
        cells = words[32 * bucket : 32 * bucket + 32]
        taken = _taken(words, bucket)
        known = fingerprint in taken
        slot = taken.index(fingerprint) if known else len(taken)
        if slot < 16:
            cells[16 + slot] = row % (1 << 64)
            cells[slot] = fingerprint
            return int(not known)
    return -1


def _check_table(directory: Int64, words: UInt64, buckets: int) -> None:
    check_length("directory", directory, 8 * 4096)
    if not 0 <= buckets <= len(words) // 32:
        raise ValueError(f"buckets={buckets}; words has {words.nbytes} bytes")
