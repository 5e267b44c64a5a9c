"""What the program has put into installed modules and classes: it runs where nothing that is read says so."""

from __future__ import annotations

import sys
import warnings
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any, Self

from warmstore.identity.origin import OURS, Origin, origin_of


class Patches(dict[str, list[tuple[str, FunctionType]]]):
    """All functions of the program's that stand in installed modules, and in the classes that those define.

    By the name of the distribution: where a function was put, and the function. Empty until it is looked for. Copies
    in other processes are empty.
    """

    def look(self) -> Self:
        """Look for all of them. It takes 20 ms where PyTorch is loaded: who identifies several things asks once."""
        modules, theirs = _installed(len(sys.modules))
        self.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # modules warn of what is deprecated in them
            for name, module, origin in modules:
                _look_into(name, module, origin, theirs, self)
        return self

    def __reduce__(self) -> Any:
        return Patches, ()


@lru_cache(maxsize=1)
def _installed(_: int) -> tuple[list[tuple[str, ModuleType, Origin]], set[int]]:
    """The installed modules that are loaded, and the ids of their namespaces. They change as modules come."""
    modules = [(name, one, origin_of(one)) for name, one in list(sys.modules.items()) if type(one) is ModuleType]
    theirs = [(name, one, origin) for name, one, origin in modules if not origin.is_program]
    return [one for one in theirs if one[2].name != OURS], {id(vars(one)) for _, one, _ in theirs}


def _look_into(name: str, module: ModuleType, origin: Origin, theirs: set[int], found: Patches) -> None:
    own = vars(module)
    for attribute, value in list(own.items()):
        kind = type(value)
        if kind is FunctionType:
            namespace = value.__globals__
            if namespace is not own and id(namespace) not in theirs and _is_programs(value):
                found.setdefault(origin.name, []).append((f"{name}.{attribute}", value))
        elif kind is type or isinstance(value, type):
            members = vars(value)
            if members.get("__module__") == name:
                for label, member in list(members.items()):
                    kind = type(member)
                    if kind is staticmethod or kind is classmethod:
                        member = member.__func__
                    elif kind is not FunctionType:
                        continue
                    namespace = getattr(member, "__globals__", own)
                    if namespace is not own and id(namespace) not in theirs and _is_programs(member):
                        found.setdefault(origin.name, []).append((f"{name}.{attribute}.{label}", member))


def _is_programs(function: FunctionType) -> bool:
    """Whether a function is the program's: libraries make some from text, in namespaces of their own."""
    if not function.__code__.co_filename.startswith("<"):
        return True
    module = sys.modules.get(str(function.__globals__.get("__name__")))
    return module is not None and vars(module) is function.__globals__  # a notebook's cell
