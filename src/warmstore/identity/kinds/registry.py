"""The table of rules by exact type. The modules of this package fill the table as they are imported.

A rule is a function that records the facts of a value on a walk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warmstore.identity.kinds import Versioned
from warmstore.identity.places import Place
from warmstore.identity.walk import Walk

Rule = Callable[["Walk", "Place", Any], None]

rules: dict[type, Rule] = {}


def rule(*kinds: type) -> Callable[[Rule], Rule]:
    """Decorate the rule of some types."""

    def keep(function: Rule) -> Rule:
        rules.update(dict.fromkeys(kinds, function))
        return function

    return keep


def attribute_rule(*names: str) -> Rule:
    """A rule that records the name of a value's type and some of its attributes."""

    def record(walk: Walk, place: Place, value: Any) -> None:
        walk.fact(place, type(value).__name__)
        walk.attributes(place, {name: getattr(value, name) for name in names})

    return record


def inert(walk: Walk, place: Place, value: Any) -> None:
    """Record only the type of a value: its state makes no difference to results."""
    walk.fact(place, f"any {type(value).__qualname__}")


@rule(Versioned)
def _versioned(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, "versioned")
    walk.whole(place + ".name", value.name)
    walk.whole(place + ".<state>", value.state)
