"""Memory from outside a sample: parts of its value that the source, an argument, a global or a memo refers to as well.

A step that writes there changes what later samples and epochs are made from. Reading there does no harm, and is what
most steps do. So parts from outside are found, and compared with what they were before the steps ran.

They are found by counting references: the interpreter knows how many an object has, and a walk through the value knows
how many of them are the value's own. Memory of which nobody says who refers to it, as that of `torch.from_numpy`,
counts as from outside.
"""

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from warmstore.pipeline.tiers.sample_values import names_of_parts
from warmstore.records.format.array_interop import is_tensor
from warmstore.storage.memory.buffer_pool import Lease

_SCALARS = {np.dtype(code).type for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?mM"}
_SIMPLE = frozenset(
    {int, float, complex, bool, str, bytes, type(None), type, types.FunctionType, types.ModuleType, *_SCALARS}
)
_CONTAINERS = (list, tuple, set, frozenset)
_MOST = 2000  # objects of a value that are looked at


def is_simple(value: Any) -> bool:
    """Whether a value is one that nobody can change, as far as its type tells."""
    return type(value) in _SIMPLE


def _references(objects: list[Any]) -> list[int]:
    return list(map(sys.getrefcount, objects))


_LISTED = _references([object()])[0]  # of an object that only such a list refers to


def are_private(values: list[Any], beside: "ReachableObjects | None" = None, alone: int | None = None) -> bool:
    """Whether it is plain to see that nobody else refers to some values, or to what they hold: the usual case.

    Args:
        beside: see `ReachableObjects`.
        alone: references to a value that only its holder has, while they are counted.
    """
    if _SIMPLE.issuperset(map(type, values)):
        return True
    known = beside.references if beside is not None and beside.are_private else {}
    alone = _LISTED if alone is None else alone
    for value, count in zip(values, _references(values), strict=True):
        kind = type(value)
        if kind in _SIMPLE:
            continue
        is_known = id(value) in known
        if count > alone + (1 + known[id(value)] if is_known else 0):
            return False
        if kind is np.ndarray:
            if not (value.flags.owndata or (value.base is not None and id(value.base) in known)):
                return False
        elif kind is dict or kind is list or kind is tuple:
            held = list(value.values()) if kind is dict else list(value)
            # They are referred to by this list, and by what holds them, unless that is known.
            if not are_private(held, beside, _LISTED + (not is_known)):
                return False
        elif not (is_tensor(value) and _is_private_tensor(value)):
            return False
    return True


def _is_private_tensor(tensor: Any) -> bool:
    if tensor.layout is not _strided() or tensor._base is not None:
        return False
    storage = tensor.untyped_storage()
    return storage.resizable() and _users(storage) == 2  # the tensor and `storage`


class ReachableObjects:
    """What can be reached from some values, and how many references to each object come from there.

    references: by id. are_private: nobody else refers to any of it; not asked of values beside others.

    Args:
        values: the list's references to them are the values' own.
        beside: of a list that holds some of the same objects.
    """

    def __init__(self, values: list[Any], beside: "ReachableObjects | None" = None) -> None:
        self._beside = beside
        self._found: list[Any] = []
        self.references: dict[int, int] = {}
        self._direct: set[int] = set()  # ids of what more refers to than views of it
        self._below: dict[int, list[int]] = {}  # ids of what an object refers to
        self._storages: dict[int, Any] = {}  # of tensors, by what stands for their id
        self._tensors: dict[int, set[int]] = {}  # ids of those with the same storage
        self._viewed: set[int] = set()  # ids of tensors that views are of
        self._unknown: set[int] = set()  # memory of which nobody says who refers to it
        self._walk(values)
        self.are_private = beside is None and next(self.parts(), None) is None

    def parts(self) -> Iterator[Any]:
        """Mutable parts in memory from outside, or perhaps from there."""
        outside = self._reached(self._referred_to()) | self._unknown
        for part in self._found:
            if id(part) not in self._direct:
                continue
            if isinstance(part, np.ndarray) or is_tensor(part):
                chain = [id(part)]
                while below := self._below.get(chain[-1]):
                    chain += below
                if not outside.isdisjoint(chain) and _can_be_written(part):
                    yield part
            elif id(part) in outside and _can_be_written(part):
                yield part

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
                    self.references[id(child)] += 1

    def _enter(self, child: Any) -> bool:
        new = id(child) not in self.references
        if new:
            self.references[id(child)] = 0
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
            self.references[id(viewed)] += _references_by_views()

    def _referred_to(self) -> list[int]:
        """Ids of what is referred to from elsewhere."""
        known = self._known()
        own = [_LISTED + self.references[id(at)] + (1 + known[id(at)] if id(at) in known else 0) for at in self._found]
        counts = _references(self._found)
        found = [id(at) for at, count, mine in zip(self._found, counts, own, strict=True) if count > mine]
        return found + [
            key
            for key, storage in self._storages.items()
            if _users(storage) > len(self._tensors[key]) + 1  # `storage` itself
        ]

    def _known(self) -> dict[int, int]:
        return {} if self._beside is None else self._beside.references

    def _reached(self, found: list[int]) -> set[int]:
        reached = set(found)
        while found:
            for below in self._below.get(found.pop(), ()):
                if below not in reached:
                    reached.add(below)
                    found.append(below)
        return reached


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
    """How many tensors have a storage, and one more; very many where torch does not say."""
    import torch

    count = getattr(torch._C, "_storage_Use_Count", None)
    return sys.maxsize if count is None else int(count(storage._cdata))


def _can_be_written(part: Any) -> bool:
    if isinstance(part, np.ndarray):
        return bool(part.flags.writeable)
    if is_tensor(part):
        return part.layout is _strided() and part.device.type == "cpu" and not part.is_quantized
    if isinstance(part, tuple):
        return False
    return isinstance(part, list | dict | set | bytearray) or bool(names_of_parts(part))
