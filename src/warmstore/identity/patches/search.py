"""The patches of all installed modules, found again where something has changed."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from types import ModuleType
from typing import Any, NamedTuple, Self

import numpy as np

from warmstore._native import floor
from warmstore.identity.object_state import pointers
from warmstore.identity.origin import PYTHON, WARMSTORE, Origin, origin_of
from warmstore.identity.patches.bindings import bindings_of
from warmstore.identity.patches.candidates import DATA, Installed, ModuleSearch, PatchCandidate
from warmstore.storage.locks import is_held


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
        self.lock = threading.Lock()
        self._loaded = np.empty(0, np.uint64)  # the addresses of the values of `sys.modules`
        self._modules: dict[str, _Module] = {}
        self._searched: dict[str, _Searched] = {}
        self._found: dict[str, list[_Searched]] = {}
        self._namespaces: frozenset[int] = frozenset()  # of installed modules
        self._forget_values()

    def by_distribution(self) -> dict[str, list[_Searched]]:
        with self.lock:
            count = np.array([len(self._loaded)])
            are_others = bool(floor.changed_dicts([sys.modules], count, self._loaded))
            changed = {self._owners[at] for at in floor.changed_dicts(self._dicts, self._sizes, self._addresses)}
            if not are_others and not changed:
                return self._found
            before = self._searched
            moved = {name for name in changed if before[name].has_moved()}
            if are_others:
                loaded = np.fromiter(map(id, list(sys.modules.values())), np.uint64)
                self._load(moved)
                self._loaded = loaded
            elif moved:
                self._search_again(moved)
            self._remember(before, changed)
            return self._found

    # What the next look compares with: the values of all modules, one after another.

    def _forget_values(self) -> None:
        self._dicts: list[dict[Any, Any]] = []
        self._owners: list[str] = []  # the name of the module of each dict
        self._sizes = np.empty(0, np.int64)
        self._addresses = np.empty(0, np.uint64)
        self._places: dict[str, tuple[int, int]] = {}  # of each module, among the dicts and among the addresses

    def _remember(self, before: dict[str, _Searched], changed: set[str]) -> None:
        """Remember the values of modules that have changed or are new; of all where some need more or less room."""
        now = self._searched
        again = [name for name, each in now.items() if name in before and (name in changed or each is not before[name])]
        if before.keys() <= now.keys() and all(np.array_equal(now[name].sizes, before[name].sizes) for name in again):
            for name in again:
                (dicts, first), each = self._places[name], now[name]
                self._dicts[dicts : dicts + len(each.dicts)] = each.dicts
                self._addresses[first : first + len(each.addresses)] = each.addresses
        else:
            self._forget_values()
        added = [each for name, each in now.items() if name not in self._places]
        end = len(self._addresses)
        for each in added:
            self._places[each.name] = len(self._dicts), end
            self._dicts += each.dicts
            self._owners += [each.name] * len(each.dicts)
            end += len(each.addresses)
        self._sizes = np.concatenate([self._sizes, *(each.sizes for each in added)])
        self._addresses = np.concatenate([self._addresses, *(each.addresses for each in added)])

    def _load(self, moved: set[str]) -> None:
        """Search the modules that are new or have moved, and choose anew among the candidates of all."""
        loaded = _loaded_modules(self._modules)
        searched = self._searched
        if any(name not in loaded or loaded[name].module is not each.module for name, each in searched.items()):
            searched = {}  # functions of a module that is gone may count as the program's
        self._modules = loaded
        self._namespaces = frozenset(each.namespace for each in loaded.values() if not each.origin.is_program)
        installed = self._installed()
        self._searched = {
            name: _Searched(name, each.module, each.origin, installed)
            if name in moved or name not in searched
            else searched[name]
            for name, each in loaded.items()
            if each.is_searched
        }
        self._choose(self._searched.values(), installed)

    def _search_again(self, moved: set[str]) -> None:
        """Search modules that have moved, where no others are loaded."""
        installed = self._installed()
        again = {
            name: _Searched(name, each.module, each.origin, installed)
            for name, each in self._modules.items()
            if name in moved
        }
        self._searched = self._searched | again
        self._choose(again.values(), installed)

    def _installed(self) -> Installed:
        return Installed(self._namespaces, mock=getattr(sys.modules.get("unittest.mock"), "NonCallableMock", None))

    def _choose(self, searched: Iterable[_Searched], installed: Installed) -> None:
        for each in searched:
            each.choose(installed)
        self._found = {}
        for each in self._searched.values():
            if each.is_patched:
                self._found.setdefault(each.origin.name, []).append(each)

    def forget(self) -> None:
        """Drop all references, so that Python frees modules in its own order when it ends."""
        self._modules, self._searched, self._found = {}, {}, {}
        self._forget_values()
        bindings_of.cache_clear()


class _Searched:
    """A module and its classes, as they were when they were searched.

    dicts: what was searched. sizes: int64 [len(dicts)], how many values each has, or -1. addresses: uint64 [n], of
    these values.
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
        self._chosen: list[PatchCandidate] = []
        self._patches: list[tuple[str, Any]] | None = None
        self._held: Any = np.empty(0, object)
        self.sizes = np.full(len(self.dicts), -1)
        with suppress(RuntimeError, ValueError):  # another thread changes a namespace: the next check reads it again
            held, sizes = self._hold(), np.array([len(each) for each in self.dicts])
            if len(held) == sizes.sum():
                self._held, self.sizes = held, sizes
        self.addresses = pointers(self._held).view(np.uint64)

    @property
    def is_patched(self) -> bool:
        """Whether any candidates may be patches."""
        return bool(self._chosen)

    def choose(self, installed: Installed) -> None:
        """Select the candidates that may be patches among the modules that are loaded now."""
        chosen = self._search.chosen(installed) if self._search.candidates else []
        if chosen != self._chosen:
            self._chosen, self._patches = chosen, None

    def patches(self) -> list[tuple[str, Any]]:
        """The patches in this module, with their places. Reads the code of the module at the first call."""
        if self._patches is None:
            self._patches = self._search.confirmed(self._chosen)
        return self._patches

    def has_moved(self) -> bool:
        """Whether a function, class, object or setting has changed since the search. If not, this takes the values."""
        try:
            now, before = self._hold(), self._held
        except (RuntimeError, ValueError):
            return True
        if len(now) != len(before) or [len(each) for each in self.dicts] != self.sizes.tolist():
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


def _forget() -> None:
    _namespaces.forget()


def _after_fork() -> None:
    """Start anew if a thread of the parent's, which is not there, was in the middle of a search."""
    global _namespaces
    if is_held(_namespaces.lock):
        _namespaces = _Namespaces()


atexit.register(_forget)
os.register_at_fork(after_in_child=_after_fork)


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
