"""Texts that identify objects in every process, for guards that compare addresses in one process."""

from __future__ import annotations

import enum
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from warmstore.compiling.keys.identified import identity_of

_CONSTANTS = (int, float, complex, str, bytes, bool, type(None), type(NotImplemented), type(Ellipsis))
_NAMED = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType, enum.Enum)


def object_text(value: Any) -> str | None:
    """Identify a constant, function, class, module, member of an enumeration, or a collection of these.

    The text of a tensor has what guards check. None for other objects, since two of them may look the same, and for
    objects without an identity.
    """
    if type(value) in _CONSTANTS:
        return f"constant {value!r}"
    if type(value) in (tuple, list, dict):
        texts = [object_text(item) for item in (value.items() if type(value) is dict else value)]
        return None if None in texts else f"{type(value).__name__} {texts}"
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout == torch.strided else ()
        checked = (value.dtype, tuple(value.shape), strides, value.layout, value.device, value.requires_grad)
        return f"tensor {type(value).__qualname__} {checked}"
    if not isinstance(value, _NAMED):
        return None
    identity = identity_of(value)
    return None if identity.unknown else f"{type(value).__name__} {identity.digest}"
