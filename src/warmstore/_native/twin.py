"""The functions of the compiled floor in plain NumPy: its replacement where it was not built, and its test reference.

Buffers are contiguous NumPy arrays. `threads` limits the threads of a call; the twin always uses one.
"""

import os
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import xxhash

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Int64 = np.ndarray[Any, np.dtype[np.int64]]
UInt64 = np.ndarray[Any, np.dtype[np.uint64]]

_SIGNED, _UNSIGNED = 0x77735F7369676E64, 0x77735F756E736967


def gather(memory: Bytes, addresses: Int64, width: int, out: Bytes, threads: int) -> None:
    """Copy `width` bytes from each address into rows one after the other.

    Args:
        memory: uint8, any length.
        addresses: int64 [n], bytes from the beginning of `memory` on.
        out: n * width bytes.

    Raises:
        IndexError: not all of it lies in `memory`.
        ValueError: `width` or the length of a buffer is wrong.
    """
    count = len(addresses)
    if not 0 <= width <= len(memory):
        raise ValueError(f"width={width}; expected 0 to {len(memory)}")
    _check_length("out", out, count * width)
    _check_inside(addresses, np.full(count, width), len(memory))
    if width and count:
        rows = np.ndarray((len(memory) - width + 1,), f"V{width}", memory, strides=(1,))
        out.reshape(-1).view(np.uint8)[:] = rows[addresses].view(np.uint8)


def gather_rows(
    memory: Bytes,
    bases: Int64,
    first_row: Int64,
    span: int,
    limit: int,
    rows: Int64,
    width: int,
    out: Bytes,
    threads: int,
) -> bool:
    """Copy rows of a column that is stored in batches.

    Args:
        memory: uint8, any length.
        bases: int64 [batches], the address that row 0 of the whole column would have in `memory`.
        first_row: int64 [batches], rising.
        span: rows of every batch but the last, or 0 if batches differ.
        limit: rows of the column.
        rows: int64 [n].
        width: bytes of a row.
        out: n * width bytes.

    Returns:
        Whether all rows exist and lie in `memory`. Otherwise nothing is copied.

    Raises:
        ValueError: a number or the length of a buffer is wrong.
    """
    addresses = _addresses(len(memory), bases, first_row, span, limit, rows, width)
    _check_length("out", out, len(rows) * width)
    if addresses is not None and len(rows):
        gather(memory, addresses, width, out, threads)
    return addresses is not None


def gather_spans(memory: Bytes, starts: Int64, lengths: Int64, out: Bytes, threads: int) -> None:
    """Copy spans of different lengths one after the other.

    Args:
        memory: uint8, any length.
        starts, lengths: int64 [n], bytes.
        out: uint8 [sum of lengths].

    Raises:
        IndexError: not all of it lies in `memory`.
        ValueError: the length of a buffer is wrong.
    """
    _check_length("lengths", lengths, starts.nbytes)
    _check_inside(starts, lengths, len(memory))
    _check_length("out", out, int(lengths.sum()))
    at, target = 0, out.reshape(-1).view(np.uint8)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        target[at : at + length] = memory[start : start + length]
        at += length


def checksums(rows: Bytes, width: int, seeds: UInt64, sums: UInt64, threads: int) -> None:
    """The xxh3-64 of each row: `span_checksums` for rows of one width. rows: n * width bytes."""
    count = len(sums)
    _check_length("rows", rows, count * width)
    span_checksums(rows.reshape(-1), np.arange(count) * width, np.full(count, width), seeds, sums, threads)


def span_checksums(memory: Bytes, starts: Int64, lengths: Int64, seeds: UInt64, sums: UInt64, threads: int) -> None:
    """The xxh3-64 of each span of memory.

    Args:
        memory: uint8, any length.
        starts, lengths: int64 [n], bytes.
        seeds: uint64 [n], or [1] for all.
        sums: uint64 [n], written.

    Raises:
        IndexError: not all of it lies in `memory`.
        ValueError: the length of a buffer is wrong.
    """
    count = len(sums)
    _check_length("starts", starts, 8 * count)
    _check_length("lengths", lengths, 8 * count)
    if len(seeds) != 1:
        _check_length("seeds", seeds, 8 * count)
    _check_inside(starts, lengths, len(memory))
    each = np.broadcast_to(seeds, count).tolist()
    for at, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        sums[at] = xxhash.xxh3_64_intdigest(memory[start : start + length].data, each[at])


