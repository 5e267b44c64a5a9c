"""The objects that an object of a registered type refers to: its attributes, also those in slots, and its items."""

import contextlib
import types
from typing import Any


def held_by(value: Any) -> list[Any]:
    """The values of an object's attributes, and its items. What only C code refers to is not among them."""
    held = list(vars(value).values()) if hasattr(value, "__dict__") else []
    for cls in type(value).__mro__:
        for slot in vars(cls).values():
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # a slot that is not set
                    held.append(slot.__get__(value))
    if isinstance(value, dict):
        held += value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        held += value
    return held
