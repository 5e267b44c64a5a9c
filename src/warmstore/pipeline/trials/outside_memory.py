"""Outside memory of a sample: parts of its value that the source, an argument, a global or a memo refers to as well.

A step that writes to outside memory changes the inputs of later samples and epochs. Most steps only read it, which is
harmless. So parts in outside memory are found, and compared before and after the steps run.

They are found by reference counts: a part is outside if the interpreter counts more references to it than a walk
through the value finds. Memory with unknown owners, such as that of `torch.from_numpy`, counts as outside.
"""

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from warmstore.pipeline.encoders.held import held_by
from warmstore.pipeline.encoders.registry import REGISTRY
from warmstore.pipeline.tiers.flattening import has_plain_parts
from warmstore.records.format.array_interop import is_tensor
from warmstore.storage.memory.buffer_pool import Lease

_SCALARS = {np.dtype(code).type for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?mM"}
_SIMPLE = frozenset(
    {int, float, complex, bool, str, bytes, type(None), type, types.FunctionType, types.ModuleType, *_SCALARS}
)
_CONTAINERS = (list, tuple, set, frozenset)
_MOST = 2000  # objects visited per value


def is_simple(value: Any) -> bool:
    """Whether a value is immutable by its type."""
    return type(value) in _SIMPLE


def _references(objects: list[Any]) -> list[int]:
    return list(map(sys.getrefcount, objects))


_LISTED = _references([object()])[0]  # of an object that only a list refers to


def are_private(values: list[Any], beside: "ReachableObjects | None" = None, alone: int | None = None) -> bool:
    """A quick check that nothing else refers to some values or to their contents: the usual case.

    Args:
        beside: see `ReachableObjects`.
        alone: the reference count of a value that only its container refers to.
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
            if value.dtype.hasobject or not (
                value.flags.owndata or (value.base is not None and id(value.base) in known)
            ):
                return False
        elif kind is dict or kind is list or kind is tuple:
            children = list(value.values()) if kind is dict else list(value)
            # `children` refers to them, and so does `value`, whose references are counted already if it is known.
            if not are_private(children, beside, _LISTED + (not is_known)):
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
    """The objects reachable from some values, and how many references to each are internal.

    references: counts by id. are_private: nothing else refers to the objects; False if `beside` is given.

    Args:
        values: the references of this list are internal.
        beside: the reachable objects of a list with some of the same values.
    """

    def __init__(self, values: list[Any], beside: "ReachableObjects | None" = None) -> None:
        self._beside = beside
        self._found: list[Any] = []
        self.references: dict[int, int] = {}
        self._direct: set[int] = set()  # ids of objects that more than their views refer to
        self._below: dict[int, list[int]] = {}  # ids of the objects that an object refers to
        self._storages: dict[int, Any] = {}  # of tensors, by a key in place of an id
        self._tensors: dict[int, set[int]] = {}  # ids of tensors by storage
        self._viewed: set[int] = set()  # ids of tensors that have views
        self._unknown: set[int] = set()  # ids of memory with unknown owners
        self._walk(values)
        self.are_private = beside is None and next(self.parts(), None) is None

    def parts(self) -> Iterator[Any]:
        """Mutable parts in outside memory, or possibly in outside memory."""
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
                if not (isinstance(at, np.ndarray) and child is at.base):
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
        if REGISTRY.of(type(at)) is not None and not isinstance(at, np.ndarray):
            return held_by(at)
        if isinstance(at, dict):
            return list(at.values())
        if isinstance(at, _CONTAINERS):
            return list(at)
        if isinstance(at, np.ndarray):
            base = at.base
            if not ((base is None and at.flags.owndata) or isinstance(base, np.ndarray | Lease) or is_tensor(base)):
                self._unknown.add(id(at))
            mask = np.ma.getmask(at)
            held = [] if mask is np.ma.nomask else [mask]
            if base is not None:
                return [*held, base]
            return held + list(at.flat) if at.dtype.hasobject and at.flags.owndata else held
        if is_tensor(at):
            self._enter_storage(at)
            return []
        return list(vars(at).values()) if has_plain_parts(at) else []

    def _enter_storage(self, tensor: Any) -> None:
        """Record references that Python does not count: tensor to storage, view to viewed tensor."""
        if tensor.layout is not _strided() or tensor.device.type != "cpu":
            return
        storage = tensor.untyped_storage()
        key = -storage._cdata
        if key not in self._storages:
            self._storages[key] = storage
            self._tensors[key] = set() if self._beside is None else self._beside._tensors.get(key, set()).copy()
            if not storage.resizable():
                self._unknown.add(key)  # may be an array's, as with `torch.from_numpy`
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
        """Ids of objects that something else refers to."""
        known = self._known()
        expected = [
            _LISTED + self.references[id(at)] + (1 + known[id(at)] if id(at) in known else 0) for at in self._found
        ]
        counts = _references(self._found)
        found = [id(at) for at, count, most in zip(self._found, counts, expected, strict=True) if count > most]
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
    """References to a tensor that Python counts for all its views together: 1 or 0, by torch's version."""
    import torch

    view = torch.zeros(2)[1:]
    return _references([view._base])[0] - _LISTED


def _strided() -> Any:
    import torch

    return torch.strided


def _users(storage: Any) -> int:
    """The number of tensors on a storage plus one; `sys.maxsize` if torch does not report it."""
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
    encoder = REGISTRY.of(type(part))
    if encoder is not None:
        return encoder.is_mutable
    return isinstance(part, list | dict | set | bytearray) or has_plain_parts(part)
