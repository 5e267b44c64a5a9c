"""The rule of `unittest.mock`: a mock is what the program has configured, and not which calls it has seen."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

from warmstore.identity.places import Place
from warmstore.identity.walk import Walk

_MODULE = "unittest.mock"
_OF_CALLS = frozenset(
    ("_mock_parent", "_mock_new_parent", "_mock_name", "_mock_new_name", "_mock_called", "_mock_call_args",
     "_mock_call_count", "_mock_call_args_list", "_mock_mock_calls", "_mock_await_count", "_mock_await_args",
     "_mock_await_args_list", "method_calls", "_mock_delegate", "_spec_signature", "_mock_sealed", "_mock_methods")
)  # fmt: skip
"""Attributes of a mock that record calls, or say where it belongs."""


def is_mock_class(kind: type) -> bool:
    """Whether a class is one of mocks. Each mock has a class of its own."""
    base = getattr(sys.modules.get(_MODULE), "NonCallableMock", None)
    return base is not None and issubclass(kind, base)


def mock(walk: Walk, place: Place, value: Any) -> None:
    """Record a mock by what it returns, raises, calls and contains."""
    kind = type(value)
    named = next(base for base in kind.__mro__ if base is not kind or kind.__module__ != _MODULE)
    walk.fact(place, f"mock of {walk.cls(named)}")
    walk.watch_attributes(value)
    own = object.__getattribute__(value, "__dict__")
    walk.attributes(place, {name: part for name, part in own.items() if name not in _OF_CALLS})
    walk.attributes(place + ".<class>", {k: part for k, part in vars(kind).items() if isinstance(part, FunctionType)})
