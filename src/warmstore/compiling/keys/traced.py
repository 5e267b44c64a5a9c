"""Checks of traced code: either the key of a package covers it, or it belongs to an installed module.

A key is made before tracing, from all code that tracing may read. Installed modules count by version instead. A change
of any other traced code would go unnoticed, so such code makes the package unusable.
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
    """The names of the installed modules whose code was traced. `unknown` gets a text for each traced code object that
    is neither installed nor `identified`, which is the code that the key covers, by address."""
    found = set()
    for code in traced:
        if id(code) in identified:
            continue  # it is in the key
        if code.co_filename == "<string>" and code.co_qualname.startswith("__create_fn__.<locals>."):
            continue  # a method that `dataclass` generated; the class has an identity
        module = _frozen(code) or inspect.getmodule(code)
        if module is None or origin_of(module).is_program:
            unknown.append(f"the code of {code.co_qualname} in {code.co_filename}")
        else:
            found.add(module.__name__)
    return found


def _frozen(code: CodeType) -> ModuleType | None:
    """The frozen module of Python that contains some code; None for code of a file."""
    name = code.co_filename.removeprefix("<frozen ").removesuffix(">")
    return sys.modules.get(name) if name != code.co_filename else None


def installed_text(name: str) -> str:
    """The version of an installed module, the program's changes to it, and a hash of its functions' defaults; "" for a
    module that is not loaded."""
    module = sys.modules.get(name)
    if module is None:
        return ""
    return " ".join([origin_of(module).text, *patched(name), defaults_text(module)])


def patched(name: str) -> list[str]:
    """The functions in an installed module and its classes that the program has replaced, or whose code is of another
    file."""
    module = sys.modules.get(name)
    if module is None:
        return []
    file = file_of(module)
    return sorted(
        f"{owner} {attribute}"
        for owner, attributes in _classes_of(module)
        for attribute, value in list(attributes.items())
        if (function := _function(value)) is not None
        and not (attribute == "__new__" and "_fields" in attributes)  # generated for a named tuple
        and (origin_of_function(function).is_program or _has_other_code(function, vars(module), file))
    )


def defaults_text(module: ModuleType) -> str:
    """A hash of the defaults of a module's functions and methods."""
    hashed = hashlib.sha256()
    for owner, values in _classes_of(module):
        for attribute, value in list(values.items()):
            function = _function(value)
            if function is None or function.__module__ != module.__name__:
                continue
            if (defaults := function.__defaults__) or function.__kwdefaults__:
                hashed.update(f"{owner} {attribute} {_text(defaults)} {_text(function.__kwdefaults__)}\n".encode())
    return hashed.hexdigest()[:16]


def _text(value: object) -> str:
    """The text of a default: its value for plain types, else its name or the name of its class."""
    if type(value) in (tuple, list):
        return f"({', '.join(map(_text, value))})"  # type: ignore[call-overload]
    if type(value) is dict:
        return str([(name, _text(item)) for name, item in sorted(value.items())])
    kind = type(value)
    is_plain = kind in _PLAIN or f"{kind.__module__}.{kind.__name__}" in ("torch.dtype", "torch.device")
    return repr(value) if is_plain else str(getattr(value, "__qualname__", kind.__qualname__))


def file_of(module: object) -> str:
    """The file of a module's code; "" for a module without a file."""
    return str(getattr(module, "__file__", None) or "")


def _has_other_code(function: FunctionType, variables: Mapping[str, Any], file: str) -> bool:
    """Whether a function of the module with these variables and this file has code from another file."""
    source = function.__code__.co_filename
    return function.__globals__ is variables and source != file and not source.startswith("<")


def _classes_of(module: ModuleType) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The variables of a module under the name "", and the attributes of each of its classes."""
    variables = vars(module)
    yield "", variables
    for name, value in list(variables.items()):
        if issubclass(type(value), type) and value.__module__ == module.__name__:
            yield name, vars(value)


def _function(value: object) -> FunctionType | None:
    kind = type(value)  # not `isinstance`, which asks proxy objects
    function = value.__func__ if kind in (staticmethod, classmethod) else value  # type: ignore[attr-defined]
    return function if type(function) is FunctionType else None
