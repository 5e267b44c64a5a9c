"""Starts the compile cache in every Python process of `warmstore run`, when torch or JAX is imported.

Python imports a module of this name at its start. warmstore is imported only when torch or JAX is. A `sitecustomize` of
the user, which this module hides, is run too.
"""

import atexit
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

_HERE = str(Path(__file__).parent)


class _Starter:
    """An import finder that finds no module. It starts the cache when torch or JAX is imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in ("torch", "jax"):
            sys.meta_path.remove(self)
            _begin()


def _begin() -> None:
    try:
        from warmstore.compiling.compile_cache import init

        atexit.register(_print_summary, init())
    except Exception as error:
        from warmstore.errors import message_of

        print(f"warmstore run: no compile cache in this process: {message_of(error)}", file=sys.stderr)


def _print_summary(cache: Any) -> None:
    """Print hits and misses, if there were lookups."""
    from warmstore.compiling.misses.lookup_log import summary

    if cache.active and cache.session.lookups:
        print(f"warmstore run, {cache.session.job}: {summary(cache.session.lookups)}", file=sys.stderr)


def _run_hidden_sitecustomize() -> None:
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != _HERE])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


# Compile workers write into the scratch directory of the process that started them.
if not any("compile_worker" in argument for argument in sys.orig_argv):
    sys.meta_path.insert(0, _Starter())
_run_hidden_sitecustomize()
