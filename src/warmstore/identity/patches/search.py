"""The patches of all installed modules, found again where something has changed."""

from __future__ import annotations

import atexit
import sys
import threading
import warnings
from contextlib import suppress
from itertools import chain
from types import ModuleType
from typing import Any, NamedTuple, Self

import numpy as np

from warmstore._native import floor
from warmstore.identity.origin import PYTHON, WARMSTORE, Origin, origin_of
from warmstore.identity.patches.bindings import bindings_of
from warmstore.identity.patches.candidates import DATA, Candidate, Installed, ModuleSearch
from warmstore.identity.watch import pointers


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


class _Module(NamedTuple):
    """A loaded module, where it comes from, and the id of its namespace."""

    module: ModuleType
    origin: Origin
    namespace: int

    @property
    def is_searched(self) -> bool:
        return not self.origin.is_program and self.origin.name != WARMSTORE


class _Namespaces:
    """The installed modules and their classes, searched module by module.

    With PyTorch they hold 100,000 values. A check compares their addresses with those of the last search, in C, and
    searches a module again only if one of its functions, classes, objects or settings has changed. After an import
    only the new modules are searched.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: tuple[int, ...] = ()
        self._modules: dict[str, _Module] = {}
        self._searched: dict[str, _Searched] = {}
        self._found: dict[str, list[_Searched]] = {}
        self._dicts: list[dict[Any, Any]] = []  # of all modules
        self._addresses = np.empty(0, np.uint64)

    def by_distribution(self) -> dict[str, list[_Searched]]:
        with self._lock:
            loaded = tuple(map(id, list(sys.modules.values())))
            is_same = floor.same_values(self._dicts, self._addresses)
            if loaded == self._loaded and is_same:
                return self._found
            before = self._searched
            moved = set() if is_same else {name for name, each in before.items() if each.has_moved()}
            if loaded != self._loaded or moved:
                self._search_again(moved)
                self._loaded = loaded
            now = self._searched
            if is_same and all(now.get(name) is each for name, each in before.items()):
                added = [each for name, each in now.items() if name not in before]
                addresses = [self._addresses]
            else:
                added, addresses, self._dicts = list(now.values()), [], []
            self._dicts += [each for searched in added for each in searched.dicts]
            self._addresses = np.concatenate([*addresses, *(each.addresses for each in added)])
            return self._found

    def _search_again(self, moved: set[str]) -> None:
        """Search the modules that are new or have moved, and choose anew among the candidates of all."""
        loaded = _loaded_modules(self._modules)
        searched = self._searched
        if any(name not in loaded or loaded[name].module is not each.module for name, each in searched.items()):
            searched = {}  # functions of a module that is gone may count as the program's
        mock = getattr(sys.modules.get("unittest.mock"), "NonCallableMock", None)
        installed = Installed(
            frozenset(each.namespace for each in loaded.values() if not each.origin.is_program), mock=mock
        )
        self._modules = loaded
        self._searched = {
            name: _Searched(name, each.module, each.origin, installed)
            if name in moved or name not in searched
            else searched[name]
            for name, each in loaded.items()
            if each.is_searched
        }
        self._found = {}
        for each in self._searched.values():
            if each.choose(installed):
                self._found.setdefault(each.origin.name, []).append(each)

    def forget(self) -> None:
        """Drop all references, so that Python frees modules in its own order when it ends."""
        self._modules, self._searched, self._found, self._dicts = {}, {}, {}, []
        bindings_of.cache_clear()


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
        if not self._search.candidates:
            return False
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


def _loaded_modules(known: dict[str, _Module]) -> dict[str, _Module]:
    """All loaded modules by name.

    Args:
        known: those at the last call.
    """
    modules = {}
    for name, module in list(sys.modules.items()):
        before = known.get(name)
        if before is not None and before.module is module:
            modules[name] = before
        elif issubclass(type(module), ModuleType):
            modules[name] = _Module(module, origin_of(module), id(vars(module)))
    return modules
