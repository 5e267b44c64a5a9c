"""Names of objects and summaries of values: what another process can compare where torch's guards cannot.

Torch drops guards that compare which object something is, for an address means nothing elsewhere; the object's name
does. And it saves what a guard compares with by name where it is a class, a module or a function: then the guard
compares what it finds with itself, and a summary of the value is compared instead.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import BuiltinFunctionType, CellType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

BY_NAME = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, MappingProxyType, CellType)
"""What torch saves as a name, and what leads on from there."""

_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, and not in C


def stable_name(value: object) -> str | None:
    """The name under which every process finds the same object: a module, a function, a class, a bound method of these
    or a constant; None where there is none."""
    if isinstance(value, ModuleType):
        return f"module {value.__name__}" if sys.modules.get(value.__name__) is value else None
    if value is None or value is NotImplemented or isinstance(value, bool | type(Ellipsis)):
        return f"constant {value!r}"
    if getattr(value, "_dynamo_marked_constant", False) or _is_python_object(value):
        return None  # called while tracing, and of an object only its class has a name
    if isinstance(value, MethodType):
        owner = stable_name(value.__self__)
        return None if owner is None else f"method {value.__func__.__qualname__} of {owner}"
    if not isinstance(value, FunctionType | BuiltinFunctionType | type) and not callable(value):
        return None
    module = getattr(value, "__module__", None) or "torch"
    for name in (getattr(value, "__qualname__", ""), getattr(value, "__name__", "")):  # torch.sin has only its name
        found: Any = sys.modules.get(module)
        for part in str(name).split("."):
            found = getattr(found, part, None)
        if found is value or (isinstance(found, property) and found.fget is value):
            return f"object {module}:{name}"
    return None


def value_summary(value: object) -> str | None:
    """What a guard may compare of a value: constants by value, tensors by what they are like, collections by type,
    length and keys, functions, classes and modules by name, other objects by class; None for what has no name."""
    import torch

    if (said := _constant(value)) is not None:
        return said
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout == torch.strided else ()
        return f"tensor {type(value).__qualname__} {value.dtype} {tuple(value.shape)} {strides} {value.device} " + str(
            value.requires_grad
        )
    if isinstance(value, Mapping):
        return f"{_name(type(value))} of {[value_summary(key) for key in value]}"
    if isinstance(value, tuple | list | set | frozenset):
        return f"{_name(type(value))} of {len(value)}"
    if isinstance(value, type | ModuleType | FunctionType | BuiltinFunctionType):
        return stable_name(value)
    return f"object of {_name(type(value))}"


def _constant(value: object) -> str | None:
    if value is None or value is NotImplemented or isinstance(value, bool | type(Ellipsis)):
        return f"constant {value!r}"
    if type(value) in (int, float, complex, str, bytes):
        return f"constant {value!r}"
    if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device", "layout", "memory_format"):
        return f"{type(value).__name__} {value}"
    return None


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _is_python_object(value: object) -> bool:
    """Whether this is an instance of somebody's class, which may be called and yet be anything."""
    kind = type(value)
    return bool(kind.__flags__ & _HEAP) and not isinstance(value, type) and kind.__module__.split(".")[0] != "torch"
