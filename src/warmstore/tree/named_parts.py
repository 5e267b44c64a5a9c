"""Namedtuples and dataclasses that are made of their named parts alone. They are restored without their constructors,
which may compute: run again on what they have computed, they would give other values."""

import dataclasses
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from types import MemberDescriptorType
from typing import Any

_BASES = (object, dict, OrderedDict)


def names_of_parts(value: Any) -> list[str] | None:
    """The names of the parts of a namedtuple or dataclass, in the order of its fields; None for another value, or one
    that has other state.

    A dataclass that is a dict as well, such as a `ModelOutput` of transformers, has items that are parts.
    """
    kind = type(value)
    if isinstance(value, tuple):
        fields = list(getattr(kind, "_fields", ()))
        return fields if len(fields) == len(value) and not getattr(value, "__dict__", None) else None
    if not dataclasses.is_dataclass(kind):
        return None
    derived = kind.__mro__[: kind.__mro__.index(_base_of(kind))]
    if any("__new__" in vars(cls) for cls in derived):  # it may have more state than its attributes, as exceptions have
        return None
    names, state = [field.name for field in dataclasses.fields(value)], attributes_of(value)
    items = dict.items(value) if isinstance(value, dict) else ()
    has_other = state.keys() != set(names) or any(name not in state or item is not state[name] for name, item in items)
    return None if has_other else names


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, in its `__dict__` and in slots."""
    state: Any = object.__getstate__(value)
    parts = state if isinstance(state, tuple) else (state,)
    return {name: attribute for part in parts if part for name, attribute in part.items()}


def blank(cls: type) -> Any:
    """A new object of a dataclass, without its parts: its constructor does not run."""
    return _base_of(cls).__new__(cls)


def give_parts(made: Any, names: Iterable[str], parts: Iterable[Any], items: Sequence[str] | None = None) -> None:
    """Give a blank object its parts.

    Args:
        items: the names of those that are items of a dict as well; None for those that are not None.
    """
    state = dict(zip(names, parts, strict=True))
    kind = type(made)
    if isinstance(made, dict):
        for name in items if items is not None else [name for name, part in state.items() if part is not None]:
            _base_of(kind).__setitem__(made, name, state[name])
    for name in [name for name in state if isinstance(getattr(kind, name, None), MemberDescriptorType)]:
        object.__setattr__(made, name, state.pop(name))  # a slot; a frozen class refuses its own method
    if state:
        vars(made).update(state)


def _base_of(cls: type) -> Any:
    return next(base for base in cls.__mro__ if base in _BASES)
