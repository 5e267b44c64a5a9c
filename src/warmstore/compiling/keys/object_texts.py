"""What another process can compare of an object that guards compare by its address."""

from __future__ import annotations

import enum
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from warmstore.compiling.keys.identified import identity_of

_CONSTANTS = (int, float, complex, str, bytes, bool, type(None), type(NotImplemented), type(Ellipsis))
_NAMED = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType, enum.Enum)


def object_text(value: Any) -> str | None:
    """What tells a constant, function, class, module or member of an enumeration from all others; of collections too.

    Of a tensor it tells what guards look at.

    None where that cannot be told, and for other objects: of them there may be two that look the same.
    """
    if type(value) in _CONSTANTS:
        return f"constant {value!r}"
    if type(value) in (tuple, list, dict):
        inside = [object_text(one) for one in (value.items() if type(value) is dict else value)]
        return None if None in inside else f"{type(value).__name__} {inside}"
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout == torch.strided else ()
        like = (value.dtype, tuple(value.shape), strides, value.layout, value.device, value.requires_grad)
        return f"tensor {type(value).__qualname__} {like}"
    if not isinstance(value, _NAMED):
        return None
    found = identity_of(value)
    return None if found.unknown else f"{type(value).__name__} {found.digest}"
