"""Rules of objects in general: class and state, read as live objects and never as bytes.

The state is the attributes, else what copying and pickling use (`copyreg`, `__reduce_ex__`). Objects of C whose state
Python cannot reach are refused. Enum members, paths and fields of dataclasses have rules here, too.
"""

from __future__ import annotations

import copyreg
import ctypes
import dataclasses
import sys
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from functools import WRAPPER_ASSIGNMENTS, partial
from itertools import chain, compress
from operator import is_
from types import FunctionType
from typing import Any

from warmstore.identity.kinds.registry import rule
from warmstore.identity.named_files import content_of, stat_of
from warmstore.identity.object_state import (
    MISSING,
    attributes_of,
    defines_copying,
    has_plain_state,
    is_heap_type,
    is_made_in_python,
    slots_of,
)
from warmstore.identity.origin import origin_of_name
from warmstore.identity.places import Place
from warmstore.identity.reads.attributes import INTROSPECTION
from warmstore.identity.walk import Walk

_READERS = (*INTROSPECTION, "vars", "__dict__", "dumps")
_NEW_OBJECT = vars(copyreg)["__newobj__"]
_OF_THIS_PROCESS = {
    "pydantic._internal._decorators": "cls_ref",  # names the class of a validator with an address
    "transformers.generation.configuration_utils": "_original_object_hash",  # of strings, to detect changes
}
"""Attributes of libraries' objects that differ in each process, by the modules of their classes."""

