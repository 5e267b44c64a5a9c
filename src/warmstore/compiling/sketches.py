"""What guards cannot tell another process: classes, and values that are reached by way of a name.

Torch saves a guard with the object that it looks at, and classes, modules and functions as names. So what such a guard
compares with is read anew in the process that loads it, and it holds whatever was changed meanwhile. Of methods and
base classes there are no guards at all. A sketch is a few words on a value or a class, for another process to compare.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import BuiltinFunctionType, CellType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

from warmstore.compiling.described import HEAP, describe, describe_constant

BY_NAME = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, MappingProxyType, CellType)
"""What torch saves as a name, and what leads on from there."""

_OF_EVERY_CLASS = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__annotate_func__",
    "__annotations_cache__", "__firstlineno__", "__static_attributes__", "__abstractmethods__", "_abc_impl",
    "__orig_bases__", "__parameters__", "__dataclass_fields__", "__dataclass_params__",
}  # fmt: skip


def sketch(value: object) -> str | None:
    """A constant by its value, a tensor by what it is like, a collection by its type, length and keys, functions,
    classes and modules by name and code, other objects by their class; None for what has no name."""
    import torch

    if (said := describe_constant(value)) is not None:
        return said
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout == torch.strided else ()
        return f"tensor {type(value).__qualname__} {value.dtype} {tuple(value.shape)} {strides} {value.device} " + str(
            value.requires_grad
        )
    if isinstance(value, Mapping):
        return f"{_name(type(value))} of {[sketch(key) for key in value]}"
    if isinstance(value, tuple | list | set | frozenset):
        return f"{_name(type(value))} of {len(value)}"
    if isinstance(value, type | ModuleType | FunctionType | BuiltinFunctionType):
        return describe(value)
    return f"object of {_name(type(value))}"


def class_of(value: object) -> type | None:
    """The class whose methods and attributes a program that meets a value may use; None for those of C."""
    import torch

    kind = value if isinstance(value, type) else type(value)
    of_c = not kind.__flags__ & HEAP
    return None if of_c or kind in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) else kind


def class_digest(kind: type) -> str:
    """64 hexadecimal digits of what a class has, and from whom: base classes, constants, and the names of methods with
    what they close over; not the code of methods, which counts where it was traced."""
    said = [
        [_name(base), [[name, _member(member)] for name, member in sorted(vars(base).items()) if _counts(base, name)]]
        for base in kind.__mro__
        if base.__flags__ & HEAP
    ]
    return hashlib.sha256(repr(said).encode()).hexdigest()


def _counts(base: type, name: str) -> bool:
    """Whether an attribute may differ: torch's are those of its version, unless somebody has replaced a function."""
    if base.__module__.split(".")[0] == "torch":
        member = vars(base)[name]
        return isinstance(member, FunctionType) and member.__module__.split(".")[0] != "torch"
    return name not in _OF_EVERY_CLASS


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _member(member: Any, depth: int = 0) -> object:
    if isinstance(member, property):
        return ["property", *(_member(one, depth) for one in (member.fget, member.fset, member.fdel))]
    if isinstance(member, staticmethod | classmethod):
        return [type(member).__name__, _member(member.__func__, depth)]
    if isinstance(member, FunctionType):
        if depth > 4:
            return "function"
        around = [_member(cell.cell_contents, depth + 1) for cell in member.__closure__ or () if not _is_empty(cell)]
        bound = [*(member.__defaults__ or ()), *(member.__kwdefaults__ or {}).items()]
        names = [member.__module__, member.__qualname__, member.__code__.co_qualname]
        return [names, around, [_member(one, depth + 1) for one in bound]]
    if isinstance(member, type):
        return _name(member)
    if isinstance(member, tuple | list) and depth < 4:
        return [type(member).__name__, *(_member(one, depth + 1) for one in member)]
    if isinstance(member, dict) and depth < 4:
        return ["dict", *([_member(key, depth + 1), _member(one, depth + 1)] for key, one in member.items())]
    return describe_constant(member) or _name(type(member))


def _is_empty(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False
