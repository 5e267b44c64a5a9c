"""What is known of the elements of sets. Each element has a walk of its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class SetElement:
    """What a finished walk over an element of a set has found.

    unknown: reasons by place, in words. modules, tensors: with the end of their places. keys: what the walk has met,
    also in sets within the element. alive: objects that keep the ids in the keys valid. Others: see `Walk`.
    """

    digest: str
    unknown: dict[str, str]
    modules: list[tuple[str, Any]]
    tensors: list[tuple[str, Any]]
    functions: list[FunctionType]
    library_functions: list[FunctionType]
    passed_modules: list[ModuleType]
    documented: dict[int, Any]
    named: set[str]
    introspects: set[str]
    folders: dict[str, None]
    names_in_folders: tuple[str, ...]
    keys: frozenset[tuple[int, object]]
    alive: tuple[object, ...]


@dataclass
class NestedSets:
    """What the walks over elements of nested sets share.

    known: elements that refer to nothing around them, by id. visits: how many walks there were, by the id of the
    element. is_tangled: whether there were too many.
    """

    known: dict[int, SetElement] = field(default_factory=dict)
    visits: Counter[int] = field(default_factory=Counter)
    is_tangled: bool = False
