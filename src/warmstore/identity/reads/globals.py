"""Global names that a function reads: variables of its module, builtins, and environment variables.

Each name counts as far as the code reads it. A builtin counts only if the program has replaced it.
"""

from __future__ import annotations

import builtins
import sys
from types import FunctionType, ModuleType
from typing import Any

from warmstore.identity.origin import origin_of_function
from warmstore.identity.places import Place
from warmstore.identity.reads.attributes import (
    MODULE_ATTRIBUTES,
    place_in_module,
    read,
    read_all,
    read_file_of_code,
    read_setters,
)
from warmstore.identity.reads.code_facts import WHOLE, CodeFacts
from warmstore.identity.reads.modules import read_by_constant_name, read_computed_imports
from warmstore.identity.reads.refusals import REFUSED_BUILTINS, reflection_reason, refusal_of
from warmstore.identity.walk import Walk

_OF_PYTHON = frozenset(("__debug__", "__spec__", "__loader__"))
"""Builtins that are no functions and classes, and are the same in each run of one Python."""


def read_global(walk: Walk, place: Place, function: FunctionType, name: str, facts: CodeFacts) -> None:
    """Record the current value of a global name, as far as a function reads it."""
    globals_ = function.__globals__
    walk.watch_item(globals_, name)
    if name not in globals_:
        walk.watch_item(vars(builtins), name)
        if name in vars(builtins):
            _read_builtin(walk, place, function, name, vars(builtins)[name], facts)
        else:
            walk.fact(place + f".<{name}>", "no such name")
        return
    value = globals_[name]
    if isinstance(value, FunctionType | type | ModuleType):  # the facts of the value are at its own place
        at = place + f".<{name}>"
    elif (module := _module_of(globals_)) is not None:
        at = place_in_module(walk, module, name)
    else:
        at = walk.root(("global", id(globals_), name), name, "", globals_)[0]
    if name == "__file__":
        read_file_of_code(walk, at, value, origin_of_function(function))
    elif name in ("__name__", "__package__"):
        walk.fact(at, repr("__main__" if value == "__mp_main__" else value))
    elif name == "__builtins__":
        walk.cannot_tell(at, reflection_reason(name))
    else:
        quoted = (WHOLE,) if name in facts.quoted else ()
        for chain in sorted({*facts.globals.get(name, ()), *quoted}):
            if not read_by_constant_name(walk, place, value, name, chain, facts):
                read(walk, value, at, chain)
        read_setters(walk, value, at, facts.stored.get(name, ()))


def _module_of(globals_: dict[str, Any]) -> ModuleType | None:
    """The imported module that has these globals."""
    module = sys.modules.get(str(globals_.get("__name__")))
    return module if module is not None and vars(module) is globals_ else None


def _read_builtin(walk: Walk, place: Place, function: FunctionType, name: str, value: Any, facts: CodeFacts) -> None:
    """Record a builtin that the program has replaced or added. Refuse one whose effects cannot be read."""
    at, _ = walk.root(("builtin", name), name)
    if name == "globals":
        globals_ = function.__globals__
        module = _module_of(globals_)
        if module is None:
            globals_ = {key: value for key, value in globals_.items() if key not in MODULE_ATTRIBUTES}
        walk.whole(place + ".<globals>", globals_ if module is None else module)
    elif name == "__import__":
        read_computed_imports(walk, place, {constant for variable, _, constant in facts.asked if variable == name})
    elif name in REFUSED_BUILTINS and refusal_of(value):
        walk.cannot_tell(place + f".<{name}>", refusal_of(value))
    elif getattr(value, "__module__", None) != "builtins" and callable(value):
        walk.whole(at, value)
    elif callable(value) and getattr(value, "__name__", name) != name:
        walk.fact(at, f"builtin {value.__name__}")
    elif not callable(value) and name not in _OF_PYTHON:
        read_all(walk, value, at, facts.globals.get(name, (WHOLE,)))
