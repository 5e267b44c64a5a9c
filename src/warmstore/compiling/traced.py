"""What was traced: code that the key of a package knows, or that of installed modules, which count by their versions.

A key is made before anything is traced, of all that tracing may look at. Whatever tracing met beside would be found
again however it had changed.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from warmstore.identity.origin import origin_of, origin_of_function


def installed_modules(traced: Iterable[CodeType], identified: Mapping[int, CodeType], unknown: list[str]) -> set[str]:
    """The installed modules whose code was traced. What is neither in one of those nor identified is unknown: whoever
    looks for the package could not tell whether it has changed."""
    found = set()
    for code in traced:
        if id(code) in identified:
            continue  # it is in the key
        if code.co_filename == "<string>" and code.co_qualname.startswith("__create_fn__.<locals>."):
            continue  # made of the fields of a dataclass, which count with it
        module = _frozen(code) or inspect.getmodule(code)
        if module is None or origin_of(module).is_program:
            unknown.append(f"the code of {code.co_qualname} in {code.co_filename}")
        else:
            found.add(module.__name__)
    return found


def _frozen(code: CodeType) -> ModuleType | None:
    """The module of Python's own that code is in, where that is in no file."""
    name = code.co_filename.removeprefix("<frozen ").removesuffix(">")
    return sys.modules.get(name) if name != code.co_filename else None


def installed_text(name: str) -> str:
    """The version of an installed module, and what the program has put into it; "" where it is not loaded."""
    module = sys.modules.get(name)
    if module is None:
        return ""
    patched = [
        f"{owner} {attribute}"
        for owner, held in _classes_of(module)
        for attribute, value in held.items()
        if _is_programs(value)
    ]
    return " ".join([origin_of(module).text, *sorted(patched)])


def _classes_of(module: ModuleType) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What a module holds, and what its classes hold."""
    held = vars(module)
    yield "", held
    for name, value in list(held.items()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield name, vars(value)


def _is_programs(value: object) -> bool:
    function = getattr(value, "__func__", value) if isinstance(value, staticmethod | classmethod) else value
    return isinstance(function, FunctionType) and origin_of_function(function).is_program
