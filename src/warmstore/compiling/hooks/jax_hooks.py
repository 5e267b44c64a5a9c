"""Hooks on the compilation cache of JAX. Like `torch_hooks`, they replace private functions; JAX works without them."""

import functools
import inspect
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

from warmstore.compiling.hooks.import_hooks import Around, Watcher
from warmstore.compiling.hooks.listener import Listener
from warmstore.compiling.misses.key_descriptions import of_jax

VARIABLES = {
    "JAX_ENABLE_COMPILATION_CACHE": "true",
    # Otherwise the compiler's options, and so the key, contain the name of the folder.
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
"""With these options JAX stores every program, and keys do not depend on the folder."""


class JaxHooks:
    """Sets the hooks when JAX's modules are imported, and removes them."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._replaced: list[tuple[Any, str, Any]] = []
        self._options: dict[str, tuple[Any, Any]] = {}  # the values before and after `set_options`

    def watch(self, watcher: Watcher, around: Around) -> None:
        """Set each hook, and the options, as soon as the module of JAX is imported. Inside of `around`, JAX finds the
        variables of the user, which decide on the options after `remove`."""
        watcher.when_imported("jax._src.config", lambda module: self.set_options(), around)
        watcher.when_imported("jax._src.lru_cache", self._lru_cache)
        watcher.when_imported("jax._src.compilation_cache", self._compilation_cache)
        watcher.when_imported("jax._src.compiler", self._compiler)

    def remove(self) -> None:
        """Restore the functions and options of JAX."""
        replaced, self._replaced = self._replaced, []
        options, self._options = self._options, {}
        with ExitStack() as stack:  # calls in reverse order, each even if another one fails
            stack.callback(self._forget_folder)
            for option, (before, after) in options.items():
                config = sys.modules["jax._src.config"].config
                if getattr(config, option) == after:  # otherwise the program has set it since
                    stack.callback(config.update, option, before)
            for holder, name, original in replaced:
                stack.callback(setattr, holder, name, original)

    def set_options(self) -> None:
        """Set the options of an imported JAX, each with the type of its present value."""
        module = sys.modules.get("jax._src.config")
        if module is None:
            return
        for variable in ("JAX_COMPILATION_CACHE_DIR", *VARIABLES):
            option = variable.lower()
            now = getattr(module.config, option, None)
            value: Any = os.environ[variable]
            if isinstance(now, bool):
                value = value == "true"
            elif isinstance(now, int | float):
                value = type(now)(value)
            before, _ = self._options.get(option, (now, None))
            self._options[option] = before, value
            module.config.update(option, value)
        self._forget_folder()

    def _forget_folder(self) -> None:
        """Close the cache of JAX, so that JAX opens the new folder."""
        cache = sys.modules.get("jax._src.compilation_cache")
        if cache is not None and hasattr(cache, "reset_cache"):
            cache.reset_cache()

    def _replace(self, holder: Any, name: str, replacement: Any) -> None:
        self._replaced.append((holder, name, inspect.getattr_static(holder, name)))
        setattr(holder, name, replacement)

    def _lru_cache(self, module: ModuleType) -> None:
        cache = module.LRUCache
        get, put, suffix = cache.get, cache.put, module._CACHE_SUFFIX

        def path_of(self_: Any, key: str) -> str | None:
            return self._listener.inside(str(Path(self_.path) / f"{key}{suffix}"))

        @functools.wraps(get)
        def reporting_get(self_: Any, key: str) -> bytes | None:
            if (inside := path_of(self_, key)) is not None:
                self._listener.wanted(inside, alone=_stores())
            found: bytes | None = get(self_, key)
            return found

        @functools.wraps(put)
        def reporting_put(self_: Any, key: str, value: bytes) -> None:
            put(self_, key, value)
            if (inside := path_of(self_, key)) is not None:
                self._listener.made(inside)

        self._replace(cache, "get", reporting_get)
        self._replace(cache, "put", reporting_put)

    def _compilation_cache(self, module: ModuleType) -> None:
        get_cache_key = module.get_cache_key

        @functools.wraps(get_cache_key)
        def described(program: Any, devices: Any, options: Any, *args: Any, **kwargs: Any) -> str:
            key: str = get_cache_key(program, devices, options, *args, **kwargs)
            folder = os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
            if (inside := self._listener.inside(str(Path(folder) / f"{key}-cache"))) is not None:
                flags = os.environ.get("XLA_FLAGS", "")
                self._listener.describe(inside, lambda: of_jax(str(program), options.SerializeAsString(), flags))
            return key

        self._replace(module, "get_cache_key", described)

    def _compiler(self, module: ModuleType) -> None:
        compile_or_get = module.compile_or_get_cached

        @functools.wraps(compile_or_get)
        def compile_or_get_cached(*args: Any, **kwargs: Any) -> Any:
            try:
                return compile_or_get(*args, **kwargs)
            finally:
                self._listener.landed()

        self._replace(module, "compile_or_get_cached", compile_or_get_cached)


def _stores() -> bool:
    """Whether JAX stores what this process compiles: only the first process of a distributed job does. Nobody must wait
    for a result of the others."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return not getattr(state, "process_id", 0)
