"""What a watch compares: the state of all containers, variables, tensors and arrays that a walk has read.

A quick check compares what a look at pointers and versions shows. An exact one also compares what takes longer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter, call, is_, itemgetter, methodcaller
from types import MappingProxyType
from typing import Any

import numpy as np

from warmstore.identity.object_state import pointers
from warmstore.identity.plain_data import nbytes_of

LEFT = "left by a call"
"""The text of a tensor or array that a call of the library has made or written to."""

SMALL = 1 << 20
"""Bytes. Every walk and every exact check hashes arrays up to this size."""

_LARGE = 1 << 14  # items. Only exact checks compare the items of larger containers; others compare their lengths
_REMADE = frozenset((int, str, bytes))  # types of values that are the same where they are equal

_version_of, _strides_of, _shape_of = attrgetter("_version"), methodcaller("stride"), attrgetter("shape")
form_of = attrgetter("shape", "strides", "dtype", "flags.writeable")  # what an array is beside its content

Make = Callable[[Any], str]


@dataclass
class WatchedContent:
    """A tensor or array, its stamp, which changes when torch writes to it, and its text."""

    value: Any
    stamp: Any
    text: str
    make: Make
    form: Any
    is_known: bool = True


@dataclass
class Added:
    """The containers, objects and variables that a walk has added to a watch; see the `add` methods of `Watch`."""

    containers: list[Collection[Any]] = field(default_factory=list)
    items: list[tuple[Mapping[str, Any], tuple[str, ...]]] = field(default_factory=list)
    objects: list[Any] = field(default_factory=list)
    cells: list[Callable[[], Any]] = field(default_factory=list)
    probes: list[Callable[[], Any]] = field(default_factory=list)
    empty: list[dict[str, Any]] = field(default_factory=list)


class SettledState:
    """The state of everything watched at the end of a walk."""

    def __init__(self, added: Added, contents: Collection[WatchedContent]) -> None:
        containers, items = added.containers, added.items
        mappings = [each for each in containers if isinstance(each, dict | MappingProxyType)]
        views = [each.values() if isinstance(each, dict | MappingProxyType) else each for each in containers]
        self._sized = [*views, *(mapping for mapping, _ in items)]
        self._sizes = [*map(len, self._sized)]
        self._mappings = [*mappings, *(mapping for mapping, _ in items)]
        self._keys = [*map(tuple, self._mappings)]
        self._large = [(view, list(view)) for view in views if len(view) > _LARGE]
        self._large += [(mapping.values(), list(mapping.values())) for mapping, _ in items]
        self._views = [view for view in views if 0 < len(view) <= _LARGE]
        self._dicts = [mapping for mapping, names in items if names]
        # With two names or more an itemgetter returns a tuple.
        self._getters = [itemgetter(*names, names[0]) for _, names in items if names]
        self._count = sum(map(len, self._views)) + sum(len(names) + 1 for _, names in items if names)
        self._held = self._hold()
        self._pointers = pointers(self._held).tobytes()
        self._objects = list(added.objects)
        self._types = [*map(type, self._objects)]
        self._dicts_of = [*map(_dict_of, self._objects)]
        self._empty = list(added.empty)
        self._cells = list(added.cells)
        self._read = [read() for read in self._cells]
        self._probes = [(probe, probe()) for probe in added.probes]
        self._forms = [(c.value, c.form) for c in contents if c.form and c.text != LEFT and nbytes_of(c.value) > SMALL]
        tensors = [content.value for content in contents if content.stamp is not None and content.text != LEFT]
        # Tensors of inference mode have no version: exact checks hash them as they hash arrays.
        self._versioned = [tensor for tensor in tensors if not tensor.is_inference()]
        self._strided = [tensor for tensor in tensors if stamp_of(tensor)[1]]
        # References keep freed memory from becoming that of another tensor with the same stamp.
        self._alive = [tensor.untyped_storage() for tensor in self._strided]
        self._layouts = self._layouts_now()
        torch = sys.modules.get("torch")
        self._pointer_of: Callable[[Any], int] = torch.Tensor.data_ptr if torch is not None else id
        self._stamps = self._stamps_now()
        self._has_tensors = bool(self._versioned or self._strided)

    def has_moved(self, exactly: bool) -> bool:
        """Whether anything has changed."""
        if [*map(len, self._sized)] != self._sizes or any(self._empty):
            return True
        if self._objects and [*map(type, self._objects)] != self._types:
            return True
        if self._count and pointers(self._hold()).tobytes() != self._pointers:
            return True
        if self._has_tensors and self._stamps_now() != self._stamps:
            return True
        now = [*map(call, self._cells)]
        if not all(map(is_, now, self._read)) and not all(map(_is_same, now, self._read)):
            return True
        return exactly and self.has_moved_inside()

    def has_moved_in_large(self) -> bool:
        """Whether the items of large containers have changed."""
        return any(not all(map(is_, view, held)) for view, held in self._large)

    def has_moved_inside(self) -> bool:
        """Whether anything has changed that only an exact check compares."""
        return bool(
            (self._objects and not all(map(is_, map(_dict_of, self._objects), self._dicts_of)))
            or ([*map(tuple, self._mappings)] != self._keys and self._has_other_keys())
            or (self._large and self.has_moved_in_large())
            or (self._probes and any(probe() != text for probe, text in self._probes))
            or any(form_of(array) != form for array, form in self._forms)
            or (self._has_tensors and self._layouts_now() != self._layouts)
        )

    def _has_other_keys(self) -> bool:
        """Whether a dict has other keys, and as many: other lengths are seen by every check."""
        pairs = zip(self._mappings, self._keys, strict=True)
        return any(len(mapping) == len(keys) and tuple(mapping) != keys for mapping, keys in pairs)

    def _layouts_now(self) -> list[Any]:
        return [*map(_strides_of, self._strided), *map(_shape_of, self._strided)]

    def _stamps_now(self) -> tuple[list[Any], ...]:
        return [*map(_version_of, self._versioned)], [*map(self._pointer_of, self._strided)]

    def _hold(self) -> Any:
        parts = chain(self._views, map(call, self._getters, self._dicts))
        return np.fromiter(chain.from_iterable(parts), object, self._count)


def _is_same(now: Any, before: Any) -> bool:
    """Whether a variable has its value of before. Attributes of compiled functions are new ints at each read."""
    return now is before or (type(now) in _REMADE and type(now) is type(before) and now == before)


def _dict_of(value: Any) -> Any:
    return getattr(value, "__dict__", None)


def stamp_of(value: Any) -> Any:
    """A value that changes when torch writes to a tensor, or gives it other memory. It begins with the version, or -1
    for one of inference mode. None for arrays."""
    if not hasattr(value, "is_inference"):
        return None
    version = -1 if value.is_inference() else value._version
    try:
        return version, value.data_ptr(), value.stride(), value.shape, value.dtype
    except RuntimeError:  # a tensor without memory
        return version, 0, (), (), value.dtype