def read(
    files: np.ndarray[Any, np.dtype[np.int32]], offsets: Int64, lengths: Int64, out: Bytes, missing: Bytes, threads: int
) -> int:
    """Read spans of files, one after the other.

    Args:
        files: int32 [n], a descriptor for each.
        offsets, lengths: int64 [n], bytes.
        out: uint8 [sum of lengths]; 0 where a span is missing.
        missing: uint8 [n]; set to 1 for a span that is incomplete in its file or cannot be read.
        threads: the most that may wait for the disk.

    Returns:
        How many of `missing` are not 0.

    Raises:
        ValueError: the length of a buffer is wrong, or a number is below 0.
    """
    count = len(offsets)
    for name, buffer, size in (("lengths", lengths, 8), ("files", files, 4), ("missing", missing, 1)):
        _check_length(name, buffer, size * count)
    if count and min(offsets.min(), lengths.min()) < 0:
        raise ValueError("a row has an offset or a length below 0")
    _check_length("out", out, int(lengths.sum()))
    first, target = 0, out.reshape(-1).view(np.uint8)
    for at, (file, offset, length) in enumerate(zip(files.tolist(), offsets.tolist(), lengths.tolist(), strict=True)):
        part, done = target[first : first + length], 0
        while done < length:
            try:
                count_read = os.preadv(file, [part[done:].data], offset + done)
            except OSError:
                count_read = 0
            if not count_read:
                part[:], missing[at] = 0, 1
                break
            done += count_read
        first += length
    return int((missing != 0).sum())


def map_rows(memory: Bytes, addresses: Int64, width: int) -> bool:
    """Map the pages of rows of a mapped file, so that copying them takes no page faults.

    Args:
        memory: uint8, any length.
        addresses: int64 [n], bytes from the beginning of `memory` on.

    Returns:
        Whether all of them are in the page cache and are mapped now. False where that cannot be told, as always here.

    Raises:
        IndexError: not all of it lies in `memory`.
        ValueError: `width` is wrong.
    """
    if not 0 <= width <= len(memory):
        raise ValueError(f"width={width}; expected 0 to {len(memory)}")
    _check_inside(addresses, np.full(len(addresses), width), len(memory))
    return False


