"""A checksum for every row: xxh3-64 of its bytes, seeded so that it is good in one place only.

The seed of a batch is made of the store's id, the generation, the chunk's number and the place in the chunk, so what
was put in another's place matches nothing. Rows of at most 128 bytes, labels and keys above all, are hashed all at
once: a call for each would cost more than everything else about them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
UInt64 = np.ndarray[Any, np.dtype[np.uint64]]
Seeds = UInt64 | int
"""One seed for all rows, or uint64 [n]."""

_ABSENT = 0x746E657362410A00
_BLOCK = 1 << 14  # rows at a time, so that what is computed on the way stays in the processor's cache
_SHORT = 128
_digest = xxhash.xxh3_64_intdigest

# xxh3's default secret, as far as inputs of up to 128 bytes use it: https://github.com/Cyan4973/xxHash, xxhash.h
_SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
        "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d"
        "8a51e04bcdb45931c89f7ec9d9787364"
    ),
    np.uint64,
)
_PRIME_1 = 0x9E3779B185EBCA87
_MIX = np.uint64(0x9FB21C651E98DF25)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_MX1 = np.uint64(0x165667919E3779F9)
_LOW = np.uint64(0xFFFFFFFF)


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
    data = np.ascontiguousarray(data)
    if width > _SHORT:
        return view_checksums(
            data, None, seeds
        )  # rows are arrays; thousands of memoryviews start the garbage collector
    sums = np.empty(count, np.uint64)
    all_seeds = np.broadcast_to(np.asarray(seeds, np.uint64), count)
    for first in range(0, count, _BLOCK):
        part = slice(first, first + _BLOCK)
        sums[part] = _short(data[part], all_seeds[part])
    return sums


def view_checksums(views: Sequence[Any] | Bytes, shapes: Any, seeds: Seeds) -> UInt64:
    """The checksum of each bytes-like, as uint64 [n].

    Args:
        shapes: int64 [n, ndim], the shape of each row, whose own checksum is the row's seed then; or None.
    """
    if shapes is not None:
        data: Bytes = np.ascontiguousarray(shapes, np.int64).view(np.uint8)
        seeds = matrix_checksums(data.reshape(len(views), 8 * shapes.shape[1]), seeds)
    if isinstance(seeds, int):
        return np.array([_digest(view, seeds) for view in views], np.uint64)
    return np.array([_digest(view, seed) for view, seed in zip(views, seeds.tolist(), strict=True)], np.uint64)


def _short(rows: Bytes, seeds: UInt64) -> UInt64:
    """xxh3-64 of rows of one width up to 128, as its source has it for each range of lengths."""
    width = rows.shape[1]
    if not width:
        return _avalanche_64(seeds ^ (_SECRET[7] ^ _SECRET[8]))
    if width <= 3:
        one, two, three = (rows[:, at].astype(np.uint64) for at in (0, width >> 1, width - 1))
        combined = (one << np.uint64(16)) | (two << np.uint64(24)) | three | np.uint64(width << 8)
        return _avalanche_64(combined ^ (((_SECRET[0] & _LOW) ^ (_SECRET[0] >> np.uint64(32))) + seeds))
    if width <= 8:
        first, last = _words(rows, "<u4", 0), _words(rows, "<u4", width - 4)
        seeds = seeds ^ ((seeds & _LOW).astype(np.uint32).byteswap().astype(np.uint64) << np.uint64(32))
        mixed = (last + (first << np.uint64(32))) ^ ((_SECRET[1] ^ _SECRET[2]) - seeds)
        mixed ^= _rotated(mixed, 49) ^ _rotated(mixed, 24)
        mixed *= _MIX
        mixed ^= (mixed >> np.uint64(35)) + np.uint64(width)
        mixed *= _MIX
        return _folded(mixed, 28)
    if width > 16:
        total: UInt64 = np.full(len(rows), width * _PRIME_1 % 2**64, np.uint64)
        for pair in range((width - 1) // 32 + 1):
            total += _mixed_16(rows, 16 * pair, 4 * pair, seeds)
            total += _mixed_16(rows, width - 16 * (pair + 1), 4 * pair + 2, seeds)
        return _avalanche(total)
    low = _words(rows, "<u8", 0) ^ ((_SECRET[3] ^ _SECRET[4]) + seeds)
    high = _words(rows, "<u8", width - 8) ^ ((_SECRET[5] ^ _SECRET[6]) - seeds)
    return _avalanche(low.byteswap() + high + _folded_product(low, high) + np.uint64(width))


def _mixed_16(rows: Bytes, offset: int, secret: int, seeds: UInt64) -> UInt64:
    low = _words(rows, "<u8", offset) ^ (_SECRET[secret] + seeds)
    high = _words(rows, "<u8", offset + 8) ^ (_SECRET[secret + 1] - seeds)
    return _folded_product(low, high)


def _words(rows: Bytes, dtype: str, offset: int) -> UInt64:
    """The number that starts at a byte of every row."""
    words: UInt64 = np.ndarray((len(rows),), dtype, rows.data, offset, (rows.shape[1],)).astype(np.uint64)
    return words


def _rotated(values: UInt64, bits: int) -> UInt64:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _folded_product(one: UInt64, other: UInt64) -> UInt64:
    """The low half of the 128-bit product xor the high half."""
    half = np.uint64(32)
    one_low, one_high, other_low, other_high = one & _LOW, one >> half, other & _LOW, other >> half
    low, cross = one_low * other_low, one_high * other_low
    middle = (low >> half) + (cross & _LOW) + one_low * other_high
    product: UInt64 = (one * other) ^ ((cross >> half) + (middle >> half) + one_high * other_high)
    return product


def _folded(values: UInt64, bits: int) -> UInt64:
    folded: UInt64 = values ^ (values >> np.uint64(bits))
    return folded


def _avalanche(values: UInt64) -> UInt64:
    values = _folded(values, 37) * _PRIME_MX1
    return _folded(values, 32)


def _avalanche_64(values: UInt64) -> UInt64:
    values = _folded(values, 33) * _PRIME_2
    values = _folded(values, 29) * _PRIME_3
    return _folded(values, 32)
