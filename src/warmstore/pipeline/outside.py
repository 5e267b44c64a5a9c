"""Memory from outside a sample: parts of its value that the source, an argument, a global or a memo refers to as well.

A step that writes there changes what later samples and epochs are made from. Reading there does no harm, and is what
most steps do. So parts from outside are found, and compared with what they were before the steps ran.

They are found by counting references: the interpreter knows how many an object has, and a walk through the value knows
how many of them are the value's own.
"""

import functools
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import xxhash

from warmstore.pipeline.sharing import bounds
from warmstore.pipeline.values import names_of_parts
from warmstore.records.arrays import is_tensor, to_numpy
from warmstore.records.buffers import Lease

_SIMPLE = frozenset({int, float, complex, bool, str, bytes, type(None), type, types.FunctionType, types.ModuleType})
_CONTAINERS = (list, tuple, set, frozenset)
_MOST = 2000  # objects of a value that are looked at
_BLOCK = 1 << 16  # bytes
_LARGE = 16 << 20  # bytes of a part from which it is compared for a few samples only


def is_simple(value: Any) -> bool:
    """Whether a value is one that nobody can change, as far as its type tells."""
    return type(value) in _SIMPLE


def _references(objects: list[Any]) -> list[int]:
    return list(map(sys.getrefcount, objects))


_LISTED = _references([object()])[0]  # of an object that only such a list refers to


class Objects:
    """What can be reached from some values, and how many references to each object come from there.

    Args:
        values: the list's references to them are the values' own.
        beside: of a list that holds some of the same objects.
    """

    def __init__(self, values: list[Any], beside: "Objects | None" = None) -> None:
        self._beside = beside
        self._found: list[Any] = []
        self._references: dict[int, int] = {}
        self._direct: set[int] = set()  # ids of what more refers to than views of it
        self._below: dict[int, list[int]] = {}  # ids of what an object refers to
        self._storages: dict[int, Any] = {}  # of tensors, by what stands for their id
        self._tensors: dict[int, set[int]] = {}  # ids of those with the same storage
        self._viewed: set[int] = set()  # ids of tensors that views are of
        self._unknown: set[int] = set()  # memory of which nobody says who refers to it
        self._walk(values)

    def parts(self) -> Iterator[tuple[Any, bool]]:
        """Mutable parts in memory from outside, or perhaps from there; and whether that is certain."""
        outside = self._reached(self._referred_to())
        for part in self._found:
            if id(part) not in self._direct:
                continue
            if isinstance(part, np.ndarray) or is_tensor(part):
                chain = [id(part)]
                while below := self._below.get(chain[-1]):
                    chain += below
                certain = not outside.isdisjoint(chain)
                if (certain or not self._unknown.isdisjoint(chain)) and _can_be_written(part):
                    yield part, certain
            elif id(part) in outside and _can_be_written(part):
                yield part, True

    def _walk(self, values: list[Any]) -> None:
        known = self._known()
        todo: list[Any] = [values]
        while todo:
            at = todo.pop()
            for child in self._held_by(at):
                if type(child) in _SIMPLE:
                    continue
                self._below.setdefault(id(at), []).append(id(child))
                if self._enter(child) and len(self._found) < _MOST * max(len(values), 1):
                    todo.append(child)
                if not isinstance(at, np.ndarray):
                    self._direct.add(id(child))
                if id(at) not in known:
                    self._references[id(child)] += 1

    def _enter(self, child: Any) -> bool:
        new = id(child) not in self._references
        if new:
            self._references[id(child)] = 0
            self._found.append(child)
        return new

    def _held_by(self, at: Any) -> list[Any]:
        """The objects that an object refers to."""
        if isinstance(at, dict):
            return list(at.values())
        if isinstance(at, _CONTAINERS):
            return list(at)
        if isinstance(at, np.ndarray):
            base = at.base
            if not ((base is None and at.flags.owndata) or isinstance(base, np.ndarray | Lease) or is_tensor(base)):
                self._unknown.add(id(at))
            return [] if base is None else [base]
        if is_tensor(at):
            self._enter_storage(at)
            return []
        return list(vars(at).values()) if names_of_parts(at) else []

    def _enter_storage(self, tensor: Any) -> None:
        """A tensor refers to its storage, and a view to the tensor it is of: no references that Python counts."""
        if tensor.layout is not _strided() or tensor.device.type != "cpu":
            return
        storage = tensor.untyped_storage()
        key = -storage._cdata
        if key not in self._storages:
            self._storages[key] = storage
            self._tensors[key] = set() if self._beside is None else self._beside._tensors.get(key, set()).copy()
            if not storage.resizable():
                self._unknown.add(key)  # perhaps an array's, as of `torch.from_numpy`
        self._tensors[key].add(id(tensor))
        self._below[id(tensor)] = [key]
        viewed = tensor._base
        if viewed is None:
            return
        if self._enter(viewed):
            self._enter_storage(viewed)
        if id(viewed) not in self._viewed and (self._beside is None or id(viewed) not in self._beside._viewed):
            self._viewed.add(id(viewed))
            self._references[id(viewed)] += _references_by_views()

    def _referred_to(self) -> list[int]:
        """Ids of what is referred to from elsewhere."""
        known = self._known()
        own = [_LISTED + self._references[id(at)] + (1 + known[id(at)] if id(at) in known else 0) for at in self._found]
        counts = _references(self._found)
        found = [id(at) for at, count, mine in zip(self._found, counts, own, strict=True) if count > mine]
        return found + [
            key
            for key, storage in self._storages.items()
            if _users(storage) > len(self._tensors[key]) + 1  # `storage` itself
        ]

    def _known(self) -> dict[int, int]:
        return {} if self._beside is None else self._beside._references

    def _reached(self, found: list[int]) -> set[int]:
        reached = set(found)
        while found:
            for below in self._below.get(found.pop(), ()):
                if below not in reached:
                    reached.add(below)
                    found.append(below)
        return reached