def keys(ids: list[Any], keys: UInt64) -> tuple[int, bool]:
    """The keys of ids, as `warmstore.records.index.sample_keys` has them.

    Args:
        ids: str and int.
        keys: uint64 [n, 2], written.

    Returns:
        The number of leading ids that are a str or an int of 64 bits; and whether all of those are ints that fit a
        signed 64-bit number.
    """
    _check_length("keys", keys, 16 * len(ids))
    small, signs = True, (_SIGNED, _UNSIGNED)
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
    """The row of each key in a table. `table.c` describes the table.

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
    _check_length("keys", keys, 2 * rows.nbytes)
    if not 0 <= direct_count <= len(direct):
        raise ValueError(f"direct_count={direct_count}; direct has {direct.nbytes} bytes")
    is_beyond = False
    for at, (low, high) in enumerate(keys.tolist()):
        row = int(direct[low]) - 1 if high == _SIGNED and low < direct_count else -1
        if row < 0:
            fingerprint = _fingerprint(low, high)
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
        cells = words[32 * bucket : 32 * bucket + 16].tolist()
        if fingerprint in cells:
            return int(words[32 * bucket + 16 + cells.index(fingerprint)].view(np.int64)), False
        if cells[-1] == 0:
            break
    return -1, False


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
        _check_length("out", out, len(rows) * width)
        is_complete = is_complete and gather_rows(memory, bases, *place, rows, width, out, threads)
    return is_complete and carried.tobytes() == keys.tobytes(), is_beyond


def count_partitions(keys: UInt64, coming: Int64) -> None:
    """Add to `coming`, int64 [4096], the number of keys, uint64 [n, 2], of each partition."""
    for low, high in keys.tolist():
        coming[_fingerprint(low, high) >> 52] += 1


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
    _check_length("keys", keys, 2 * rows.nbytes)
    for at, ((low, high), row) in enumerate(zip(keys.tolist(), rows.tolist(), strict=True)):
        fingerprint = _fingerprint(low, high)
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
        first, last = entry >> 8, (entry >> 8) + (1 << (entry & 0xFF))
        if not 0 < first < last <= buckets:
            return False
        words[32 * first : 32 * last] = 0
        old = int(directory[partition])
        for bucket in range(old >> 8, (old >> 8) + (1 << (old & 0xFF) if old else 0)):
            if not 0 < bucket < buckets:
                return False
            cells = words[32 * bucket : 32 * bucket + 32].copy()
            for fingerprint, row in zip(cells[:16].tolist(), cells[16:].view(np.int64).tolist(), strict=True):
                if fingerprint and _place(words, buckets, entry, fingerprint, row) < 0:
                    return False
        directory[partition] = entry
    return True


def same_values(dicts: list[dict[Any, Any]], addresses: UInt64) -> bool:
    """Whether the values of all dicts, in order, are the objects at some addresses.

    Args:
        addresses: uint64 [n], of objects that are alive.

    Raises:
        TypeError: an item of the list is no dict.
    """
    if not all(isinstance(each, dict) for each in dicts):
        raise TypeError("dicts must be a list of dicts")
    if sum(map(len, dicts)) != len(addresses):
        return False
    values = np.fromiter(chain.from_iterable(map(dict.values, dicts)), object, len(addresses))
    return bool((np.frombuffer(values, np.uint64) == addresses).all()) if len(values) else True


def permute(places: UInt64, n: int, side: int, other_side: int, keys: UInt64, out: UInt64) -> None:
    """Where places of a permutation of range(n) lead: a Feistel network, put through again until below n.

    Args:
        places: uint64 [m], each below `n`.
        side, other_side: below 2**32; their product is at least `n`.
        keys: uint64 [8], one a round.
        out: uint64 [m].

    Raises:
        IndexError: a place is not below `n`.
        ValueError: the sides do not fit `n`, or the length of a buffer is wrong.
    """
    _check_length("keys", keys, 64)
    _check_length("out", out, places.nbytes)
    if not (0 < side < 2**32 and 0 < other_side < 2**32 and side * other_side >= n):
        raise ValueError(f"{side} x {other_side} cells for n={n}")
    if len(places) and places.max() >= n:
        raise IndexError(f"a place is not below n={n}")
    out[:] = places
    walking = np.arange(len(places))
    while len(walking):
        cells = _network(out[walking], side, other_side, keys)
        out[walking] = cells
        walking = walking[cells >= n]


def _network(cells: UInt64, side: int, other_side: int, keys: UInt64) -> UInt64:
    """A permutation of range(side * other_side). Each round hashes one coordinate and adds it to the other."""
    left, right = cells // other_side, cells % other_side
    for key in keys:
        hashed = (right + key) * 0xBF58476D1CE4E5B9
        hashed = (hashed ^ hashed >> 32) * 0x94D049BB133111EB >> 32
        left = (left + (hashed * side >> 32)) % side
        left, right, side, other_side = right, left, other_side, side
    return left * other_side + right  # after an even number of rounds the sides have their first order


def helpers_awake() -> int:
    """The number of running helper threads."""
    return 0


def _fingerprint(low: int, high: int) -> int:
    mixed = low ^ high
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % (1 << 64)
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % (1 << 64)
    return mixed ^ mixed >> 31 or 1


def _probes(entry: int, fingerprint: int) -> Iterator[int]:
    """The buckets of a partition, starting with the first choice of a fingerprint."""
    level = min(entry & 0xFF, 40)
    for probe in range(1 << level if entry > 0 else 0):
        yield (entry >> 8) + ((fingerprint >> (52 - level)) + probe) % (1 << level)


def _place(words: UInt64, buckets: int, entry: int, fingerprint: int, row: int) -> int:
    """Store a fingerprint: returns 1 for a new one, 0 for a known one, -1 if the partition is full."""
    for bucket in _probes(entry, fingerprint):
        if not 0 < bucket < buckets:
            return -1
        cells = words[32 * bucket : 32 * bucket + 32]
        taken = cells[:16].tolist()
        known = fingerprint in taken
        slot = taken.index(fingerprint if known else 0) if known or not taken[-1] else None
        if slot is not None:
            cells[16 + slot] = row % (1 << 64)
            cells[slot] = fingerprint
            return int(not known)
    return -1


def _check_table(directory: Int64, words: UInt64, buckets: int) -> None:
    _check_length("directory", directory, 8 * 4096)
    if not 0 <= buckets <= len(words) // 32:
        raise ValueError(f"buckets={buckets}; words has {words.nbytes} bytes")


def _check_length(name: str, buffer: np.ndarray[Any, Any], expected: int) -> None:
    if buffer.nbytes != expected:
        raise ValueError(f"{name} has {buffer.nbytes} bytes; expected {expected}")


def _addresses(
    size: int, bases: Int64, first_row: Int64, span: int, limit: int, rows: Int64, width: int
) -> Int64 | None:
    """The addresses of rows in memory of `size` bytes; None if a row is outside."""
    if width < 1 or span < 0 or limit < 0:
        raise ValueError(f"width={width}, span={span}, limit={limit}")
    _check_length("first_row", first_row, bases.nbytes)
    if not len(rows):
        return np.zeros(0, np.int64)
    if not len(bases) or rows.min() < 0 or rows.max() >= min(limit, (1 << 62) // width):
        return None
    batch = rows // span if span else np.maximum(np.searchsorted(first_row, rows, side="right") - 1, 0)
    if batch.max() >= len(bases):
        return None
    addresses: Int64 = bases[batch] + rows * width
    return addresses if addresses.min() >= 0 and addresses.max() <= size - width else None


def _check_inside(starts: Int64, lengths: Int64, size: int) -> None:
    wrong = (starts < 0) | (lengths < 0) | (lengths > size) | (starts > size - lengths)
    if wrong.any():
        at = int(np.argmax(wrong))
        start, length = int(starts[at]), int(lengths[at])
        raise IndexError(f"span {at} is [{start}, {start} + {length}), and the memory has {size} bytes")
