"""Runs actions on modules: at once for an imported module, else right after its import."""

import importlib.abc
import importlib.machinery
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType

_log = logging.getLogger("warmstore")

Action = Callable[[ModuleType], object]
Around = Callable[[], AbstractContextManager[object]]


class Watcher(importlib.abc.MetaPathFinder):
    """Runs actions right after modules were executed. What an action raises is logged, and the import goes on."""

    def __init__(self) -> None:
        self._actions: dict[str, tuple[Action, Around]] = {}

    def when_imported(self, name: str, action: Action, around: Around = nullcontext) -> None:
        """Run `action` with the module of that name: now when it is imported, else when it will be, which then happens
        inside of the context that `around` makes."""
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            _run(action, module)
            return
        self._actions[name] = action, around
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Forget all actions."""
        self._actions.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec from the other finders. The loader of a watched module then runs its action."""
        found = self._actions.pop(name, None)
        if found is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, *found)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, action: Action, around: Around) -> None:
        self._loader = loader
        self._action = action
        self._around = around

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module must not show that it was watched.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        with self._around():
            self._loader.exec_module(module)
        _run(self._action, module)

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)


def _run(action: Action, module: ModuleType) -> None:
    try:
        action(module)
    except Exception:
        _log.warning("the compile cache has no hooks in %s; it finds less", module.__name__, exc_info=True)
