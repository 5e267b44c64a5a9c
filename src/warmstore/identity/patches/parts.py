"""What is in a function, method, partial, descriptor or callable object: the functions and classes that it calls."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

WRAPPERS = (staticmethod, classmethod, property, functools.cached_property)
"""Descriptors that wrap functions."""

_EMPTY = CellType()
_OWNERS = ("PyCapsule", "pybind11_")
"""Names of types of C whose objects hold the code of one function."""

_CALLABLE = (FunctionType, MethodType, BuiltinFunctionType, MethodWrapperType, functools.partial, type)
_PLAIN = frozenset((int, float, str, bytes, bool, type(None), tuple, list, dict, set, ModuleType))


def parts_of(value: Any) -> Iterator[FunctionType | type]:
    """The functions and classes in a value, and the classes of objects in it. No code of them runs."""
    known: set[int] = set()
    work = [value]
    for part in work:  # grows
        if id(part) in known:
            continue
        known.add(id(part))
        if isinstance(part, FunctionType | type):
            yield part
        elif not isinstance(part, _CALLABLE) and type(part) not in _PLAIN:
            yield type(part)
            if part is not value:
                continue  # what is in the attributes of objects is looked at in the value itself only
        work += _inner(part)


def _inner(value: Any) -> Iterable[Any]:
    """What a function, method, partial, descriptor or object calls."""
    if isinstance(value, FunctionType):
        inner = [cell.cell_contents for cell in value.__closure__ or () if cell != _EMPTY]
        return [*inner, *(registry_of(value) or {}).values(), value.__dict__.get("__wrapped__")]
    if isinstance(value, type):
        return ()
    if isinstance(value, functools.partial | functools.partialmethod):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, MethodType):
        return (value.__func__, value.__self__)
    if isinstance(value, BuiltinFunctionType | MethodWrapperType):
        return (value.__self__,)
    if isinstance(value, WRAPPERS):
        return wrapped_by(value)
    return [each for each in attributes_in(value).values() if isinstance(each, _CALLABLE)]


def wrapped_by(value: Any) -> Iterator[Any]:
    """The functions in a descriptor of a class."""
    if isinstance(value, property):
        yield from (each for each in (value.fget, value.fset, value.fdel) if each is not None)
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    else:
        yield value.func


def registry_of(value: Any) -> Mapping[Any, Any] | None:
    """The implementations of a `functools.singledispatch` function; None for any other value."""
    if not isinstance(value, FunctionType) or value.__globals__ is not vars(functools):
        return None
    found: Mapping[Any, Any] | None = value.__dict__.get("registry")
    return found


def is_mock(value: Any) -> bool:
    """Whether a value is an object of `unittest.mock`, or a function that stands for one."""
    mock = getattr(sys.modules.get("unittest.mock"), "NonCallableMock", None)
    if mock is None:
        return False
    value = value.__dict__.get("mock") if isinstance(value, FunctionType) else value
    return issubclass(type(value), mock)


def is_bound(function: Any) -> bool:
    """Whether a function of C is a method of an object."""
    owner = function.__self__
    return not (owner is None or isinstance(owner, ModuleType | type) or type(owner).__name__.startswith(_OWNERS))


def has_name(value: Any) -> bool:
    """Whether a value is a function or class, of Python or C, whose name can be read without running code."""
    kind = type(value)
    if kind is FunctionType or isinstance(value, type):
        return True
    raw = next((vars(base)["__name__"] for base in kind.__mro__ if "__name__" in vars(base)), None)
    return isinstance(raw, GetSetDescriptorType | MemberDescriptorType)


def names_of(value: Any) -> set[str]:
    """The names that code has for a function or class, for its maker, or for the class of an object."""
    if isinstance(value, WRAPPERS):
        return set().union(*map(names_of, wrapped_by(value)))
    if isinstance(value, FunctionType):
        return {value.__name__, value.__code__.co_name, *value.__qualname__.split(".")}
    if isinstance(value, type):
        return {value.__name__, *value.__qualname__.split(".")}
    if isinstance(value, MethodType):
        return names_of(value.__func__)
    name = value.__name__ if has_name(value) else attributes_in(value).get("__name__")
    kind = type(value).__name__
    return {name, kind} if isinstance(name, str) else {kind}


def attributes_in(value: Any) -> dict[str, Any]:
    """The `__dict__` of an object, read past the methods of its class."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}
