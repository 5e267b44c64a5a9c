"""What the program has put into installed modules and classes: it runs where nothing that is read says so."""

from __future__ import annotations

import atexit
import sys
import threading
import warnings
from collections.abc import ValuesView
from functools import lru_cache
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any, Self

import numpy as np

from warmstore.identity.origin import WARMSTORE, Origin, origin_of
from warmstore.identity.watch import pointers

_Found = dict[str, list[tuple[str, FunctionType]]]
_COUNT = (FunctionType, staticmethod, classmethod, type, ModuleType)


class Patches(_Found):
    """All functions of the program's that stand in installed modules, and in the classes that those define.

    By the name of the distribution: where a function was put, and the function. Empty until it is looked for. Copies
    in other processes are empty.
    """

    def look(self) -> Self:
        """Look for all of them. It takes some milliseconds: who identifies several things asks once."""
        found = _namespaces.patches()
        self.clear()
        self.update(found)
        return self

    def __reduce__(self) -> Any:
        return Patches, ()


class _Namespaces:
    """What installed modules and their classes hold.

    There are 300,000 such values where PyTorch is loaded. They are compared with those of the last look, by their
    addresses and in C, and gone through where a function, a class or a module is another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._views: list[ValuesView[Any]] = []
        self._sizes: list[int] = []
        self._held = np.empty(0, object)
        self._found: _Found = {}

    def patches(self) -> _Found:
        with self._lock:
            try:
                moved = self._has_moved()
            except (RuntimeError, ValueError):  # another thread is at it
                moved = True
            if moved:
                self._scan()
            return self._found

    def forget(self) -> None:
        """Hold nothing, so that modules can be taken down in their order when Python ends."""
        self._views, self._held, self._found = [], np.empty(0, object), {}

    def _has_moved(self) -> bool:
        if not self._views or [*map(len, self._views)] != self._sizes:
            return True
        now, before = self._hold(), self._held
        changed = np.flatnonzero(pointers(now) != pointers(before))
        self._held = now
        return any(issubclass(type(one), _COUNT) for at in changed for one in (before[at], now[at]))

    def _hold(self) -> Any:
        return np.fromiter(chain.from_iterable(self._views), object, sum(self._sizes))

    def _scan(self) -> None:
        self._views, self._found = [], {}
        modules, theirs = _installed(tuple(map(id, list(sys.modules.values()))))
        views: list[ValuesView[Any]] = [sys.modules.values()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # modules warn of what is deprecated in them
            for name, module, origin in modules:
                _look_into(name, module, origin, theirs, self._found, views)
        self._sizes = [*map(len, views)]
        try:
            self._views = views
            self._held = self._hold()
        except (RuntimeError, ValueError):
            self._views = []  # it is gone through again next time


_namespaces = _Namespaces()
atexit.register(_namespaces.forget)


@lru_cache(maxsize=1)
def _installed(_: tuple[int, ...]) -> tuple[list[tuple[str, ModuleType, Origin]], set[int]]:
    """The installed modules that are loaded, and the ids of their namespaces. They change as modules come."""
    modules = [(name, one, origin_of(one)) for name, one in list(sys.modules.items()) if type(one) is ModuleType]
    theirs = [(name, one, origin) for name, one, origin in modules if not origin.is_program]
    return [one for one in theirs if one[2].name != WARMSTORE], {id(vars(one)) for _, one, _ in theirs}


def _look_into(
    name: str, module: ModuleType, origin: Origin, theirs: set[int], found: _Found, views: list[ValuesView[Any]]
) -> None:
    """Look for functions of the program's in a module and its classes.

    Args:
        theirs: ids of the namespaces of installed modules. found, views: of what is found, and of what was looked into.
    """
    own = vars(module)
    views.append(own.values())
    for attribute, value in list(own.items()):
        kind = type(value)
        if kind is FunctionType:
            namespace = value.__globals__
            if namespace is not own and id(namespace) not in theirs and _is_programs(value):
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
                    if namespace is not own and id(namespace) not in theirs and _is_programs(member):
                        found.setdefault(origin.name, []).append((f"{name}.{attribute}.{label}", member))


def _is_programs(function: FunctionType) -> bool:
    """Whether a function is the program's: libraries make some from text, in namespaces of their own."""
    if not function.__code__.co_filename.startswith("<"):
        return True
    module = sys.modules.get(str(function.__globals__.get("__name__")))
    return module is not None and vars(module) is function.__globals__  # a notebook's cell
