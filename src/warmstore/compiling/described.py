"""What functions and objects are, in words that mean the same in every process.

Code counts by what it does: where it stands, comments, docstrings and names of local variables are left out. Objects
count by the name under which another process finds them, constants by their value. What has neither has no words.
"""

from __future__ import annotations

import hashlib
import inspect
import opcode
import sys
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

HEAP = 1 << 9
"""Py_TPFLAGS_HEAPTYPE, a flag of classes: made by a class statement, and not in C."""

_NO_MATTER = inspect.CO_NESTED | 0x4000000  # CO_HAS_DOCSTRING, from Python 3.13 on
_OF_CONSTANTS = frozenset(opcode.hasconst)


def code_digest(code: CodeType, *, parameters: bool = True) -> str:
    """The same for code that does the same, in 64 hexadecimal digits.

    Args:
        code: Of a function.
        parameters: Whether the names of its parameters count: callers may use them.
    """
    return hashlib.sha256(repr(_content(code, parameters)).encode()).hexdigest()


def function_digest(code: CodeType, function: FunctionType | None) -> str | None:
    """As `code_digest`, with the defaults of parameters, if the function is known; None where those have no words."""
    defaults = "" if function is None else _bound(function.__defaults__, function.__kwdefaults__)
    return None if defaults is None else f"{code_digest(code)} {defaults}".rstrip()


def _content(value: object, parameters: bool = True) -> object:
    if isinstance(value, CodeType):
        count = value.co_argcount + value.co_kwonlyargcount
        count += bool(value.co_flags & inspect.CO_VARARGS) + bool(value.co_flags & inspect.CO_VARKEYWORDS)
        constants = value.co_consts
        if constants and isinstance(constants[0], str | None) and not _loads_first(value.co_code):
            constants = constants[1:]  # the docstring, or None in its place
        return (
            value.co_code, value.co_names, value.co_varnames[:count] if parameters else (), value.co_exceptiontable,
            value.co_flags & ~_NO_MATTER, value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount,
            [_content(one) for one in constants],
        )  # fmt: skip
    if isinstance(value, frozenset):
        return ("set", sorted(repr(_content(one)) for one in value))
    if isinstance(value, tuple):
        return tuple(_content(one) for one in value)
    return (type(value).__name__, repr(value))


def _loads_first(code: bytes) -> bool:
    return any(code[at] in _OF_CONSTANTS and code[at + 1] == 0 for at in range(0, len(code), 2))


def find_function(module: str, qualname: str) -> tuple[CodeType | None, FunctionType | None]:
    """A function by its module and qualified name. Of one defined within another there is only the code."""
    value: Any = sys.modules.get(module)
    code: CodeType | None = None
    function: FunctionType | None = None
    for part in qualname.split("."):
        if part == "<locals>":
            continue
        if code is not None:
            inner = [one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == part]
            if len(inner) != 1:
                return None, None
            code, function = inner[0], None
            continue
        value = inspect.getattr_static(value, part, None)
        value = getattr(value, "__func__", value)
        value = getattr(value, "fget", value)
        function = inspect.unwrap(value) if callable(value) else value
        code = getattr(function, "__code__", None)
    return code, function if isinstance(function, FunctionType) else None


def describe(value: object) -> str | None:
    """What an object is called, if it can be found under that name in every process; functions with what they do."""
    return _describe(value, frozenset())


def describe_constant(value: object) -> str | None:
    """A number, a text, a dtype and the like by its value; None for anything else."""
    if value is None or value is NotImplemented or isinstance(value, bool | type(Ellipsis)):
        return f"constant {value!r}"
    if type(value) in (int, float, complex, str, bytes):
        return f"constant {value!r}"
    if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device", "layout", "memory_format"):
        return f"{type(value).__name__} {value}"
    return None


def describe_bound(function: FunctionType) -> str | None:
    """What a function has besides its code: defaults of parameters, and values of the scope it was made in."""
    return _bound_of(function, frozenset({id(function)}))


def _describe(value: object, above: frozenset[int]) -> str | None:
    if isinstance(value, ModuleType):
        return f"module {value.__name__}" if sys.modules.get(value.__name__) is value else None
    if value is None or value is NotImplemented or isinstance(value, bool | type(Ellipsis)):
        return f"constant {value!r}"
    if getattr(value, "_dynamo_marked_constant", False) or _is_python_object(value):
        return None  # called while tracing, and of an object only its class has a name
    if isinstance(value, MethodType):
        owner = _describe(value.__self__, above)
        return None if owner is None else f"method {value.__func__.__qualname__} of {owner}"
    if not isinstance(value, FunctionType | BuiltinFunctionType | type) and not callable(value):
        return None
    module = getattr(value, "__module__", None) or "torch"
    for name in (getattr(value, "__qualname__", ""), getattr(value, "__name__", "")):  # torch.sin has only its name
        found: Any = sys.modules.get(module)
        for part in str(name).split("."):
            found = getattr(found, part, None)
        if found is value or (isinstance(found, property) and found.fget is value):
            said = _function(value, module, above) if isinstance(value, FunctionType) else ""
            return None if said is None else f"object {module}:{name} {said}".rstrip()
    return None


def _function(function: FunctionType, module: str, above: frozenset[int]) -> str | None:
    digest = code_digest(function.__code__)
    if module.split(".")[0] == "torch" or id(function) in above:
        return digest  # the rest is as its version has it, or was said already
    bound = _bound_of(function, above | {id(function)})
    return None if bound is None else f"{digest} {bound}"


def _bound_of(function: FunctionType, above: frozenset[int]) -> str | None:
    try:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a cell that is empty so far
        return None
    return _bound(function.__defaults__, function.__kwdefaults__, cells, above=above)


def _bound(*values: object, above: frozenset[int] = frozenset()) -> str | None:
    """Values in words; nothing where there are none."""
    if not any(values):
        return ""
    said = _joined(values, above)
    return None if said is None else hashlib.sha256(said.encode()).hexdigest()


def _joined(values: Iterable[object], above: frozenset[int]) -> str | None:
    found = [_value(one, above) for one in values]
    return None if None in found else repr(found)


def _value(value: object, above: frozenset[int]) -> str | None:
    """A constant by its value, a collection by what is in it, other objects by their names."""
    if (said := describe_constant(value)) is not None:
        return said
    if type(value) in (tuple, list, dict):
        items = [part for pair in value.items() for part in pair] if isinstance(value, dict) else value
        said = _joined(items, above)  # type: ignore[arg-type]
        return None if said is None else f"{type(value).__name__} {said}"
    return _describe(value, above)


def _is_python_object(value: object) -> bool:
    """Whether this is an instance of somebody's class, which may be called and yet be anything."""
    kind = type(value)
    return bool(kind.__flags__ & HEAP) and not isinstance(value, type) and kind.__module__.split(".")[0] != "torch"
