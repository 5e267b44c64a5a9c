"""Functions that the program has put into installed modules and classes: code runs them without naming the program."""

from __future__ import annotations

import atexit
import gc
import sys
import threading
import warnings
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any, Self

import numpy as np

from warmstore._native import floor
from warmstore.identity.origin import WARMSTORE, Origin, origin_of
from warmstore.identity.watch import pointers

_Functions = list[tuple[str, FunctionType]]
_Found = dict[str, _Functions]
_Module = tuple[str, ModuleType, Origin]
_COUNT = (FunctionType, staticmethod, classmethod, type, ModuleType)


class Patches(_Found):
    """All functions of the program in installed modules and their classes, by the name of the distribution.

    Each entry is the place of a function and the function. Empty until `look`; pickles are empty.
    """

    def look(self) -> Self:
        """Search for them. It takes some milliseconds, so one search serves several identities."""
        found = _namespaces.patches()
        self.clear()
        self.update(found)
        return self

    def __reduce__(self) -> Any:
        return Patches, ()


class _Namespaces:
    """The installed modules and their classes, searched module by module.

    With PyTorch they hold 100,000 values. A check compares their addresses with those of the last search, in C, and
    searches a module again only if one of its functions, classes or modules has changed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: tuple[int, ...] = ()
        self._modules: dict[str, _Searched] = {}
        self._found: _Found = {}
        self._dicts: list[dict[str, Any]] = []  # of all modules
        self._addresses = np.empty(0, np.uint64)

    def patches(self) -> _Found:
        with self._lock:
            loaded = tuple(map(id, list(sys.modules.values())))
            if loaded != self._loaded or not floor.same_values(self._dicts, self._addresses):
                moved = {name for name, each in self._modules.items() if each.has_moved()}
                if loaded != self._loaded or moved:
                    self._search_again(*_installed(loaded), moved)
                    self._loaded = loaded
                self._dicts = [each for searched in self._modules.values() for each in searched.dicts]
                self._addresses = np.concatenate([each.addresses for each in self._modules.values()])
            return self._found

    def _search_again(self, modules: list[_Module], installed: set[int], moved: set[str]) -> None:
        known, now = self._modules, {name: module for name, module, _ in modules}
        if any(now.get(name) is not each.module for name, each in known.items()):
            known = {}  # functions of a module that is gone may count as the program's
        self._modules = {
            name: _Searched(name, module, origin, installed) if name in moved or name not in known else known[name]
            for name, module, origin in modules
        }
        self._found = {}
        for each in self._modules.values():
            for place, function in each.candidates:
                if id(function.__globals__) not in installed and _is_programs(function):
                    self._found.setdefault(each.origin.name, []).append((place, function))

    def forget(self) -> None:
        """Drop all references, so that Python frees modules in its own order when it ends."""
        self._modules, self._found, self._dicts = {}, {}, []


class _Searched:
    """A module and its classes, as they were when they were searched.

    candidates: functions that may be the program's, with their places. dicts: what was searched. addresses: uint64 [n],
    of the values in them.
    """

    def __init__(self, name: str, module: ModuleType, origin: Origin, installed: set[int]) -> None:
        self.name = name
        self.module = module
        self.origin = origin
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # modules warn of deprecated attributes
            self.candidates, self.dicts = _search(name, module, installed)
        self._held: Any = np.empty(0, object)
        with suppress(RuntimeError, ValueError):  # another thread changes a namespace: the next check reads it again
            self._held = self._hold()
        self.addresses = pointers(self._held).view(np.uint64)

    def has_moved(self) -> bool:
        """Whether a function, class or module has changed since the search."""
        if floor.same_values(self.dicts, self.addresses):
            return False
        try:
            now, before = self._hold(), self._held
        except (RuntimeError, ValueError):
            return True
        if len(now) != len(before):
            return True
        self._held, self.addresses = now, pointers(now).view(np.uint64)
        changed = np.flatnonzero(pointers(now) != pointers(before))
        return any(issubclass(type(value), _COUNT) for at in changed for value in (before[at], now[at]))

    def _hold(self) -> Any:
        values = chain.from_iterable(map(dict.values, self.dicts))
        return np.fromiter(values, object, sum(map(len, self.dicts)))


_namespaces = _Namespaces()
atexit.register(_namespaces.forget)


@lru_cache(maxsize=1)
def _installed(_: tuple[int, ...]) -> tuple[list[_Module], set[int]]:
    """The installed modules that are loaded, without warmstore's own, and the ids of the namespaces of all of them.

    Args:
        _: The ids of all loaded modules: the answer changes with them.
    """
    modules = [
        (name, module, origin)
        for name, module in list(sys.modules.items())
        if type(module) is ModuleType and not (origin := origin_of(module)).is_program
    ]
    others = [entry for entry in modules if entry[2].name != WARMSTORE]
    return others, {id(vars(module)) for _, module, _ in modules}


def _search(name: str, module: ModuleType, installed: set[int]) -> tuple[_Functions, list[dict[str, Any]]]:
    """Search a module and its classes for functions from other namespaces than those of installed modules.

    Args:
        installed: The ids of the namespaces of installed modules.

    Returns:
        The functions with their places, and the dicts that were read.
    """
    own = vars(module)
    found: _Functions = []
    dicts = [own]
    for attribute, value in list(own.items()):
        kind = type(value)
        if kind is FunctionType:
            namespace = value.__globals__
            if namespace is not own and id(namespace) not in installed:
                found.append((f"{name}.{attribute}", value))
        elif kind is type or isinstance(value, type):
            members = vars(value)
            if members.get("__module__") == name:
                dicts += gc.get_referents(members)  # the dict behind the proxy
                for label, member in list(members.items()):
                    kind = type(member)
                    if kind is staticmethod or kind is classmethod:
                        member = member.__func__
                    elif kind is not FunctionType:
                        continue
                    namespace = getattr(member, "__globals__", own)
                    if namespace is not own and id(namespace) not in installed:
                        found.append((f"{name}.{attribute}.{label}", member))
    return found, dicts


def _is_programs(function: FunctionType) -> bool:
    """Whether a function is the program's. Libraries make functions from text, too, in namespaces of their own."""
    if not function.__code__.co_filename.startswith("<"):
        return True
    module = sys.modules.get(str(function.__globals__.get("__name__")))
    return module is not None and vars(module) is function.__globals__  # a notebook's cell
