"""The patches of all installed modules, found again where something has changed."""

from __future__ import annotations

import atexit
import sys
import threading
import warnings
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from types import ModuleType
from typing import Any, Self

import numpy as np

from warmstore._native import floor
from warmstore.identity.origin import PYTHON, WARMSTORE, Origin, origin_of
from warmstore.identity.patches.bindings import bindings_of
from warmstore.identity.patches.candidates import DATA, Candidate, Installed, ModuleSearch
from warmstore.identity.watch import pointers

_Module = tuple[str, ModuleType, Origin]


class Patches:
    """What the program has put into installed modules and their classes. Empty until `look`; pickles are empty."""

    def __init__(self) -> None:
        self._by_distribution: dict[str, list[_Searched]] = {}

    def look(self) -> Self:
        """Search for them. It takes some milliseconds, so one search serves several identities."""
        self._by_distribution = _namespaces.by_distribution()
        return self

    def of(self, distribution: str) -> list[tuple[str, Any]]:
        """The patches in the modules of a distribution: their places, such as "json.dumps", and values."""
        return [patch for searched in self._by_distribution.get(distribution, ()) for patch in searched.patches()]

    @property
    def distributions(self) -> list[str]:
        """The names of all distributions that have been searched."""
        return list(self._by_distribution)

    def __reduce__(self) -> Any:
        return Patches, ()


class _Namespaces:
    """The installed modules and their classes, searched module by module.

    With PyTorch they hold 100,000 values. A check compares their addresses with those of the last search, in C, and
    searches a module again only if one of its functions, classes, objects or settings has changed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: tuple[int, ...] = ()
        self._modules: dict[str, _Searched] = {}
        self._found: dict[str, list[_Searched]] = {}
        self._dicts: list[dict[Any, Any]] = []  # of all modules
        self._addresses = np.empty(0, np.uint64)

    def by_distribution(self) -> dict[str, list[_Searched]]:
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

    def _search_again(self, modules: list[_Module], installed: Installed, moved: set[str]) -> None:
        known, now = self._modules, {name: module for name, module, _ in modules}
        if any(now.get(name) is not each.module for name, each in known.items()):
            known = {}  # functions of a module that is gone may count as the program's
        self._modules = {
            name: _Searched(name, module, origin, installed) if name in moved or name not in known else known[name]
            for name, module, origin in modules
        }
        self._found = {}
        for each in self._modules.values():
            if each.choose(installed):
                self._found.setdefault(each.origin.name, []).append(each)

    def forget(self) -> None:
        """Drop all references, so that Python frees modules in its own order when it ends."""
        self._modules, self._found, self._dicts = {}, {}, []
        bindings_of.cache_clear()
        _installed.cache_clear()


class _Searched:
    """A module and its classes, as they were when they were searched.

    dicts: what was searched. addresses: uint64 [n], of the values in them.
    """

    def __init__(self, name: str, module: ModuleType, origin: Origin, installed: Installed) -> None:
        self.name = name
        self.module = module
        self.origin = origin
        self._search = ModuleSearch(name, module, installed, is_of_python=origin.kind == PYTHON)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # modules warn of deprecated attributes
            self._search.run()
        self.dicts = self._search.dicts
        self._chosen: list[Candidate] = []
        self._patches: list[tuple[str, Any]] | None = None
        self._held: Any = np.empty(0, object)
        with suppress(RuntimeError, ValueError):  # another thread changes a namespace: the next check reads it again
            self._held = self._hold()
        self.addresses = pointers(self._held).view(np.uint64)

    def choose(self, installed: Installed) -> bool:
        """Select the candidates that may be patches among the modules that are loaded now. Returns whether any are."""
        chosen = self._search.chosen(installed)
        if chosen != self._chosen:
            self._chosen, self._patches = chosen, None
        return bool(chosen)

    def patches(self) -> list[tuple[str, Any]]:
        """The patches in this module, with their places. Reads the code of the module at the first call."""
        if self._patches is None:
            self._patches = self._search.confirmed(self._chosen)
        return self._patches

    def has_moved(self) -> bool:
        """Whether a function, class, object or setting has changed since the search."""
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
        return any(
            type(value) not in DATA or self._is_setting(at)
            for at in changed.tolist()
            for value in (before[at], now[at])
        )

    def _is_setting(self, at: int) -> bool:
        own = list(self.dicts[0])
        return at < len(own) and self._search.is_setting(own[at])

    def _hold(self) -> Any:
        values = chain.from_iterable(map(dict.values, self.dicts))
        return np.fromiter(values, object, sum(map(len, self.dicts)))


_namespaces = _Namespaces()
atexit.register(_namespaces.forget)


@lru_cache(maxsize=1)
def _installed(_: tuple[int, ...]) -> tuple[list[_Module], Installed]:
    """The installed modules that are loaded, without warmstore's own, and what is known of all of them.

    Args:
        _: The ids of all loaded modules: the answer changes with them.
    """
    modules = [
        (name, module, origin)
        for name, module in list(sys.modules.items())
        if issubclass(type(module), ModuleType) and not (origin := origin_of(module)).is_program
    ]
    others = [entry for entry in modules if entry[2].name != WARMSTORE]
    mock = getattr(sys.modules.get("unittest.mock"), "NonCallableMock", None)
    return others, Installed(frozenset(id(vars(module)) for _, module, _ in modules), mock=mock)
