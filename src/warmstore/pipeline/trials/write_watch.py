"""Finds writes to parts of a sample in outside memory, and undoes them."""

from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import xxhash

from warmstore.errors import UnsupportedType
from warmstore.pipeline.encoders.registry import REGISTRY
from warmstore.pipeline.tiers.flattening import flatten, to_bytes
from warmstore.pipeline.tiers.unflattening import from_bytes
from warmstore.pipeline.trials.outside_memory import ReachableObjects, are_private
from warmstore.records.format.array_interop import is_tensor, to_numpy
from warmstore.tree.shared_buffers import bounds

_BLOCK = 1 << 16  # bytes
_LARGE = 16 << 20  # bytes; a part this large is compared for a few samples only


@dataclass
class _Seen:
    """A part when it was first seen.

    at: its index in the watch's list. stage: the number of steps after which it was first seen. content: None if it is
    not compared.
    """

    at: int
    stage: int
    content: "_SavedBits | _Encoded | _Entries | None"

    def differs(self, part: Any) -> bool:
        """Whether the part has changed."""
        return self.content is not None and self.content.differs(part)


class WriteWatch:
    """Parts in outside memory, with their contents when they were first seen.

    values: to be watched. The watch appends the parts, so that all its references are in this list.
    has_large: whether a large part was seen.

    Args:
        beside: objects reachable from the raw values of the batch.
        large: whether large parts are compared too.
        copies: whether the parts can be restored.
    """

    def __init__(
        self,
        values: list[Any],
        beside: ReachableObjects | None = None,
        *,
        large: bool = True,
        copies: bool = False,
    ) -> None:
        self.values = values
        self.has_large = False
        self._beside = beside
        self._large = large
        self._copies = copies
        self._seen: dict[int, _Seen] = {}
        self._bounds: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._seen)

    def look(self, stage: int) -> None:
        """Watch the parts in outside memory after `stage` steps."""
        if not are_private(self.values, self._beside):
            self.add(stage, list(ReachableObjects(self.values, self._beside).parts()))

    def add(self, stage: int, parts: list[Any]) -> None:
        """Watch parts."""
        for part in parts:
            if id(part) not in self._seen:
                content = _content(part, self._copies) if self._is_compared(part) else None
                self._seen[id(part)] = _Seen(len(self.values), stage, content)
                self.values.append(part)

    def _is_compared(self, part: Any) -> bool:
        """Whether to compare a part: never inside the memory of another part, not always if it is large."""
        if not (isinstance(part, np.ndarray) or is_tensor(part)):
            return True
        array = _array(part)
        low, high = bounds(array)
        is_large = array.nbytes >= _LARGE
        self.has_large |= is_large
        if (is_large and not self._large) or any(first <= low and high <= last for first, last in self._bounds):
            return False
        if array.size and array.flags.c_contiguous and not array.dtype.hasobject:
            self._bounds.append((low, high))
        return True

    @property
    def parts(self) -> list[Any]:
        """The watched parts."""
        return [self.values[seen.at] for seen in self._seen.values()]

    def written(self) -> list[int]:
        """The stages at which parts were first seen that have been written since, ascending."""
        return sorted({seen.stage for seen in self._seen.values() if seen.differs(self.values[seen.at])})

    def now(self) -> "WriteWatch":
        """A watch of the same parts as they are now, which can restore them."""
        watch = WriteWatch([], copies=True)
        watch.add(0, self.parts)
        return watch

    def restore(self) -> None:
        """Give all parts the contents with which they were first seen."""
        for seen in reversed(self._seen.values()):
            part = self.values[seen.at]
            if seen.content is not None and seen.content.differs(part):
                seen.content.restore(part)