_EXTENDED: dict[type, Callable[[Any], Any]] = {
    defaultdict: lambda value: (value.default_factory, dict(dict.items(value))),
    OrderedDict: lambda value: dict(OrderedDict.items(value)),
    dict: lambda value: dict(dict.items(value)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    deque: lambda value: deque(deque.__iter__(value), vars(deque)["maxlen"].__get__(value)),
    str: lambda value: str.__str__(value),
    bytes: lambda value: bytes(memoryview(value)),
    int: lambda value: int.__int__(value),
    float: lambda value: float.__float__(value),
    complex: lambda value: complex(value.real, value.imag),
}
"""The builtin part of an object of a subclass of a builtin type, read past the methods of the subclass."""


def enum_member(walk: Walk, place: Place, value: Any) -> None:
    """Record a member of an enum, or a combination of flags."""
    walk.fact(place, f"member {value._name_!r} of {walk.cls(type(value))}")
    if value._name_ is None or value._name_ not in type(value).__members__:
        walk.whole(place + ".value", value._value_)


def native_library(walk: Walk, place: Place, value: Any) -> None:
    """Record a library that ctypes has loaded, by the content of its file, and the types that the program has given to
    its functions."""
    found = stat_of(str(value._name))
    walk.fact(place, f"library {value._name if found is None else content_of(str(value._name), found)}")
    walk.watch(vars(value))
    for name, function in sorted(vars(value).items()):
        if isinstance(function, value._FuncPtr):
            for attribute, default in (("argtypes", None), ("restype", value._FuncPtr._restype_), ("errcheck", None)):
                walk.watch_cell(partial(getattr, function, attribute))
                if (given := getattr(function, attribute)) is not default:
                    walk.whole(place + f".{name}.{attribute}", given)


class _Struct(ctypes.Structure):
    _fields_ = (("field", ctypes.c_byte),)


@rule(type(vars(_Struct)["field"]))
def _struct_field(walk: Walk, place: Place, value: Any) -> None:
    """Record where a field of a structure of ctypes is. Its type counts in the `_fields_` of the class."""
    walk.fact(place, repr(value))


def path(walk: Walk, place: Place, value: Any) -> None:
    """Record a path of a subclass of `Path`, and the file that it names."""
    walk.fact(place, f"path of {walk.cls(type(value))} {str(value)!r}")
    walk.file(place, value)
    walk.attributes(place, getattr(value, "__dict__", {}))


@rule(dataclasses.Field)
def _dataclass_field(walk: Walk, place: Place, value: Any) -> None:
    names = ("name", "default", "default_factory", "init", "repr", "hash", "compare", "metadata", "kw_only", "type")
    walk.fact(place, "field of a dataclass")
    walk.attributes(place, {name: getattr(value, name) for name in names})


def has_process_attributes(kind: type) -> bool:
    """Whether a library keeps attributes in objects of a type that differ in each process."""
    return any(base.__module__ in _OF_THIS_PROCESS for base in kind.__mro__)


def library_object(walk: Walk, place: Place, value: Any) -> None:
    """Record an object without the attributes that differ in each process."""
    excluded = {_OF_THIS_PROCESS.get(base.__module__) for base in type(value).__mro__}
    walk.fact(place, f"object of {walk.cls(type(value))}")
    walk.watch_attributes(value)
    state = attributes_of(value)
    walk.attributes(place, {name: state[name] for name in state if name not in excluded})


def record_object(walk: Walk, place: Place, value: Any) -> None:
    """Record an object by its class, its state and, in subclasses of builtin containers, its elements."""
    kind = type(value)
    if has_plain_state(kind):
        walk.fact(place, f"object of {walk.cls(kind)}")
        walk.watch_attributes(value)
        walk.attributes(place, without_documentation(walk, place, attributes_of(value)))
        return
    walk.watch_attributes(value)
    base = next((base for base in _EXTENDED if isinstance(value, base)), None)
    reducer = copyreg.dispatch_table.get(kind)
    if base is not None and reducer is None and not _defines_copying(kind, base):
        walk.fact(place, f"object of {walk.cls(kind)}")
        walk.attributes(place, attributes_of(value))
        walk.whole(place + f".<{base.__name__}>", _EXTENDED[base](value))
        return
    if kind is not object and not is_made_in_python(kind) and reducer is None and _reduces_by_default(kind):
        walk.cannot_tell(place, f"the state of a {kind.__module__}.{kind.__qualname__} of C is out of reach")
        return
    if kind.__module__ == "builtins" and kind.__name__ == "PyCapsule":
        walk.cannot_tell(place, "the content of a capsule of C is out of reach")
        return
    read = partial(_quietly, partial(reducer, value) if reducer is not None else partial(value.__reduce_ex__, 4))
    try:
        reduced = read()
    except Exception as error:
        walk.cannot_tell(place, f"the state of a {kind.__module__}.{kind.__qualname__} cannot be read ({error})")
        return
    if isinstance(reduced, str):
        _global_name(walk, place, value, reduced)
        return
    walk.fact(place, f"object of {walk.cls(kind)}")
    if not isinstance(reduced, tuple) or not 2 <= len(reduced) <= 6:
        walk.cannot_tell(place, f"__reduce_ex__ of a {kind.__qualname__} gave {type(reduced).__name__}")
        return
    try:
        _watch_state(walk, read, reduced)
    except Exception as error:
        walk.cannot_tell(place, f"the state of a {kind.__module__}.{kind.__qualname__} cannot be read again ({error})")
        return
    _reduced(walk, place, kind, reduced)
    if isinstance(value, BaseException):  # its pickle lacks this
        walk.watch_cell(partial(getattr, value, "__cause__"))
        walk.whole(place + ".__cause__", value.__cause__)


def without_documentation(walk: Walk, place: Place, attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes of an object without what `functools.update_wrapper` has copied from a function: docstring, name
    and annotations, which count where code reads them."""
    wrapped = attributes.get("__wrapped__")
    if not isinstance(wrapped, FunctionType) or walk.settings.read_elsewhere:
        return attributes
    copied = {name for name in WRAPPER_ASSIGNMENTS if attributes.get(name, MISSING) is getattr(wrapped, name, None)}
    for name in copied:
        walk.if_named(_READERS, place, partial(walk.look, place + f".{name}", attributes[name]))
    return {name: value for name, value in attributes.items() if name not in copied}


def _reduced(walk: Walk, place: Place, kind: type, reduced: tuple[Any, ...]) -> None:
    """Record the tuple that `__reduce_ex__` of an object returned: constructor, arguments, state, items, pairs."""
    make, args, state, items, pairs = (*reduced, None, None, None)[:5]
    if make is _NEW_OBJECT and args and args[0] is kind:
        args = args[1:]
    else:
        walk.whole(place + ".<made by>", make)
    for at, argument in enumerate(args):
        walk.whole(place + f".<argument {at}>", argument)
    is_of_slots = bool(slots_of(kind)) and not any("__getstate__" in vars(base) for base in kind.__mro__[:-1])
    if is_of_slots and isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
        state = {**(state[0] or {}), **state[1]}
    if isinstance(state, dict) and all(type(name) is str for name in state):
        walk.attributes(place, state)
    elif state is not None:
        walk.whole(place + ".<reduced>", state)
    if items is not None:
        walk.whole(place + ".<items>", items)
    if pairs is not None:
        walk.pairs(place + ".<items>", "pairs", pairs)


def _quietly(reduce: Callable[[], Any]) -> Any:
    """What `__reduce_ex__` returns, with lists of items and pairs in the place of iterators, which give them once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reduced = reduce()
        if not isinstance(reduced, tuple):
            return reduced
        return *reduced[:3], *(None if part is None else list(part) for part in reduced[3:5]), *reduced[5:]


def _watch_state(walk: Walk, read: Callable[[], Any], reduced: Any) -> None:
    """Watch the state of an object that its attributes may not show, by what copying and pickling read of it."""
    if walk.settings.watch is None:
        return
    bare = type(walk)("", replace(walk.settings, watch=None))  # does not keep what this walk has found
    before = _parts(reduced)
    lasts = [*map(is_, _parts(read()), before)]
    lasting = [*compress(before, lasts)]

    def text() -> str:
        now = _parts(read())
        if len(now) != len(lasts) or not all(map(is_, compress(now, lasts), lasting)):
            return ""
        return bare.apart([part for part, is_lasting in zip(now, lasts, strict=True) if not is_lasting])

    walk.settings.watch.add_state(text)


def _parts(reduced: Any) -> list[Any]:
    """The arguments, the state and the items that `__reduce_ex__` has returned."""
    args, state, items, pairs = (*reduced[1:5], None, None, None)[:4]
    inside = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else (state,)
    return [*args, *inside, *(items or ()), *chain.from_iterable(pairs or ())]


def _reduces_by_default(kind: type) -> bool:
    """Whether a class inherits its pickling from `object`: its state may be out of reach of Python."""
    plain = vars(object)
    return all(
        next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None) is plain.get(name)
        for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    )


def _global_name(walk: Walk, place: Place, value: Any, name: str) -> None:
    """Record an object that pickles as the name of a global; refuse it unless an installed module defines it."""
    module = str(getattr(value, "__module__", None) or "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    origin = origin_of_name(module)
    if found is not value or origin.is_program:
        walk.cannot_tell(place, f"a {type(value).__qualname__} pickles as its name, {name!r}, without its state")
        return
    walk.origin(origin)
    walk.fact(place, f"object {module}.{name}")


def _defines_copying(kind: type, base: type) -> bool:
    """Whether a subclass of a builtin type, or a class between the two, defines how its objects are copied."""
    between = filter(is_heap_type, kind.__mro__[: kind.__mro__.index(base)])
    return any(map(defines_copying, between)) and not (issubclass(kind, tuple) and hasattr(kind, "_fields"))
