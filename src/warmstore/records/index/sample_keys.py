"""Stable sample ids of users as 128-bit keys.

The key of a str is its xxh3-128 hash. The key of an int that fits 64 bits is the int and a tag, exact and without
hashing; a larger int is hashed by its decimal digits. So 5 and "5" have different keys; np.int64(5), a torch 5 and 5
have the same one.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from warmstore._native import floor
from warmstore.errors import BadIds, BadIdType
from warmstore.records.format.array_interop import is_tensor, to_numpy
from warmstore.storage.array_types import Bools, Int64, UInt64

# High halves of int keys. A string's hash has one of them with probability 2**-64.
_SIGNED, _UNSIGNED = 0x77735F7369676E64, 0x77735F756E736967
_LARGE = 0x77735F6C61726765  # the seed of the hash, so that it differs from those of strings


@dataclass(frozen=True)
class Keys:
    """n keys: uint64 [n, 2], low half first. `small`: all are ints that fit a signed 64-bit number."""

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
        """The index of one occurrence of each distinct key, int64 [distinct]; and the inverse indices, int64 [n]."""
        if len(set(self.packed)) == len(self):
            return np.arange(len(self)), np.arange(len(self))
        _, first, inverse = np.unique(self.halves, axis=0, return_index=True, return_inverse=True)
        return first, inverse.reshape(-1)

    def below(self, limit: int) -> Bools:
        """Which keys are ints from 0 to `limit` - 1."""
        below = self.halves[:, 0] < np.uint64(limit)
        return below if self.small else below & (self.halves[:, 1] == np.uint64(_SIGNED))

    @functools.cached_property
    def packed(self) -> list[bytes]:
        """Each key as 16 bytes, to use in a dict."""
        return self.halves.view("V16")[:, 0].tolist()  # type: ignore[no-any-return]


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
    halves = np.empty((len(ids), 2), np.uint64)
    taken, small = floor.keys(ids, halves)
    if taken == len(ids):
        return Keys(halves, bool(small))
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


def _from_one(at: int, value: Any) -> UInt64:
    if value is None:
        raise BadIds(f"cache_ids[{at}] is None; every sample needs a stable id")
    if is_tensor(value) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer | str):
        raise BadIdType(f"cache_ids[{at}] is {value!r:.80}, a {type(value).__name__}; ids must be str or int")
    number = value if isinstance(value, str) else int(value)
    halves = np.empty((1, 2), np.uint64)
    if floor.keys([number], halves)[0]:
        return halves
    if isinstance(number, str):
        raise BadIdType(f"cache_ids[{at}] is {value!r:.80}, which is not valid Unicode")
    return np.frombuffer(xxhash.xxh3_128_digest(str(number).encode(), _LARGE), np.uint64).reshape(1, 2)