@dataclass
class _Seen:
    """A part as it was.

    at: in the watch's list. stage: the number of steps after which it was first seen. content: None where its memory
    is within that of a part that was seen before.
    """

    at: int
    stage: int
    content: "_Bits | _Entries | None"
    certain: bool

    def differs(self, part: Any) -> bool:
        """Whether the part holds something else now."""
        return self.content is not None and self.content.differs(part)


class Watch:
    """Parts in memory from outside, as they were when they were first seen.

    values: to be looked at, to which the watch appends the parts: so it knows of every reference that is its own.

    Args:
        beside: what can be reached from the list of raw values that the sample's is one of.
        thorough: whether parts of many bytes, and memory of which nobody says who refers to it, are watched too.
        copies: whether the parts can be restored.
    """

    def __init__(
        self, values: list[Any], beside: Objects | None = None, *, thorough: bool = True, copies: bool = False
    ) -> None:
        self.values = values
        self._beside = beside
        self._thorough = thorough
        self._copies = copies
        self._seen: dict[int, _Seen] = {}
        self._bounds: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._seen)

    def look(self, stage: int) -> None:
        """See what the values share with the outside after so many steps."""
        if not _are_private(self.values, _LISTED, self._thorough):
            self.add(stage, list(Objects(self.values, self._beside).parts()))

    def add(self, stage: int, parts: list[tuple[Any, bool]]) -> None:
        """Watch parts, each with whether it is certain that it comes from outside."""
        for part, certain in parts:
            seen = self._seen.get(id(part))
            if seen is not None:
                seen.certain |= certain
            elif self._thorough or (certain and getattr(part, "nbytes", 0) < _LARGE):
                content = None if self._covers(part) else _content(part, self._copies)
                self._seen[id(part)] = _Seen(len(self.values), stage, content, certain)
                self.values.append(part)

    def _covers(self, part: Any) -> bool:
        """Whether the memory of an array or tensor is watched already; else it will be."""
        if not (isinstance(part, np.ndarray) or is_tensor(part)) or not part.nbytes:
            return False
        array = _array(part)
        low, high = bounds(array)
        if any(first <= low and high <= last for first, last in self._bounds):
            return True
        if array.flags.c_contiguous and not array.dtype.hasobject:
            self._bounds.append((low, high))
        return False

    def parts(self, *, certain: bool) -> list[Any]:
        """Those of which it is certain that they come from outside, or those of which it is not."""
        return [self.values[seen.at] for seen in self._seen.values() if seen.certain == certain]

    def decide(self, *, outside: bool) -> None:
        """Take what is not certain to come from outside, or not to."""
        self._seen = {at: seen for at, seen in self._seen.items() if seen.certain or outside}
        for seen in self._seen.values():
            seen.certain = True

    def written(self) -> list[int]:
        """The numbers of steps after which parts were first seen that have been written since, in ascending order."""
        return sorted({seen.stage for seen in self._seen.values() if seen.differs(self.values[seen.at])})

    def now(self) -> "Watch":
        """A watch of the same parts as they are now, which can restore them."""
        watch = Watch([], copies=True)
        watch.add(0, [(self.values[seen.at], seen.certain) for seen in self._seen.values()])
        return watch

    def restore(self) -> None:
        """Make all parts what they were when they were first seen."""
        for seen in reversed(self._seen.values()):
            part = self.values[seen.at]
            if seen.content is not None and seen.content.differs(part):
                seen.content.restore(part)


