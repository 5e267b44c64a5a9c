"""Attributes that code reads of a value, found as Python finds them: instance, class, descriptor, module.

A chain is the attributes that code reads of a variable one after another, such as `("cfg", "rate")`; the empty chain
is the whole value. A method or property of the program that is found on the way counts with what it reads in turn.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from warmstore.identity.object_state import MISSING, has_identity
from warmstore.identity.origin import Origin, is_extension, origin_of, origin_of_class, origin_of_function, program_root
from warmstore.identity.places import Place
from warmstore.identity.plain_data import atom_text
from warmstore.identity.reads.classes import documentation, static
from warmstore.identity.reads.code_facts import WHOLE, Chain, CodeFacts, facts_of
from warmstore.identity.reads.refusals import REFLECTION, REFUSED_MODULES, is_refused, reflection_reason
from warmstore.identity.walk import Walk

INTROSPECTION = {
    "__doc__": "doc", "getdoc": "doc", "__annotations__": "annotations", "get_type_hints": "annotations",
    "get_annotations": "annotations", "__name__": "name", "__qualname__": "name", "__module__": "name",
    **{name: name for name in
       ("co_consts", "co_varnames", "co_names", "co_firstlineno", "co_filename", "co_name", "co_qualname", "co_code",
        "co_lines", "co_positions", "co_linetable")},
}  # fmt: skip
"""The documentation of functions and classes that code reads, and parts of code objects, by the names that it uses."""

MODULE_ATTRIBUTES = frozenset(
    ("__name__", "__doc__", "__file__", "__loader__", "__spec__", "__cached__", "__builtins__", "__package__",
     "__path__", "__annotations__", "__warningregistry__", "__annotate__", "__conditional_annotations__")
)  # fmt: skip
"""Globals that the import system sets in every module."""

_DESCRIPTIONS = ("__annotations__", "__name__", "__qualname__", "__module__")
_NAMESPACES = frozenset((("argparse", "Namespace"), ("types", "SimpleNamespace")))
_WHOLE_NAMES = frozenset(("__dict__", "__class__", "__reduce__", "__getstate__", "__slots__", "__weakref__"))
_DESCRIPTORS = (property, staticmethod, classmethod)
_STATEFUL = frozenset(
    (list, dict, tuple, set, frozenset, OrderedDict, defaultdict, Counter, deque, random.Random, np.random.Generator,
     np.random.RandomState, np.ndarray)
)  # fmt: skip
"""Types of settings, or of state that decides results, in globals of installed modules."""


def read(walk: Walk, value: Any, place: Place, chain: Chain) -> None:
    """Record what code reads of a value: the whole value, or the attributes of a chain."""
    if not chain:
        walk.whole(place, value)
        return
    name, rest = chain[0], chain[1:]
    walk.introspects |= {INTROSPECTION[name] for name in rest if name in INTROSPECTION}
    if name == "__doc__":
        walk.state(place + ".__doc__", lambda: repr(getattr(value, "__doc__", None)))
    elif name in _DESCRIPTIONS and isinstance(value, FunctionType | type):
        walk.state(place + f".{name}", lambda: documentation(value, {INTROSPECTION[name]}))
        walk.whole(place, value)
    elif name in REFLECTION:
        walk.cannot_tell(place + f".{name}", reflection_reason(name))
    elif isinstance(value, ModuleType) and (type(value) is ModuleType or not origin_of_class(type(value)).is_program):
        _read_module(walk, value, place, name, rest)
    elif isinstance(value, type):
        _read_class(walk, value, place, name, rest)
    elif atom_text(value) is not None or name in _WHOLE_NAMES or not _is_narrow(walk, type(value)):
        walk.whole(place, value)
    else:
        _read_object(walk, value, place, name, rest)


def read_all(walk: Walk, value: Any, place: Place, chains: Iterable[Chain]) -> None:
    """Record all chains that code reads of a value."""
    ordered = sorted(chains)
    if WHOLE in ordered:
        walk.whole(place, value)
        return
    for chain in ordered:
        read(walk, value, place, chain)


def read_variable(walk: Walk, value: Any, place: Place, facts: CodeFacts | None, name: str) -> None:
    """Record what code reads of a local variable or parameter; the whole value where its code is not known."""
    if facts is None or facts.sees_locals or name in facts.quoted:
        walk.whole(place, value)
        return
    read_all(walk, value, place, facts.variables.get(name, ()))
    read_setters(walk, value, place, facts.stored.get(name, ()))


def read_setters(walk: Walk, value: Any, place: Place, names: Iterable[str]) -> None:
    """Record the code of the program that runs where code sets attributes of a value, or deletes them."""
    kind = type(value)
    for name in sorted(names):
        raw = static(kind, name)
        walk.watch_cell(partial(static, kind, name))
        if isinstance(raw, property) and not _is_own_descriptor(raw):
            for verb, function in (("set", raw.fset), ("delete", raw.fdel)):
                if function is not None:
                    _read_bound(walk, place + f".<{verb} {name}>", function, value, place)
        elif hasattr(type(raw), "__set__") and not isinstance(raw, MemberDescriptorType | GetSetDescriptorType):
            walk.whole(place, value)
        for hook in ("__setattr__", "__delattr__"):
            function = static(kind, hook)
            if isinstance(function, FunctionType) and origin_of_function(function).is_program:
                _read_bound(walk, place + f".<{hook}>", function, value, place)


def read_method(walk: Walk, place: Place, function: Any, owner: Any) -> None:
    """Record a bound method: its function, and its object as far as the function reads it."""
    walk.fact(place, "method")
    _read_bound(walk, place, function, owner, place + ".__self__")


def place_in_module(walk: Walk, module: ModuleType, name: str) -> Place:
    """The place of a global of a module."""
    return walk.root(("global", id(vars(module)), name), name, module.__name__, module)[0]


def read_file_of_code(walk: Walk, place: Place, file: Any, origin: Origin) -> None:
    """Record the path of a file of the program in its checkout. Code may read files in the two folders above it."""
    if not isinstance(file, str):
        walk.whole(place, file)
        return
    folder = os.path.dirname(os.path.abspath(file))  # noqa: PTH100, PTH120  it must not follow links
    walk.folders |= dict.fromkeys((folder, os.path.dirname(folder)))  # noqa: PTH120
    root = program_root(origin.folder) if origin.folder else folder
    walk.fact(place, f"the file {os.path.relpath(file, root)!r} of the code")


def _is_torch_module(kind: type) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(kind, torch.nn.Module)


def _read_module(walk: Walk, module: ModuleType, place: Place, name: str, rest: Chain) -> None:
    """Record one attribute of a module."""
    origin = origin_of(module)
    walk.origin(origin)
    if name in _WHOLE_NAMES:
        walk.whole(place, module)
        return
    if module.__name__ == "decimal":
        walk.decimal_context()
    if name not in vars(module) and not origin.is_program:
        getattr(module, name, None)  # a package may import it at the first use, and keep it
    walk.watch_item(vars(module), name)
    if isinstance(vars(module).get(name), FunctionType | type) and not is_refused(module, origin):
        read(walk, vars(module)[name], place + f".{name}", rest)  # recorded at its own place
        return
    at = place_in_module(walk, module, name)
    if module is sys and name == "modules":
        walk.cannot_tell(at, "sys.modules finds modules that the code does not name")
        return
    if is_refused(module, origin):
        walk.cannot_tell(at, REFUSED_MODULES[module.__name__])
        return
    if name not in vars(module):
        walk.watch_item(vars(module), "__getattr__")
        if origin.is_program and "__getattr__" in vars(module):
            walk.module(module)
            return
        value = getattr(module, name, None) if not origin.is_program or name in MODULE_ATTRIBUTES else None
        if value is None:
            walk.fact(at, "missing")
            return
    else:
        value = vars(module)[name]
    if origin.is_program and isinstance(value, ModuleType) and is_extension(value):
        walk.whole(at, value)
    elif origin.is_program or isinstance(value, ModuleType):
        if name == "__file__":
            read_file_of_code(walk, at, value, origin)
        else:
            read(walk, value, at, rest)
    else:
        _read_of_library(walk, value, at, rest)


def _read_of_library(walk: Walk, value: Any, at: Place, rest: Chain) -> None:
    """Record what a program reads of an installed module: functions by name, settings by value."""
    if isinstance(value, FunctionType | BuiltinFunctionType | type | MethodType) or callable(value):
        read(walk, value, at, rest if isinstance(value, type) else WHOLE)
    elif atom_text(value) is not None or type(value) in _STATEFUL or isinstance(value, os._Environ):
        walk.whole(at, value)
    elif origin_of_class(type(value)).is_program:
        read(walk, value, at, rest)
    else:
        # The version of the library decides its state, but for settings that the program reads itself.
        walk.fact(at, f"object of {walk.cls(type(value))}")
        if rest and setting_text(value, rest) is not None:
            walk.state(at + f".{'.'.join(rest)}", lambda: str(setting_text(value, rest)))


def setting_text(value: Any, names: Sequence[str], *, of_items: bool = False) -> str | None:
    """The text of what attributes, or items, one after another lead to; None for what is no number, text or the like.

    Args:
        of_items: The names are keys of mappings.
    """
    try:
        for name in names:
            value = value[name] if of_items else getattr(value, name)
    except Exception:  # the program sees the error when it runs
        return "missing"
    if type(value) in (list, tuple):
        texts = [atom_text(part) for part in value]
        return None if None in texts else f"{type(value).__name__} {texts}"
    return atom_text(value)


def _read_class(walk: Walk, cls: type, place: Place, name: str, rest: Chain) -> None:
    """Record one attribute of a class."""
    origin = origin_of_class(cls)
    kind = type(cls)
    of_program = origin_of_class(kind).is_program
    if name == "__name__" and not of_program:
        walk.state(place + ".__name__", lambda: repr(cls.__name__))
        return
    if name in _WHOLE_NAMES or of_program or static(kind, name) is not None:
        walk.whole(place, cls)
        return
    if origin.is_program and kind.__name__ in ("EnumType", "EnumMeta"):
        walk.whole(place, cls)
        return
    if not origin.is_program:
        walk.cls(cls)
        if name == "cwd" and issubclass(cls, PurePath):
            walk.working_directory()
    raw = static(cls, name)
    walk.watch_cell(partial(static, cls, name))
    named, module = walk.name_of(cls)
    at = walk.root(("attribute", id(cls), name), f"{named}.{name}", module, cls)[0]
    if raw is None:
        walk.fact(at, "missing")
        return
    walk.fact(at + ".<kind>", type(raw).__name__)
    if isinstance(raw, FunctionType):
        walk.whole(at, raw)
    elif isinstance(raw, staticmethod) and not _is_own_descriptor(raw):
        walk.whole(at, raw.__func__)
    elif isinstance(raw, classmethod) and not _is_own_descriptor(raw):
        _read_bound(walk, at, raw.__func__, cls, place)
    elif atom_text(raw) is None and hasattr(type(raw), "__get__"):
        walk.whole(at, raw)
        if origin.is_program:
            walk.whole(place, cls)
    elif origin.is_program or atom_text(raw) is not None:
        read(walk, raw, at, rest)
    else:
        walk.fact(at, f"object of {walk.cls(type(raw))}")


def _is_narrow(walk: Walk, kind: type) -> bool:
    """Whether objects of a class can be read attribute by attribute: no code of the program computes attributes."""
    if _is_torch_module(kind):
        return not has_identity(kind)
    if (kind.__module__, kind.__name__) in _NAMESPACES:
        return True
    if walk.has_rule(kind) or not origin_of_class(kind).is_program or has_identity(kind):
        return False
    return not any(
        name in vars(base) for base in kind.__mro__[:-1] for name in ("__getattr__", "__getattribute__", "__setattr__")
    )


def _is_own_descriptor(raw: Any) -> bool:
    """Whether a property, static method or class method is of a class of the program, which may define `__get__`."""
    kind = type(raw)
    return issubclass(kind, _DESCRIPTORS) and kind not in _DESCRIPTORS and origin_of_class(kind).is_program


def _read_object(walk: Walk, value: Any, place: Place, name: str, rest: Chain) -> None:
    """Record one attribute of an object."""
    kind = type(value)
    raw = static(kind, name)
    own = getattr(value, "__dict__", None)
    walk.watch_object(value)
    walk.watch_cell(partial(static, kind, name))
    if own is None:
        own = {}
    else:
        walk.watch_item(own, name)
    if _is_torch_module(kind):
        if name in own and raw is None and not name.startswith("_"):
            read(walk, own[name], place + f".{name}", rest)
        else:
            walk.whole(place, value)
        return
    at = place + f".{name}"
    if raw is not None:
        walk.fact(at + ".<kind>", type(raw).__name__)  # a property and a method may have the same body
    if _is_own_descriptor(raw):
        walk.whole(place, value)
        return
    if isinstance(raw, property):
        if raw.fget is not None:
            _read_bound(walk, at, raw.fget, value, place)
        return
    if isinstance(raw, MemberDescriptorType | GetSetDescriptorType):
        walk.watch_read(partial(getattr, value, name, MISSING))
        try:
            read(walk, getattr(value, name), at, rest)
        except AttributeError:
            walk.fact(at, "missing")
        return
    if raw is not None and hasattr(type(raw), "__set__"):
        walk.whole(place, value)
    elif name in own:
        if not walk.is_new(value, ("attribute", name, rest), at):
            return
        read(walk, own[name], at, rest)
        if raw is not None and hasattr(raw, "func"):
            walk.watch_cell(partial(getattr, raw, "func"))
            _read_bound(walk, at + ".<cached property>", raw.func, value, place)
    elif raw is None:
        walk.fact(at, "missing")
        walk.watch_cell(partial(static, kind, "__getattr__"))  # it would find the attribute
    elif isinstance(raw, FunctionType):
        _read_bound(walk, at, raw, value, place)
        if rest:
            walk.whole(place, value)
    elif isinstance(raw, staticmethod):
        walk.whole(at, raw.__func__)
    elif isinstance(raw, classmethod):
        _read_bound(walk, at, raw.__func__, kind, at + ".<class>")
    elif type(raw).__name__ == "cached_property" and type(raw).__module__ == "functools":
        walk.watch_cell(partial(getattr, raw, "func"))
        _read_bound(walk, at, raw.func, value, place)
    elif hasattr(type(raw), "__get__"):
        walk.whole(place, value)
    else:
        read(walk, raw, at, rest)


def _read_bound(walk: Walk, place: Place, function: Any, owner: Any, owner_place: Place) -> None:
    """Record a function that is called with `owner` as its first argument, and what it reads of `owner`."""
    if not isinstance(function, FunctionType) or not origin_of_function(function).is_program:
        walk.whole(place, function)
        walk.whole(owner_place, owner)
        return
    walk.fact(place, walk.function(function))
    code = function.__code__
    if not code.co_argcount:
        walk.whole(owner_place, owner)
        return
    if not walk.is_new(owner, ("method", id(function)), owner_place + f".<{function.__name__}>"):
        return
    read_variable(walk, owner, owner_place, facts_of(code), code.co_varnames[0])
