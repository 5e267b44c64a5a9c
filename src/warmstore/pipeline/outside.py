"""Memory from outside a sample: parts of its value that the source, an argument, a global or a memo refers to as well.

A step that writes there changes what later samples and epochs are made from. Reading there does no harm, and is what
most steps do. So parts from outside are found, and compared with what they were before the steps ran.

They are found by counting references: the interpreter knows how many an object has, and a walk through the value knows
how many of them are the value's own.
"""

import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np

from warmstore.pipeline.values import names_of_parts
from warmstore.records.arrays import is_tensor, to_numpy
from warmstore.records.buffers import Lease

_SIMPLE = frozenset({int, float, complex, bool, str, bytes, type(None), type, types.FunctionType, types.ModuleType})
_CONTAINERS = (list, tuple, set, frozenset)
_MOST = 2000  # objects of a value that are looked at
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
        self._below: dict[int, list[int]] = {}  # ids of what an object refers to
        self._storages: dict[int, Any] = {}  # of tensors, by what stands for their id
        self._tensors: dict[int, set[int]] = {}  # ids of those with the same storage
        self._unknown: set[int] = set()  # memory of which nobody says who refers to it
        self._walk(values)

    def parts(self) -> Iterator[tuple[Any, bool]]:
        """Mutable parts in memory from outside, or perhaps from there; and whether that is certain."""
        outside = self._reached(self._referred_to())
        for part in self._found:
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
        import torch

        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            return
        storage = tensor.untyped_storage()
        key = -storage._cdata
        if key not in self._storages:
            self._storages[key] = storage
            self._tensors[key] = set() if self._beside is None else self._beside._tensors.get(key, set()).copy()
            if not storage.resizable():
                self._unknown.add(key)  # of `torch.from_numpy`, for example
        self._tensors[key].add(id(tensor))
        self._below[id(tensor)] = [key]
        viewed = tensor._base
        if viewed is not None and self._enter(viewed):
            self._enter_storage(viewed)

    def _referred_to(self) -> list[int]:
        """Ids of what is referred to from elsewhere."""
        known = self._known()
        own = [_LISTED + self._references[id(at)] + (1 + known[id(at)] if id(at) in known else 0) for at in self._found]
        counts = _references(self._found)
        found = [id(at) for at, count, mine in zip(self._found, counts, own, strict=True) if count > mine]
        return found + [
            key
            for key, storage in self._storages.items()
            if key not in self._unknown and _users(storage) > len(self._tensors[key]) + 1  # `storage` itself
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
    """A part as it was. at: in the watch's list. stage: of the steps after which it was first seen."""

    at: int
    stage: int
    content: Any
    certain: bool


class Watch:
    """Parts in memory from outside, as they were when they were first seen.

    values: to be looked at, to which the watch appends the parts: so it knows of every reference that is its own.

    Args:
        beside: what can be reached from the list of raw values that the sample's is one of.
        large: whether parts of many bytes are compared too.
    """

    def __init__(self, values: list[Any], beside: Objects | None = None, *, large: bool = True) -> None:
        self.values = values
        self._beside = beside
        self._large = large
        self._seen: dict[int, _Seen] = {}

    def __bool__(self) -> bool:
        return bool(self._seen)

    def look(self, stage: int) -> None:
        """See what the values share with the outside after so many steps."""
        if not _are_private(self.values):
            self.add(stage, list(Objects(self.values, self._beside).parts()))

    def add(self, stage: int, parts: list[tuple[Any, bool]]) -> None:
        """Watch parts, each with whether it is certain that it comes from outside."""
        for part, certain in parts:
            seen = self._seen.get(id(part))
            if seen is not None:
                seen.certain |= certain
            elif self._large or _nbytes(part) < _LARGE:
                self._seen[id(part)] = _Seen(len(self.values), stage, _content(part), certain)
                self.values.append(part)

    def parts(self, *, certain: bool) -> list[Any]:
        """Those of which it is certain that they come from outside, or those of which it is not."""
        return [self.values[seen.at] for seen in self._seen.values() if seen.certain == certain]

    def decide(self, *, outside: bool) -> None:
        """Take what is not certain to come from outside, or not to."""
        self._seen = {at: seen for at, seen in self._seen.items() if seen.certain or outside}
        for seen in self._seen.values():
            seen.certain = True

    def written(self) -> int | None:
        """The first stage after which a part was seen that has been written since; None if none has."""
        stages = [seen.stage for seen in self._seen.values() if _differs(self.values[seen.at], seen.content)]
        return min(stages, default=None)

    def again(self) -> "Watch":
        """A watch of the same parts, as they are now."""
        watch = Watch([])
        watch.add(0, [(self.values[seen.at], seen.certain) for seen in self._seen.values()])
        return watch

    def restore(self) -> None:
        """Make all parts what they were when they were first seen."""
        for seen in reversed(self._seen.values()):
            if _differs(self.values[seen.at], seen.content):
                _restore(self.values[seen.at], seen.content)


def _users(storage: Any) -> int:
    import torch

    return int(torch._C._storage_Use_Count(storage._cdata))


def _are_private(values: list[Any]) -> bool:
    """Whether it is plain to see that nobody else refers to some values: the usual case."""
    counts = _references(values)
    return all(
        type(value) in _SIMPLE
        or (type(value) is np.ndarray and value.base is None and value.flags.owndata and count == _LISTED)
        for value, count in zip(values, counts, strict=True)
    )


def _can_be_written(part: Any) -> bool:
    if isinstance(part, np.ndarray):
        return bool(part.flags.writeable)
    if is_tensor(part):
        return part.device.type == "cpu" and not part.is_sparse and not part.is_quantized
    if isinstance(part, tuple):
        return False
    return isinstance(part, list | dict | set | bytearray) or bool(names_of_parts(part))


def _nbytes(part: Any) -> int:
    return int(getattr(part, "nbytes", 0))


def _content(part: Any) -> Any:
    """What a part holds: bits of arrays; the objects themselves that containers refer to."""
    if isinstance(part, np.ndarray):
        return part.copy()
    if is_tensor(part):
        return _array(part).copy()
    if isinstance(part, dict):
        return list(part.items())
    if isinstance(part, bytearray):
        return bytes(part)
    return list(part) if isinstance(part, list | set) else list(vars(part).items())


def _differs(part: Any, content: Any) -> bool:
    if isinstance(part, np.ndarray):
        return not _is_equal(part, content)
    if is_tensor(part):
        return not _is_equal(_array(part), content)
    if isinstance(part, bytearray):
        return bool(part != content)
    now = _content(part)
    if len(now) != len(content):
        return True
    if now and isinstance(part, list | set):
        return not all(map(is_, now, content))
    return any(key != name or value is not old for (key, value), (name, old) in zip(now, content, strict=True))


def _restore(part: Any, content: Any) -> None:
    if isinstance(part, np.ndarray):
        part[...] = content
    elif is_tensor(part):
        _array(part)[...] = content
    elif isinstance(part, list | bytearray):
        part[:] = content
    else:
        held: Any = part if isinstance(part, dict | set) else vars(part)
        held.clear()
        held.update(content)


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    return to_numpy(tensor.detach())


def _is_equal(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays of one dtype are equal bit for bit."""
    if one.shape != other.shape:
        return False
    if one.dtype.hasobject or one.dtype.itemsize not in (1, 2, 4, 8):
        return one.tobytes() == other.tobytes()
    bits = f"u{one.dtype.itemsize}"
    return bool((one.view(bits) == other.view(bits)).all())
