"""Stable sample ids of users as 128-bit keys.

The key of a str is its xxh3-128 hash. The key of an int that fits 64 bits is the int and a tag, exact and without
hashing; a larger int is hashed by its decimal digits. So 5 and "5" have different keys; np.int64(5), a torch 5 and 5
have the same one. bytes, UUIDs and tuples are hashed with seeds of their own, tuples by the keys of their parts. A path
has the key of its text with forward slashes, so that `Path("a/b")` and "a/b" are one id.
"""

import uuid
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import xxhash

from warmstore._native import floor
from warmstore.errors import BadIds, BadIdType
from warmstore.records.format.array_interop import is_tensor, to_numpy
from warmstore.storage.array_types import Bools, Int64, UInt64
from warmstore.storage.cached_property import cached_property

# High halves of int keys. A string's hash has one of them with probability 2**-64.
_SIGNED, _UNSIGNED = 0x77735F7369676E64, 0x77735F756E736967
# Seeds of hashes, so that these differ from those of strings.
_LARGE, _BYTES, _UUID, _TUPLE = 0x77735F6C61726765, 0x77735F6279746573, 0x77735F2075756964, 0x77735F7475706C65


_KINDS = "str, int, bytes, paths, UUIDs or tuples of these"


@dataclass(frozen=True)
class HashedId:
    """An id of which only the 128-bit hash is stored: a string, path, bytes, UUID, tuple or very large int.

    It can be used wherever the id itself can.

    Args:
        key: 16 bytes.
    """

    key: bytes

    @classmethod
    def of(cls, id: Any) -> "HashedId | int":
        """What `FeatureCache.keys()` gives for an id: an int for an int of 64 bits."""
        (found,) = as_keys([id]).ids()
        return found

    def __repr__(self) -> str:
        return f"HashedId({self.key.hex()})"


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

    @cached_property
    def packed(self) -> list[bytes]:
        """Each key as 16 bytes, to use in a dict."""
        return self.halves.view("V16")[:, 0].tolist()  # type: ignore[no-any-return]

    def ids(self) -> "list[int | HashedId]":
        """The ids: ints that fit 64 bits as they are, all others by their hashes."""
        tags, numbers = self.halves[:, 1], self.halves[:, 0]
        signed, unsigned = (tags == np.uint64(_SIGNED)).tolist(), (tags == np.uint64(_UNSIGNED)).tolist()
        texts = zip(numbers.view(np.int64).tolist(), numbers.tolist(), signed, unsigned, self.packed, strict=True)
        return [low if is_signed else high if is_unsigned else HashedId(packed)
                for low, high, is_signed, is_unsigned, packed in texts]  # fmt: skip


def as_keys(ids: Any) -> Keys:
    """Keys of a batch of ids.

    Args:
        ids: a list or tuple of str, int, bytes, paths, UUIDs or tuples of these, or a one-dimensional array or tensor
            of integers, strings or objects.

    Raises:
        BadIds: not a sequence, or an id is None; or as many tuples as each has parts, which may be transposed.
        BadIdType: an id is none of these.
    """
    is_list = True
    if len(shape := getattr(ids, "shape", (0,))) != 1:  # a table of pandas has its columns as items
        raise BadIds(f"cache_ids must have one dimension, one id per sample; got shape {tuple(shape)}")
    if isinstance(ids, np.ndarray) or is_tensor(ids):
        array = to_numpy(ids)
        if array.dtype.kind in "iu":
            return _from_integers(array)
        if array.dtype.kind not in "UO" and len(array):  # NumPy and torch make floats of an empty list
            raise BadIdType(f"cache_ids must be {_KINDS}; got an array of {array.dtype}")
        ids, is_list = array.tolist(), False
    if isinstance(ids, str | bytes | set | frozenset) or not hasattr(ids, "__len__"):  # a set has no order
        raise BadIds(f"cache_ids must be a list, array or tensor with one id per sample; got {ids!r:.80}")
    ids = list(ids)
    halves = np.empty((len(ids), 2), np.uint64)
    taken, small = floor.keys(ids, halves)
    if taken == len(ids):
        return Keys(halves, bool(small))
    if is_list and len(ids) > 1 and all(isinstance(value, tuple) and len(value) == len(ids) for value in ids):
        raise BadIds(
            f"cache_ids are {len(ids)} tuples of {len(ids)} parts each. PyTorch's default collate function makes such "
            "a list of the first parts of all ids, of the second parts, and so on; these are ids of no sample. Join "
            'the parts, as in f"{a}/{b}", or give an object array of tuples'
        )
    return Keys.of_halves(np.concatenate([_from_one(f"cache_ids[{at}]", value) for at, value in enumerate(ids)]))


def _from_integers(array: np.ndarray[Any, Any]) -> Keys:
    halves = np.empty((len(array), 2), np.uint64)
    if array.dtype.kind == "i" or array.itemsize < 8:
        halves.view(np.int64)[:, 0] = array
        halves[:, 1] = _SIGNED
        return Keys(halves, True)
    small = not (len(array) and int(array.max()) >= 1 << 63)
    halves[:, 0] = array
    halves[:, 1] = _SIGNED if small else np.where(array >= np.uint64(1 << 63), np.uint64(_UNSIGNED), np.uint64(_SIGNED))
    return Keys(halves, small)


def _from_one(place: str, value: Any) -> UInt64:
    """The key of one id, uint64 [1, 2]."""
    if value is None:
        raise BadIds(f"{place} is None; every sample needs a stable id")
    if is_tensor(value) and value.ndim == 0:
        value = value.item()
    if isinstance(value, HashedId):
        return np.frombuffer(value.key, np.uint64).reshape(1, 2)
    if isinstance(value, PurePath):
        value = value.as_posix()
    if isinstance(value, bytes):
        return _hashed(value, _BYTES)
    if isinstance(value, uuid.UUID):
        return _hashed(value.bytes, _UUID)
    if isinstance(value, tuple) and value:
        parts = [_from_one(f"{place}[{at}]", part).tobytes() for at, part in enumerate(value)]
        return _hashed(b"".join(parts), _TUPLE)
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer | str):
        raise BadIdType(f"{place} is {value!r:.80}, a {type(value).__name__}; ids must be {_KINDS}")
    number = value if isinstance(value, str) else int(value)
    halves = np.empty((1, 2), np.uint64)
    if floor.keys([number], halves)[0]:
        return halves
    if isinstance(number, str):
        raise BadIdType(f"{place} is {value!r:.80}, which is not valid Unicode")
    return _hashed(str(number).encode(), _LARGE)


def _hashed(data: bytes, seed: int) -> UInt64:
    return np.frombuffer(xxhash.xxh3_128_digest(data, seed), np.uint64).reshape(1, 2)