class _Bits:
    """What an array, tensor or bytearray holds: a hash of it, and a copy if there is to be one."""

    def __init__(self, part: Any, copy: bool) -> None:
        array = _array(part)
        self._hash = _hash(array)
        self._copy = array.copy() if copy else None

    def differs(self, part: Any) -> bool:
        """Whether it holds something else now."""
        return _hash(_array(part)) != self._hash

    def restore(self, part: Any) -> None:
        """Write the copy back."""
        assert self._copy is not None
        if isinstance(part, bytearray):
            part[:] = self._copy.tobytes()
        else:
            _array(part)[...] = self._copy


class _Entries:
    """The very objects that a container refers to, and their names where they have any."""

    def __init__(self, part: Any) -> None:
        self._names, self._entries = _entries(part)

    def differs(self, part: Any) -> bool:
        """Whether it refers to other objects now."""
        names, entries = _entries(part)
        return len(entries) != len(self._entries) or names != self._names or not all(map(is_, entries, self._entries))

    def restore(self, part: Any) -> None:
        """Have it refer to the same objects again."""
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


def _content(part: Any, copy: bool) -> _Bits | _Entries:
    if is_tensor(part) or isinstance(part, bytearray) or (isinstance(part, np.ndarray) and not part.dtype.hasobject):
        return _Bits(part, copy)
    return _Entries(part)


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
    """Of the bits of an array; block by block where they do not lie together, since a copy of all would cost more."""
    if array.flags.c_contiguous:
        return xxhash.xxh3_64_intdigest(array.reshape(-1).view(np.uint8).data)
    array = array.transpose(sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])))
    digest = xxhash.xxh3_64()
    rows = max(1, _BLOCK * len(array) // max(array.nbytes, 1))
    for first in range(0, len(array), rows):
        digest.update(np.ascontiguousarray(array[first : first + rows]).reshape(-1).view(np.uint8).data)
    return digest.intdigest()


def _are_private(values: list[Any], alone: int, thorough: bool) -> bool:
    """Whether it is plain to see that nobody else refers to some values, or to what they hold: the usual case.

    Args:
        alone: references to a value that only its holder has, while they are counted.
        thorough: see `Watch`.
    """
    if _SIMPLE.issuperset(map(type, values)):
        return True
    for value, count in zip(values, _references(values), strict=True):
        kind = type(value)
        if kind in _SIMPLE:
            continue
        if count > alone:
            return False
        if kind is np.ndarray:
            if value.base is not None or not value.flags.owndata:
                return False
        elif kind is dict or kind is list or kind is tuple:
            held = list(value.values()) if kind is dict else list(value)
            if not _are_private(held, _LISTED + 1, thorough):  # what holds them, and this list
                return False
        elif not (is_tensor(value) and _is_private_tensor(value, thorough)):
            return False
    return True


def _is_private_tensor(tensor: Any, thorough: bool) -> bool:
    if tensor.layout is not _strided() or tensor._base is not None:
        return False
    storage = tensor.untyped_storage()
    return (not thorough or storage.resizable()) and _users(storage) == 2  # the tensor and `storage`


@functools.cache
def _references_by_views() -> int:
    """How many references to a tensor Python counts for all views of it together: 1 or 0, by torch's version."""
    import torch

    view = torch.zeros(2)[1:]
    return _references([view._base])[0] - _LISTED


def _strided() -> Any:
    import torch

    return torch.strided


def _users(storage: Any) -> int:
    import torch

    return int(torch._C._storage_Use_Count(storage._cdata))


def _can_be_written(part: Any) -> bool:
    if isinstance(part, np.ndarray):
        return bool(part.flags.writeable)
    if is_tensor(part):
        return part.layout is _strided() and part.device.type == "cpu" and not part.is_quantized
    if isinstance(part, tuple):
        return False
    return isinstance(part, list | dict | set | bytearray) or bool(names_of_parts(part))
