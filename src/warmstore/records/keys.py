"""Users' stable sample ids as 128-bit keys.

A str is its xxh3-128 hash. An int that fits 64 bits is itself beside a tag, exact and without hashing; a larger one is
hashed by its decimal digits. So 5 and "5" are two keys, and np.int64(5), torch's 5 and 5 are one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from warmstore.errors import BadIds, BadIdType
from warmstore.records.arrays import is_tensor, to_numpy

Int64 = np.ndarray[Any, np.dtype[np.int64]]
UInt64 = np.ndarray[Any, np.dtype[np.uint64]]

# High halves of int keys; a string's hash equals one of them by chance once in 2**64.
_SIGNED, _UNSIGNED = 0x77735F7369676E64, 0x77735F756E736967
_LARGE = 0x77735F6C61726765  # seeds the hash, so that no string's is equal but by chance
# splitmix64's finaliser (Steele, Lea and Flood 2014).
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_STRINGS = frozenset((str, np.str_))


@dataclass(frozen=True)
class Keys:
    """n keys: uint64 [n, 2], low half first. `small` says that all are ints that fit a signed 64-bit number."""

    halves: UInt64
    small: bool

    @classmethod
    def of_halves(cls, halves: UInt64) -> "Keys":
        """Keys as they are stored."""
        return cls(halves, bool((halves[:, 1] == np.uint64(_SIGNED)).all()))

    def __len__(self) -> int:
        return len(self.halves)

    def take(self, which: Any) -> "Keys":
        return Keys(self.halves[which], self.small)

    def distinct(self) -> tuple[Int64, Int64]:
        """One place of every key, int64 [distinct]; and for each key which of those it is, int64 [n]."""
        if len(set(self.packed())) == len(self):
            return np.arange(len(self)), np.arange(len(self))
        _, first, inverse = np.unique(self.halves, axis=0, return_index=True, return_inverse=True)
        return first, inverse.reshape(-1)

    def below(self, limit: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which keys are ints from 0 to `limit` - 1."""
        below = self.halves[:, 0] < np.uint64(limit)
        return below if self.small else below & (self.halves[:, 1] == np.uint64(_SIGNED))

    def packed(self) -> list[bytes]:
        """Each key as 16 bytes, to use in a dict."""
        return self.halves.view("V16")[:, 0].tolist()  # type: ignore[no-any-return]

    def fingerprints(self) -> UInt64:
        """uint64 [n], evenly spread and never 0: where a key lies in the index."""
        low = self.halves[:, 0]
        # Over both halves; ints are not spread by themselves.
        mixed = low ^ self.halves[:, 1]
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(_FIRST)
        mixed ^= mixed >> np.uint64(27)
        mixed *= np.uint64(_SECOND)
        mixed ^= mixed >> np.uint64(31)
        np.maximum(mixed, np.uint64(1), out=mixed)
        return mixed


def numbers_of(fingerprints: UInt64) -> UInt64:
    """The non-negative int whose key has each fingerprint. Other keys' come out too, as large as chance has it."""
    mixed: UInt64 = fingerprints ^ (fingerprints >> np.uint64(31)) ^ (fingerprints >> np.uint64(62))
    mixed *= np.uint64(pow(_SECOND, -1, 1 << 64))
    mixed ^= (mixed >> np.uint64(27)) ^ (mixed >> np.uint64(54))
    mixed *= np.uint64(pow(_FIRST, -1, 1 << 64))
    mixed ^= (mixed >> np.uint64(30)) ^ (mixed >> np.uint64(60))
    mixed ^= np.uint64(_SIGNED)
    return mixed


def as_keys(ids: Any) -> Keys:
    """Keys of a batch of ids.

    Args:
        ids: a list or tuple of str or int, or a one-dimensional array or tensor of integers or strings.

    Raises:
        BadIds: not a sequence, or an id is None.
        BadIdType: an id is neither str nor int.
    """
    if isinstance(ids, np.ndarray) or is_tensor(ids):
        array = to_numpy(ids)
        if array.ndim != 1:
            raise BadIds(f"cache_ids must have one dimension, one id per sample; got shape {array.shape}")
        if array.dtype.kind in "iu":
            return _from_integers(array)
        if array.dtype.kind not in "UO":
            raise BadIdType(f"cache_ids must be str or int; got an array of {array.dtype}")
        ids = array.tolist()
    if isinstance(ids, str | bytes) or not hasattr(ids, "__len__"):
        raise BadIds(f"cache_ids must be a list, array or tensor with one id per sample; got {ids!r:.80}")
    ids = list(ids)
    kinds = set(map(type, ids))
    if kinds <= _STRINGS:
        return _from_strings(ids)
    if kinds == {int}:
        try:
            return _from_integers(np.array(ids, np.int64))
        except OverflowError:
            pass
    return Keys(np.concatenate([_from_one(at, value) for at, value in enumerate(ids)]), False)


def _from_integers(array: np.ndarray[Any, Any]) -> Keys:
    halves = np.empty((len(array), 2), np.uint64)
    if array.dtype != np.uint64:
        halves.view(np.int64)[:, 0] = array
        halves[:, 1] = _SIGNED
        return Keys(halves, True)
    small = not (len(array) and int(array.max()) >= 1 << 63)
    halves[:, 0] = array
    halves[:, 1] = _SIGNED if small else np.where(array >= np.uint64(1 << 63), np.uint64(_UNSIGNED), np.uint64(_SIGNED))
    return Keys(halves, small)


def _from_strings(ids: Sequence[str]) -> Keys:
    try:
        digests = b"".join(map(xxhash.xxh3_128_digest, map(str.encode, ids)))
    except UnicodeEncodeError as error:
        raise BadIdType(f"cache_ids has an id that is not valid Unicode: {error}") from None
    # The digest is big-endian; only equality matters.
    return Keys(np.frombuffer(digests, np.uint64).reshape(len(ids), 2), False)


def _from_one(at: int, value: Any) -> UInt64:
    if value is None:
        raise BadIds(f"cache_ids[{at}] is None; every sample needs a stable id")
    if is_tensor(value) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer | str):
        raise BadIdType(f"cache_ids[{at}] is {value!r:.80}, a {type(value).__name__}; ids must be str or int")
    if isinstance(value, str):
        return _from_strings([value]).halves
    number = int(value)
    if -(1 << 63) <= number < 1 << 64:
        return _from_integers(np.array([number], np.int64 if number < 1 << 63 else np.uint64)).halves
    return np.frombuffer(xxhash.xxh3_128_digest(str(number).encode(), _LARGE), np.uint64).reshape(1, 2)
