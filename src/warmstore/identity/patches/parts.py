"""What is in a function, method, partial, descriptor or callable object: the functions and classes that it calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
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

_PLAIN = frozenset((int, float, str, bytes, bool, type(None), tuple, list, dict, set, ModuleType))

_type_of: Callable[[Any], Any] = type  # a class is hashable, which `type[Any]` does not say
_Inner = Callable[[Any], Iterable[Any]]


def parts_of(value: Any) -> Iterator[FunctionType | type]:
    """The functions and classes in a value, and the classes of objects in it.

    No code of the objects runs: `isinstance` is not used, as it asks proxies for their class.
    """
    known: set[int] = set()
    work = [value]
    for part in work:  # grows
        if id(part) in known:
            continue
        known.add(id(part))
        kind: Any = type(part)
        if kind is FunctionType:
            yield part
            work += _inner_of_function(part)
        elif issubclass(kind, type):
            yield part
        elif (inner := _inner_of(kind)) is not None:
            work += inner(part)
        else:
            if kind not in _PLAIN:
                yield kind
            if part is value:  # attributes are followed in the value itself only
                work += [each for each in attributes_in(part).values() if _is_callable(_type_of(each))]


def _inner_of_function(function: Any) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        if cell != _EMPTY:
            yield cell.cell_contents
    yield from (registry_of(function) or {}).values()
    if "__wrapped__" in function.__dict__:
        yield function.__dict__["__wrapped__"]


@functools.lru_cache(maxsize=4096)
def _inner_of(kind: Any) -> _Inner | None:
    """Returns what objects of a type call; None for a type that is not one of Python's callables and descriptors."""
    return next((inner for base, inner in _RULES if issubclass(kind, base)), None)


@functools.lru_cache(maxsize=4096)
def _is_callable(kind: Any) -> bool:
    return kind is FunctionType or issubclass(kind, type) or _inner_of(kind) is not None


def wrapped_by(value: Any) -> Iterator[Any]:
    """The functions in a descriptor of a class."""
    kind = type(value)
    if issubclass(kind, property):
        yield from (each for each in (value.fget, value.fset, value.fdel) if each is not None)
    elif issubclass(kind, (staticmethod, classmethod)):
        yield value.__func__
    else:
        yield value.func


_RULES: tuple[tuple[Any, _Inner], ...] = (
    ((functools.partial, functools.partialmethod), lambda value: (value.func, *value.args, *value.keywords.values())),
    (MethodType, lambda value: (value.__func__, value.__self__)),
    ((BuiltinFunctionType, MethodWrapperType), lambda value: (value.__self__,)),
    (WRAPPERS, wrapped_by),
)


def registry_of(value: Any) -> Mapping[Any, Any] | None:
    """The implementations of a `functools.singledispatch` function; None for any other value."""
    if type(value) is not FunctionType or value.__globals__ is not vars(functools):
        return None
    found: Mapping[Any, Any] | None = value.__dict__.get("registry")
    return found


def is_mock(value: Any, base: type) -> bool:
    """Whether a value is an object of `unittest.mock`, or a function that stands for one.

    Args:
        base: The base class of all mocks.
    """
    value = value.__dict__.get("mock") if type(value) is FunctionType else value
    return issubclass(type(value), base)


def is_bound(function: Any) -> bool:
    """Whether a function of C is a method of an object."""
    owner = function.__self__
    kind = type(owner)
    return not (owner is None or issubclass(kind, (ModuleType, type)) or kind.__name__.startswith(_OWNERS))


def has_name(value: Any) -> bool:
    """Whether a value is a function or class, of Python or C, whose name can be read without running code."""
    return _has_name(_type_of(value))


@functools.lru_cache(maxsize=4096)
def _has_name(kind: Any) -> bool:
    if kind is FunctionType or issubclass(kind, type):
        return True
    raw = next((vars(base)["__name__"] for base in kind.__mro__ if "__name__" in vars(base)), None)
    return type(raw) in (GetSetDescriptorType, MemberDescriptorType)


def names_of(value: Any) -> set[str]:
    """The names that code has for a function or class, for its maker, or for the class of an object."""
    kind = type(value)
    if issubclass(kind, WRAPPERS):
        return set().union(*map(names_of, wrapped_by(value)))
    if kind is FunctionType:
        return {value.__name__, value.__code__.co_name, *value.__qualname__.split(".")}
    if issubclass(kind, type):
        return {value.__name__, *value.__qualname__.split(".")}
    if kind is MethodType:
        return names_of(value.__func__)
    name = value.__name__ if has_name(value) else attributes_in(value).get("__name__")
    return {name, kind.__name__} if type(name) is str else {kind.__name__}


def attributes_in(value: Any) -> dict[str, Any]:
    """The `__dict__` of an object, read past the methods of its class."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}
