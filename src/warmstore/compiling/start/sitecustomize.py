"""What `warmstore run` has every Python process do at its start: begin the compile cache when torch or JAX is imported.

Python imports a module of this name by itself. Nothing of warmstore is loaded until then, and the module of the same name
that this one hides is run as if it were not hidden.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Starter:
    """Finds nothing, and hears of everything."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name in ("torch", "jax"):
            sys.meta_path.remove(self)  # type: ignore[arg-type]
            _begin()
        return


def _begin() -> None:
    try:
        from warmstore.compiling.compile_cache import init

        init()
    except Exception as error:
        print(f"warmstore run: no compile cache in this process: {error}", file=sys.stderr)


def _run_the_hidden() -> None:
    elsewhere = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


# Processes that compile for another one write where that one says.
if not any("compile_worker" in argument for argument in sys.orig_argv):
    sys.meta_path.insert(0, _Starter())  # type: ignore[arg-type]
_run_the_hidden()
