"""What the program has put into installed modules and classes: it runs where nothing that is read says so."""

from __future__ import annotations

import sys
import warnings
from types import FunctionType, ModuleType

from warmstore.identity.origin import OURS, Origin, origin_of

Patches = dict[str, list[tuple[str, FunctionType]]]
"""By the name of the distribution: where a function was put, and the function."""


def find_patches() -> Patches:
    """All functions of the program's that stand in installed modules, and in the classes that those define.

    It takes some 20 ms where PyTorch is loaded: who identifies several things asks once.
    """
    modules = [(name, one) for name, one in list(sys.modules.items()) if type(one) is ModuleType]
    origins = [(name, one, origin_of(one)) for name, one in modules]
    theirs = {id(vars(one)) for _, one, origin in origins if not origin.is_program}
    found: Patches = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # modules warn of what is deprecated in them
        for name, module, origin in origins:
            if not origin.is_program and origin.name != OURS:
                _look_into(name, module, origin, theirs, found)
    return found


def _look_into(name: str, module: ModuleType, origin: Origin, theirs: set[int], found: Patches) -> None:
    for attribute, value in list(vars(module).items()):
        kind = type(value)
        if kind is FunctionType:
            if id(value.__globals__) not in theirs and _is_programs(value):
                found.setdefault(origin.name, []).append((f"{name}.{attribute}", value))
        elif issubclass(kind, type) and vars(value).get("__module__") == name:
            for own, member in list(vars(value).items()):
                function = member.__func__ if type(member) in (staticmethod, classmethod) else member
                if type(function) is FunctionType and id(function.__globals__) not in theirs and _is_programs(function):
                    found.setdefault(origin.name, []).append((f"{name}.{attribute}.{own}", function))


def _is_programs(function: FunctionType) -> bool:
    """Whether a function has a file of the program: libraries make some from text, in namespaces of their own."""
    return not function.__code__.co_filename.startswith("<")
