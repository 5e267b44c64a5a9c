"""A checksum for every row: xxh3-64 of its bytes, seeded so that it is good in one place only.

The seed of a batch is made of the store's id, the generation, the chunk's number and the place in the chunk, so what
was put in another's place matches nothing. The native floor hashes all rows in one call.
"""

from typing import Any

import numpy as np
import xxhash

from warmstore._native import floor, threads_for

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
UInt64 = np.ndarray[Any, np.dtype[np.uint64]]
Seeds = UInt64 | int
"""One seed for all rows, or uint64 [n]."""

_ABSENT = 0x746E657362410A00
_digest = xxhash.xxh3_64_intdigest


def generation_seed(store: str, generation: int) -> int:
    """The seed of a generation's log, and of the seeds of its batches."""
    return _digest(f"{store}/{generation}".encode())


def batch_seeds(generation: int, chunks: Any, offsets: Any) -> UInt64:
    """The seeds of batches' rows, uint64 [n], from that of their generation.

    Args:
        chunks, offsets: integers [n], the number of each batch's chunk, and the byte where its header starts in it.
    """
    places = np.stack((np.asarray(chunks, np.uint64), np.asarray(offsets, np.uint64)), axis=1)
    return matrix_checksums(places.view(np.uint8).reshape(len(places), 16), generation)


def absent_checksums(rows: Any, seeds: Seeds) -> UInt64:
    """What stands where a record has no value, uint64 [n]. A value has it by chance once in 2**64.

    Args:
        rows: integers [n], the number of each row in its batch.
    """
    numbers: Bytes = np.ascontiguousarray(rows, np.uint64).view(np.uint8)
    return matrix_checksums(numbers.reshape(len(rows), 8), np.asarray(seeds, np.uint64) ^ np.uint64(_ABSENT))


def matrix_checksums(data: Bytes, seeds: Seeds) -> UInt64:
    """The checksum of each row of uint8 [n, width], as uint64 [n]."""
    count, width = data.shape
    sums = np.empty(count, np.uint64)
    floor.checksums(np.ascontiguousarray(data), width, _each(seeds), sums, threads_for(data.nbytes))
    return sums


def packed_checksums(data: Bytes, lengths: Any, shapes: Any, seeds: Seeds) -> UInt64:
    """The checksum of each of some values that lie one after the other, as uint64 [n].

    Args:
        data: uint8.
        lengths: int64 [n], bytes of each.
        shapes: int64 [n, ndim], the shape of each value, whose own checksum is the value's seed then; or None.
    """
    lengths = np.ascontiguousarray(lengths)
    if shapes is not None:
        rows: Bytes = np.ascontiguousarray(shapes, np.int64).view(np.uint8)
        seeds = matrix_checksums(rows.reshape(len(lengths), 8 * shapes.shape[1]), seeds)
    sums = np.empty(len(lengths), np.uint64)
    starts = np.cumsum(lengths) - lengths
    floor.span_checksums(data, starts, lengths, _each(seeds), sums, threads_for(data.nbytes))
    return sums


def _each(seeds: Seeds) -> UInt64:
    return np.full(1, seeds, np.uint64) if np.ndim(seeds) == 0 else np.ascontiguousarray(seeds, np.uint64)
