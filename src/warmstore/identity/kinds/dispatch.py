"""The choice of a rule: a registration, `__identity__`, the exact type, a base class, else the rule of all objects."""

from __future__ import annotations

import ctypes
import enum
import re
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.identity.kinds import (
    arrays,
    callables,
    containers,
    mocks,
    mutable_state,
    objects,
    opaque,
    progress_bars,
    registered,
    sets,
    stores_of_arrays,
    tables,
)
from warmstore.identity.kinds.registry import Rule, inert, rules
from warmstore.identity.object_state import has_identity, has_plain_state
from warmstore.identity.places import Place
from warmstore.identity.walk import Walk

_FAMILIES = (arrays, callables, containers, sets, objects, opaque, mutable_state, tables)
"""Importing these modules fills the table of rules."""

_BASES: tuple[tuple[Any, Rule], ...] = (
    (enum.Enum, objects.enum_member),
    (np.ndarray, arrays.array_subclass),
    (ctypes.CDLL, objects.native_library),
    (Path, objects.path),
    (vars(typing)["_Final"], callables.typing_form),
    (np.dtype, arrays.dtype),
    ((property, staticmethod, classmethod), callables.descriptor),
)
_VALUES = frozenset(
    (tuple, slice, types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType,
     types.ClassMethodDescriptorType, types.MethodType, types.MethodWrapperType, types.CodeType, np.ufunc, re.Pattern)
)  # fmt: skip


def is_value(kind: type) -> bool:
    """Whether objects of a type are compared by content alone, so that two equal ones need no `same as` fact."""
    return kind in _VALUES or issubclass(kind, enum.Enum) or kind.__module__ in ("torch", "torch._ops", "torch._C")


def has_rule(kind: type) -> bool:
    """Whether objects of a type have a rule, and are not recorded by their attributes."""
    return kind in registered or kind in rules or _rule_of_family(kind) is not None


def is_simple(kind: type) -> bool:
    """Whether objects of a type count by their attributes alone."""
    return has_plain_state(kind) and not has_rule(kind)


def record(walk: Walk, place: Place, value: Any) -> None:
    """Record all facts of a value that is neither plain data nor a function, class or module."""
    kind = type(value)
    substitute = registered.get(kind)
    if substitute is None and kind not in rules and has_identity(kind):
        substitute = kind.__identity__
    if substitute is not None:
        _record_substitute(walk, place, value, substitute)
        return
    rule = rules.get(kind) or _rule_of_family(kind) or objects.record_object
    rule(walk, place, value)


def _record_substitute(walk: Walk, place: Place, value: Any, substitute: Callable[[Any], Any]) -> None:
    """Record the value that the user's rule, or `__identity__`, gives for an object."""
    try:
        given = substitute(value)
    except Exception as error:
        walk.cannot_tell(place, f"its __identity__ or rule raised {type(error).__name__}: {error}")
        return
    walk.fact(place, f"stands for {type(value).__qualname__}")
    walk.whole(place + ".__identity__", given)
    walk.watch_attributes(value)
    if walk.settings.watch is not None:
        walk.watch_probe(lambda: walk.apart(substitute(value)))


def _rule_of_family(kind: type) -> Rule | None:
    """The rule of types that are matched by a base class or by a module."""
    for base, rule in _BASES:
        if issubclass(kind, base):
            return rule
    if opaque.is_inert(kind):
        return inert
    if (by_module := tables.rule_of_table(kind) or stores_of_arrays.rule_of_stored_array(kind)) is not None:
        return by_module
    if (kind.__module__, kind.__name__) == ("argparse", "Namespace"):
        return containers.namespace
    if progress_bars.is_bar_class(kind):
        return progress_bars.bar
    if mocks.is_mock_class(kind):
        return mocks.mock
    if objects.has_process_attributes(kind):
        return objects.library_object
    if kind.__name__ == "PjitFunction" and kind.__module__.startswith("jaxlib."):
        return callables.jitted
    for base in kind.__mro__:
        module = base.__module__
        if isinstance(module, str) and module.partition(".")[0] == "torch":
            from warmstore.identity.kinds import torch_objects

            return torch_objects.rule_of(kind)
    return None
