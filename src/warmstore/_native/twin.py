"""The functions of the compiled floor in plain NumPy: its replacement where it was not built, and its test reference.

Buffers are contiguous NumPy arrays. `threads` limits the threads of a call; the twin always uses one.
"""

import os
from typing import Any

import numpy as np
import xxhash

from warmstore._native.twin_checks import Bytes, Int64, UInt64, check_inside, check_length
from warmstore._native.twin_copies import gather, gather_rows, gather_spans
from warmstore._native.twin_table import count_partitions, fetch, grow, insert, keys, lookup

__all__ = [
    "changed_dicts",
    "checksums",
    "count_partitions",
    "fetch",
    "gather",
    "gather_rows",
    "gather_spans",
    "grow",
    "helpers_awake",
    "insert",
    "keys",
    "lookup",
    "map_rows",
    "permute",
    "read",
    "span_checksums",
]


def checksums(rows: Bytes, width: int, seeds: UInt64, sums: UInt64, threads: int) -> None:
    """The xxh3-64 of each row: `span_checksums` for rows of one width. rows: n * width bytes."""
    count = len(sums)
    check_length("rows", rows, count * width)
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
    check_length("starts", starts, 8 * count)
    check_length("lengths", lengths, 8 * count)
    if len(seeds) != 1:
        check_length("seeds", seeds, 8 * count)
    check_inside(starts, lengths, len(memory))
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
        check_length(name, buffer, size * count)
    if count and min(offsets.min(), lengths.min()) < 0:
        raise ValueError("a row has an offset or a length below 0")
    check_length("out", out, int(lengths.sum()))
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
    check_inside(addresses, np.full(len(addresses), width), len(memory))
    return False


def changed_dicts(dicts: list[dict[Any, Any]], sizes: Int64, addresses: UInt64) -> list[int]:
    """The numbers of the dicts whose values, in order, are other objects than before.

    Args:
        sizes: int64 [len(dicts)], how many values each had; below 0 where that is not known.
        addresses: uint64 [n], of these values, which are alive.

    Raises:
        TypeError: an item of the list is no dict.
        ValueError: the length of `sizes` is wrong, or there are fewer addresses than values.
    """
    if not all(isinstance(each, dict) for each in dicts):
        raise TypeError("dicts must be a list of dicts")
    check_length("sizes", sizes, 8 * len(dicts))
    ends = np.cumsum(np.maximum(sizes, 0))
    if len(ends) and ends[-1] > len(addresses):
        raise ValueError("there are fewer addresses than values")
    found = []
    for at, (each, size, end) in enumerate(zip(dicts, sizes.tolist(), ends.tolist(), strict=True)):
        if len(each) != size or list(map(id, each.values())) != addresses[end - size : end].tolist():
            found.append(at)
    return found


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
    check_length("keys", keys, 64)
    check_length("out", out, places.nbytes)
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
