"""Code in files of its own, changed between runs."""

import importlib.util
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., ModuleType]]:
    """Import source code under a module name; a later call is the program after an edit."""
    names = set()

    def load(source: str, name: str = "program_under_test") -> ModuleType:
        # A file of its own each time: what reads sources remembers them by their path.
        path = tmp_path / f"{name}_{len(list(tmp_path.glob(f'{name}_*.py')))}.py"
        path.write_text(textwrap.dedent(source))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        names.add(name)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in names:
        sys.modules.pop(name, None)