class _SavedBits:
    """The content of an array, tensor or bytearray: a hash, and a copy if asked for."""

    def __init__(self, part: Any, copy: bool) -> None:
        array = _array(part)
        self._hash = _hash(array)
        self._copy = array.copy() if copy else None
        self._mask = np.ma.getmask(part)  # whose bits are a part of their own

    def differs(self, part: Any) -> bool:
        """Whether the part has changed."""
        return np.ma.getmask(part) is not self._mask or _hash(_array(part)) != self._hash

    def restore(self, part: Any) -> None:
        """Write the copy back."""
        assert self._copy is not None
        if isinstance(part, bytearray):
            part[:] = self._copy.tobytes()
        else:
            _array(part)[...] = self._copy
        if np.ma.getmask(part) is not self._mask:
            part._mask = self._mask


class _Encoded:
    """The content of an object with an encoder: a hash, and a copy if asked for."""

    def __init__(self, part: Any, copy: bool) -> None:
        data = to_bytes(*flatten(part))
        self._hash = xxhash.xxh3_128_digest(data)
        self._copy = from_bytes(data) if copy else None

    def differs(self, part: Any) -> bool:
        """Whether the object has changed."""
        try:
            return xxhash.xxh3_128_digest(to_bytes(*flatten(part))) != self._hash
        except UnsupportedType:
            return True

    def restore(self, part: Any) -> None:
        """Give the object the attributes of the copy, if it has attributes by name."""
        if self._copy is None:
            return
        for name in vars(part).keys() - vars(self._copy).keys():
            delattr(part, name)
        vars(part).update(vars(self._copy))


class _Entries:
    """The objects that a container refers to, and their names if they have any."""

    def __init__(self, part: Any) -> None:
        self._names, self._entries = _entries(part)

    def differs(self, part: Any) -> bool:
        """Whether the container refers to other objects now."""
        names, entries = _entries(part)
        return len(entries) != len(self._entries) or names != self._names or not all(map(is_, entries, self._entries))

    def restore(self, part: Any) -> None:
        """Make the container refer to the same objects again."""
        if isinstance(part, np.ndarray):
            for at, entry in enumerate(self._entries):
                part.flat[at] = entry
        elif isinstance(part, list):
            part[:] = self._entries
        elif isinstance(part, set):
            part.clear()
            part.update(self._entries)
        else:
            held = part if isinstance(part, dict) else vars(part)
            held.clear()
            held.update(zip(self._names, self._entries, strict=True))


def _content(part: Any, copy: bool) -> _SavedBits | _Encoded | _Entries | None:
    if is_tensor(part) or isinstance(part, bytearray) or (isinstance(part, np.ndarray) and not part.dtype.hasobject):
        return _SavedBits(part, copy)
    if REGISTRY.of(type(part)) is None:
        return _Entries(part)
    try:
        return _Encoded(part, copy and hasattr(part, "__dict__"))
    except UnsupportedType:
        return None  # then the sample is not kept


def _entries(part: Any) -> tuple[list[Any], list[Any]]:
    if isinstance(part, np.ndarray):
        return [], part.ravel().tolist()
    if isinstance(part, list | set):
        return [], list(part)
    held = part if isinstance(part, dict) else vars(part)
    return list(held), list(held.values())


def _array(part: Any) -> np.ndarray[Any, Any]:
    """The memory of an array, tensor or bytearray."""
    return to_numpy(part.detach() if is_tensor(part) else part)


def _hash(array: np.ndarray[Any, Any]) -> int:
    """A hash of an array's bits. A strided array is copied block by block, which is cheaper than as a whole."""
    if array.flags.c_contiguous:
        return xxhash.xxh3_64_intdigest(array.reshape(-1).view(np.uint8).data)
    array = array.transpose(sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])))
    digest = xxhash.xxh3_64()
    rows = max(1, _BLOCK * len(array) // max(array.nbytes, 1))
    for first in range(0, len(array), rows):
        digest.update(np.ascontiguousarray(array[first : first + rows]).reshape(-1).view(np.uint8).data)
    return digest.intdigest()
