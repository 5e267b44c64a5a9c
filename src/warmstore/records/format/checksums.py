"""A checksum for every row: xxh3-64 of its bytes, with a seed that makes it valid in one place only.

The seed of a batch combines the store's id, the generation, the chunk's number and the offset in the chunk. A row that
was moved to another place does not match. The native floor hashes all rows in one call.
"""

from typing import Any

import numpy as np
import xxhash

from warmstore._native import floor, threads_for
from warmstore.storage.array_types import Bytes, Int64, UInt64

Seeds = UInt64 | int
"""One seed for all rows, or uint64 [n]."""

_ABSENT = 0x746E657362410A00
_digest = xxhash.xxh3_64_intdigest


def generation_seed(store: str, generation: int) -> int:
    """The seed of a generation's log. The seeds of its batches are derived from it."""
    return _digest(f"{store}/{generation}".encode())


def batch_seeds(generation: int, chunks: Any, offsets: Any) -> UInt64:
    """The seeds of the rows of batches, uint64 [n], derived from the seed of their generation.

    Args:
        chunks, offsets: integers [n], the number of each batch's chunk, and the byte offset of its header there.
    """
    locations = np.stack((np.asarray(chunks, np.uint64), np.asarray(offsets, np.uint64)), axis=1)
    return matrix_checksums(locations.view(np.uint8).reshape(len(locations), 16), generation)


def absent_checksums(rows: Any, seeds: Seeds) -> UInt64:
    """The checksums of absent values, uint64 [n]. The probability that a value has the same one is 2**-64.

    Args:
        rows: integers [n], row numbers within their batch.
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
    """The checksum of each of n concatenated values, as uint64 [n].

    Args:
        data: uint8.
        lengths: int64 [n], bytes of each value.
        shapes: int64 [n, ndim] or None. The checksum of a value's shape is the seed of its own checksum.
    """
    lengths = np.ascontiguousarray(lengths)
    if shapes is not None:
        rows: Bytes = np.ascontiguousarray(shapes, np.int64).view(np.uint8)
        seeds = matrix_checksums(rows.reshape(len(lengths), 8 * shapes.shape[1]), seeds)
    return span_checksums(data, np.cumsum(lengths) - lengths, lengths, seeds)


def span_checksums(data: Bytes, starts: Int64, lengths: Int64, seeds: Seeds) -> UInt64:
    """The checksum of each span of `data`, contiguous bytes, as uint64 [n].

    Args:
        starts, lengths: int64 [n], bytes.
    """
    sums = np.empty(len(lengths), np.uint64)
    floor.span_checksums(data, starts, lengths, _each(seeds), sums, threads_for(int(lengths.sum())))
    return sums


def _each(seeds: Seeds) -> UInt64:
    return np.full(1, seeds, np.uint64) if np.ndim(seeds) == 0 else np.ascontiguousarray(seeds, np.uint64)
