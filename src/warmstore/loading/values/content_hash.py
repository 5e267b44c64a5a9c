"""Short hashes of samples, equal on every machine and in every process."""

import hashlib
from collections.abc import Iterable
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from warmstore.records.format.array_interop import is_tensor, to_numpy

if TYPE_CHECKING:
    from warmstore.loading.samplers.counter_rng import Int64
    from warmstore.loading.source import Source

ROWS = 64
"""The most rows that are hashed."""

_BYTES = 16
_LONG = 2**24  # numbers of a range, which take 6 s to hash one by one
_PLAIN = (str, bytes, int, float, bool, type(None))


def spread(count: int) -> "Int64":
    """Up to 64 evenly spaced rows out of `count`, with the first and the last: int64 [rows], ascending."""
    if count <= ROWS:
        return np.arange(count, dtype=np.int64)
    return np.array([at * (count - 1) // (ROWS - 1) for at in range(ROWS)], np.int64)


def hash_of_rows(source: "Source") -> str | None:
    """A hash of up to 64 rows of a source; None for objects that cannot be hashed."""
    rows = spread(len(source))
    return hash_of_values(source.read(rows)) if len(rows) else hash_of_values([])


def hash_of_values(values: Any) -> str | None:
    """A hash of arrays, text, bytes and numbers in dicts, lists and tuples; None for other objects."""
    state = hashlib.blake2b(digest_size=_BYTES)
    return state.hexdigest() if _add(state, values) else None


def hash_of_plain(values: Iterable[Any]) -> str | None:
    """A hash of all of many str, bytes, numbers or paths; None for other objects. That of a long range is of its ends
    and step."""
    if isinstance(values, range) and len(values) > _LONG:
        return hash_of_values(repr(values))
    kinds = set(map(type, values))
    state = hashlib.blake2b(digest_size=_BYTES)
    if kinds == {str}:
        lengths = np.fromiter(map(len, values), np.int64)
        state.update(b"str" + lengths.tobytes())
        state.update("".join(values).encode("utf-8", "surrogatepass"))
    elif all(kind in _PLAIN or issubclass(kind, PurePath) for kind in kinds):
        state.update("\n".join(map(_plain_text, values)).encode("utf-8", "surrogatepass"))
    else:
        return None
    return state.hexdigest()


def _plain_text(value: Any) -> str:
    return f"path {value.as_posix()!r}" if isinstance(value, PurePath) else repr(value)


def _add(state: Any, value: Any) -> bool:
    """Hash a value; False for an object that cannot be hashed."""
    if isinstance(value, dict):
        state.update(b"{%d" % len(value))
        return all(_add(state, name) and _add(state, part) for name, part in value.items())
    if isinstance(value, list | tuple):
        state.update(b"[%d" % len(value))
        return all(_add(state, part) for part in value)
    if is_tensor(value):
        value = to_numpy(value)
    if isinstance(value, np.ma.MaskedArray):
        return _add(state, value.filled(value.dtype.type(0))) and _add(state, np.ma.getmaskarray(value))
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            return _add(state, value.tolist())
        state.update(f"{value.dtype}{value.shape}".encode())
        state.update(value.tobytes())
        return True
    if isinstance(value, memoryview | bytearray):
        value = bytes(value)
    if type(value) in _PLAIN or isinstance(value, PurePath):
        text = _plain_text(value).encode("utf-8", "surrogatepass")
        state.update(b"%d:" % len(text) + text)
        return True
    return False
