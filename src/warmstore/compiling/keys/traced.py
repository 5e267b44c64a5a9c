"""What was traced: code that the key of a package knows, or that of installed modules, which count by their versions.

A key is made before anything is traced, of all that tracing may look at. Whatever tracing met beside would be found
again however it had changed.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from warmstore.identity.origin import origin_of, origin_of_function

_PLAIN = (int, float, complex, str, bytes, bool, type(None))


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
    """The version of an installed module, what the program has put into it, and the defaults of its functions; "" where
    it is not loaded."""
    module = sys.modules.get(name)
    if module is None:
        return ""
    return " ".join([origin_of(module).text, *patched(name), defaults_text(module)])


def patched(name: str) -> list[str]:
    """What an installed module and its classes hold that is the program's, in code of its own or another's."""
    module = sys.modules.get(name)
    if module is None:
        return []
    file = file_of(module)
    return sorted(
        f"{owner} {attribute}"
        for owner, held in _classes_of(module)
        for attribute, value in list(held.items())
        if (function := _function(value)) is not None
        and not (attribute == "__new__" and "_fields" in held)  # which Python makes of a named tuple's fields
        and (origin_of_function(function).is_program or _has_other_code(function, vars(module), file))
    )


def defaults_text(module: ModuleType) -> str:
    """What tells the defaults of a module's functions and methods from others."""
    said = hashlib.sha256()
    for owner, values in _classes_of(module):
        for attribute, value in list(values.items()):
            function = _function(value)
            if function is None or function.__module__ != module.__name__:
                continue
            if (defaults := function.__defaults__) or function.__kwdefaults__:
                said.update(f"{owner} {attribute} {_text(defaults)} {_text(function.__kwdefaults__)}\n".encode())
    return said.hexdigest()[:16]


def _text(value: object) -> str:
    """A default; of objects only the name of their class, or their own."""
    if type(value) in (tuple, list):
        return f"({', '.join(map(_text, value))})"  # type: ignore[call-overload]
    if type(value) is dict:
        return str([(name, _text(one)) for name, one in sorted(value.items())])
    kind = type(value)
    is_told = kind in _PLAIN or f"{kind.__module__}.{kind.__name__}" in ("torch.dtype", "torch.device")
    return repr(value) if is_told else str(getattr(value, "__qualname__", kind.__qualname__))


def file_of(module: object) -> str:
    """The file of a module's code; "" where there is none."""
    return str(getattr(module, "__file__", None) or "")


def _has_other_code(function: FunctionType, held: Mapping[str, Any], file: str) -> bool:
    """Whether a function of a module runs code that was not written in it."""
    written = function.__code__.co_filename
    return function.__globals__ is held and written != file and not written.startswith("<")


def _classes_of(module: ModuleType) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What a module holds, and what its classes hold."""
    held = vars(module)
    yield "", held
    for name, value in list(held.items()):
        if issubclass(type(value), type) and value.__module__ == module.__name__:
            yield name, vars(value)


def _function(value: object) -> FunctionType | None:
    kind = type(value)  # which asks no object that stands in for another
    function = value.__func__ if kind in (staticmethod, classmethod) else value  # type: ignore[attr-defined]
    return function if type(function) is FunctionType else None
