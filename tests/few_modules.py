"""The short run searches few modules for patches: tests import some 8,000, and a search of all takes seconds."""

import atexit
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from warmstore.identity.patches import search

_SEARCHED = ("numpy", "pillow", "python")
"""Distributions of which patches count. Of torch's modules only those of `torch.nn` are searched."""

_all_modules = search._loaded_modules
_of_all = search._Namespaces()
atexit.register(_of_all.forget)  # as those of the program


def _few_modules(known: Any) -> Any:
    return {
        name: each
        for name, each in _all_modules(known).items()
        if each.origin.name in _SEARCHED or name.startswith("torch.nn.")
    }


def search_few_modules() -> None:
    """From now on, in this process and its forks."""
    search._loaded_modules = _few_modules


@contextlib.contextmanager
def all_modules_searched() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(search, "_loaded_modules", _all_modules)
        patched.setattr(search, "_namespaces", _of_all)
        yield
