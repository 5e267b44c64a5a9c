"""Counter-based random numbers: each draw is a function of its place in the epoch.

No earlier draws are needed, so a loader resumes at any step and on any rank at no cost.
"""

import hashlib
import struct
from typing import Any

import numpy as np

Int64 = np.ndarray[Any, np.dtype[np.int64]]
UInt64 = np.ndarray[Any, np.dtype[np.uint64]]

MOST_SEED = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(2**32 - 1)


def derive_keys(kind: str, seed: int, epoch: int, n: int) -> UInt64:
    """Eight 64-bit keys, uint64 [8], for one epoch of a sampler: BLAKE2b of (seed, epoch, n), personalised by the kind.

    A cryptographic hash makes the keys of adjacent seeds and epochs independent.
    """
    hashed = hashlib.blake2b(struct.pack("<QQQ", seed, epoch, n), person=kind.encode())
    return np.frombuffer(hashed.digest(), "<u8").astype(np.uint64)


def random_bits(places: UInt64, key: np.uint64) -> UInt64:
    """64 random bits for each place: uint64 [m] for uint64 [m].

    SplitMix64 at state key + (place + 1) * golden ratio: Steele, Lea, Flood, "Fast splittable pseudorandom number
    generators" (OOPSLA 2014), with the constants of Vigna's splitmix64.c, which passes BigCrush.
    """
    state = places * np.uint64(_GOLDEN)
    state += np.uint64((int(key) + _GOLDEN) % 2**64)
    shifted = state >> np.uint64(30)
    state ^= shifted
    state *= _MULTIPLIER
    np.right_shift(state, np.uint64(27), out=shifted)
    state ^= shifted
    state *= _SECOND_MULTIPLIER
    np.right_shift(state, np.uint64(31), out=shifted)
    state ^= shifted
    return state


def bounded(drawn: UInt64, bound: int) -> UInt64:
    """Draws scaled to [0, bound): floor(drawn * bound / 2**64), for a bound of at most 2**62.

    Multiply and shift: Lemire, "Fast random integer generation in an interval" (ACM TOMACS 29, 2019), without the
    rejection. Each value's probability is 1 / bound within a factor of 1 ± bound / 2**64, 1 ± 2e-10 for 2**32.
    """
    high_bound, low_bound = np.uint64(bound >> 32), np.uint64(bound & 0xFFFFFFFF)
    high, low = drawn >> _HALF, drawn & _LOW_HALF
    # The upper 64 bits of the 128-bit product, from 32-bit halves. Each sum is below 2**64.
    middle = low * low_bound
    middle >>= _HALF
    middle += high * low_bound
    if not high_bound:
        middle >>= _HALF
        return middle
    low *= high_bound
    low += middle & _LOW_HALF
    high *= high_bound
    high += middle >> _HALF
    high += low >> _HALF
    return high
