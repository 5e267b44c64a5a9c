"""Functions that the program has put into installed modules and classes: code runs them without naming the program."""

from __future__ import annotations

import atexit
import gc
import sys
import threading
import warnings
from collections.abc import ValuesView
from functools import lru_cache
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any, Self

import numpy as np

from warmstore._native import floor
from warmstore.identity.origin import WARMSTORE, Origin, origin_of
from warmstore.identity.watch import pointers

_Found = dict[str, list[tuple[str, FunctionType]]]
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
    """The values in installed modules and in their classes.

    With PyTorch there are 300,000. A search compares their addresses with those of the last search, in C, and reads
    the namespaces again only if a function, class or module has changed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._views: list[ValuesView[Any]] = []
        self._dicts: list[dict[str, Any]] = []
        self._sizes: list[int] = []
        self._held = np.empty(0, object)
        self._found: _Found = {}

    def patches(self) -> _Found:
        with self._lock:
            try:
                moved = self._has_moved()
            except (RuntimeError, ValueError):  # another thread changes a namespace
                moved = True
            if moved:
                self._scan()
            return self._found

    def forget(self) -> None:
        """Drop all references, so that Python frees modules in its own order when it ends."""
        self._views, self._dicts, self._held, self._found = [], [], np.empty(0, object), {}

    def _has_moved(self) -> bool:
        if self._views and floor.same_values(self._dicts, pointers(self._held).view(np.uint64)):
            return False
        if not self._views or [*map(len, self._views)] != self._sizes:
            return True
        now, before = self._hold(), self._held
        changed = np.flatnonzero(pointers(now) != pointers(before))
        self._held = now
        return any(issubclass(type(value), _COUNT) for at in changed for value in (before[at], now[at]))

    def _hold(self) -> Any:
        return np.fromiter(chain.from_iterable(self._views), object, sum(self._sizes))

    def _scan(self) -> None:
        self._views, self._found = [], {}
        modules, namespaces = _installed(tuple(map(id, list(sys.modules.values()))))
        views: list[ValuesView[Any]] = [sys.modules.values()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # modules warn of deprecated attributes
            for name, module, origin in modules:
                _search(name, module, origin, namespaces, self._found, views)
        self._sizes = [*map(len, views)]
        try:
            self._views = views
            self._dicts = [_dict_of(view) for view in views]
            self._held = self._hold()
        except (RuntimeError, ValueError):
            self._views = []  # the next search reads all again


def _dict_of(view: Any) -> dict[str, Any]:
    """The dict of a view of its values, which names it by a read-only proxy."""
    found: dict[str, Any] = gc.get_referents(view.mapping)[0]
    return found


_namespaces = _Namespaces()
atexit.register(_namespaces.forget)


@lru_cache(maxsize=1)
def _installed(_: tuple[int, ...]) -> tuple[list[tuple[str, ModuleType, Origin]], set[int]]:
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


def _search(
    name: str, module: ModuleType, origin: Origin, installed: set[int], found: _Found, views: list[ValuesView[Any]]
) -> None:
    """Search for functions of the program in a module and its classes.

    Args:
        installed: The ids of the namespaces of installed modules.
        found: Gets the functions.
        views: Gets the namespaces that were read.
    """
    own = vars(module)
    views.append(own.values())
    for attribute, value in list(own.items()):
        kind = type(value)
        if kind is FunctionType:
            namespace = value.__globals__
            if namespace is not own and id(namespace) not in installed and _is_programs(value):
                found.setdefault(origin.name, []).append((f"{name}.{attribute}", value))
        elif kind is type or isinstance(value, type):
            members = vars(value)
            if members.get("__module__") == name:
                views.append(members.values())
                for label, member in list(members.items()):
                    kind = type(member)
                    if kind is staticmethod or kind is classmethod:
                        member = member.__func__
                    elif kind is not FunctionType:
                        continue
                    namespace = getattr(member, "__globals__", own)
                    if namespace is not own and id(namespace) not in installed and _is_programs(member):
                        found.setdefault(origin.name, []).append((f"{name}.{attribute}.{label}", member))


def _is_programs(function: FunctionType) -> bool:
    """Whether a function is the program's. Libraries make functions from text, too, in namespaces of their own."""
    if not function.__code__.co_filename.startswith("<"):
        return True
    module = sys.modules.get(str(function.__globals__.get("__name__")))
    return module is not None and vars(module) is function.__globals__  # a notebook's cell
