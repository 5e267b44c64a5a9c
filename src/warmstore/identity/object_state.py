"""The state of an object in Python: its attributes and slots, and whether they are all of its state."""

from __future__ import annotations

import copyreg
import struct
from collections import deque
from collections.abc import Iterator
from types import MemberDescriptorType
from typing import Any

import numpy as np

_POINTER = struct.calcsize("P")
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: types that are made while the program runs
_COPYING = ("__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")
_slots: dict[type, tuple[str, ...]] = {}

MISSING = object()
"""The value of an attribute, item or variable that is not there."""


def full_name(thing: Any) -> str:
    """The module and qualified name of a function or class. Spawned processes call `__main__` by another name."""
    module = str(thing.__module__)
    return f"{'__main__' if module == '__mp_main__' else module}.{thing.__qualname__}"


class Elements:
    """The elements of a list, set or deque of a subclass, past methods of the subclass that count or give others."""

    def __init__(self, value: list[Any] | set[Any] | deque[Any]) -> None:
        self._value = value
        self._base: Any = next(base for base in (list, set, deque) if isinstance(value, base))

    def __len__(self) -> int:
        return int(self._base.__len__(self._value))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._base.__iter__(self._value))

    def __contains__(self, value: object) -> bool:
        return any(each is value for each in self)


def pointers(objects: Any) -> Any:
    """The addresses of the objects in an array. They compare a hundred times faster than the objects."""
    return np.frombuffer(objects, np.intp) if len(objects) else objects


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes of an object: its `__dict__` and its slots."""
    own: dict[str, Any] = getattr(value, "__dict__", None) or {}
    names = slots_of(type(value))
    if not names:
        return own
    found = dict(own)
    for name in names:
        try:
            found[name] = getattr(value, name)
        except AttributeError:
            continue
    return found


def content_of(cell: Any) -> Any:
    """The value of a variable of a closure; `MISSING` before it has one."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def slots_of(cls: type) -> tuple[str, ...]:
    """The names of the slots that a class and its bases define. Types of C have none."""
    known = _slots.get(cls)
    if known is None:
        known = _slots[cls] = tuple(
            name
            for base in cls.__mro__
            if is_heap_type(base)
            for name, member in vars(base).items()
            if isinstance(member, MemberDescriptorType)
        )
    return known


def is_heap_type(cls: type) -> bool:
    """Whether a class was made while the program ran, as class statements do; static types of C were not."""
    return bool(cls.__flags__ & _HEAP_TYPE)


def has_identity(cls: type) -> bool:
    """Whether a class defines `__identity__`: what stands for its objects."""
    return any("__identity__" in vars(base) for base in cls.__mro__)


def is_made_in_python(cls: type) -> bool:
    """Whether a class statement made a class: its objects hold what its base and its slots hold, and no more.

    Types of C may be made while the program runs, too. Their objects have room for more.
    """
    base = cls.__base__
    if base is None or not is_heap_type(cls):
        return False
    own = vars(cls)
    slots = sum(isinstance(member, MemberDescriptorType) for member in own.values()) if "__slots__" in own else 0
    slots += ("__dict__" in own) + ("__weakref__" in own)
    return cls.__itemsize__ == base.__itemsize__ and cls.__basicsize__ <= base.__basicsize__ + _POINTER * slots


def has_plain_state(cls: type) -> bool:
    """Whether attributes are the whole state of an object: nothing defines another way to copy or pickle it."""
    if cls in copyreg.dispatch_table or has_identity(cls):
        return False
    bases = cls.__mro__[:-1]  # without `object`
    return all(map(is_made_in_python, bases)) and not any(defines_copying(base) for base in bases)


def defines_copying(cls: type) -> bool:
    """Whether the body of a class defines how its objects are copied or pickled."""
    return any(name in vars(cls) for name in _COPYING)
