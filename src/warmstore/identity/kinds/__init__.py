"""Rules by the type of a value: which facts of a value the walk records. One file for each family of types.

A program gives its own types an identity here, with `register` or with `Versioned`. Both are defined in this module as
their full names are facts of the programs that use them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

registered: dict[type, Callable[[Any], Any]] = {}


def register(kind: type, rule: Callable[[Any], Any]) -> None:
    """Set the value that stands for each object of a type, and of this exact type only, in every identity.

    Args:
        kind: The type of the objects. Subclasses need a registration of their own.
        rule: Takes an object. Returns a value that differs between objects that may give different results.
    """
    registered[kind] = rule


@dataclass(frozen=True)
class Versioned:
    """A value that `__identity__` may return: a permanent name, and the current state of what has this name."""

    name: Any
    state: Any
