"""The rules of sets: elements by their sorted digests, as their order differs between processes.

Each element has a walk of its own. The walk refers to what the walks around it have met before: a node of a graph may
have its neighbours in a set, and be among theirs.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

from warmstore.identity.kinds.registry import rule
from warmstore.identity.nested_sets import NestedSets, SetElement
from warmstore.identity.places import Place
from warmstore.identity.walk import Walk
from warmstore.identity.walk_settings import WalkSettings

_MOST = 64  # walks over one element
_TANGLED = "the elements of its sets refer to each other in too many ways; define __identity__ on their class"


@rule(set, frozenset)
def _set(walk: Walk, place: Place, value: Any) -> None:
    walk.watch(value)
    _record(walk, place, type(value).__name__, value)


@rule(weakref.WeakSet)
def _weak_set(walk: Walk, place: Place, value: Any) -> None:
    walk.watch(value.data)
    _record(walk, place, "WeakSet", list(value))


def _record(walk: Walk, place: Place, tag: str, values: Any) -> None:
    found: list[SetElement] = []
    settings = replace(walk.settings, read_elsewhere=True)
    for value in values:
        element = _walked(walk, value, settings)
        if element is None:
            if not walk.around:
                walk.cannot_tell(place, _TANGLED)
                walk.nested = NestedSets()
            return
        for at, reason in element.unknown.items():
            walk.cannot_tell(place + f".<element>{at}", reason)
        found.append(element)
        if walk.around:
            walk.inside |= element.keys
    # After all: the walks over the other elements must not depend on which was the first.
    for element in found:
        _take_over(walk, place, element)
    walk.functions += {id(each): each for element in found for each in element.functions}.values()
    walk.library_functions += {id(each): each for element in found for each in element.library_functions}.values()
    walk.passed_modules += dict.fromkeys(each for element in found for each in element.passed_modules)
    walk.fact(place, f"{tag} {sorted(element.digest for element in found)}")


def _take_over(walk: Walk, place: Place, element: SetElement) -> None:
    at_element = place + f".<element {element.digest}>"
    walk.modules += [(at_element + at, module) for at, module in element.modules]
    walk.tensors += [(at_element + at, tensor) for at, tensor in element.tensors]
    walk.introspects |= element.introspects
    walk.documented |= element.documented
    walk.named |= element.named
    walk.folders |= element.folders
    for name in element.names_in_folders:
        walk.names_in_folders.setdefault(name, place)


def _walked(walk: Walk, value: Any, settings: WalkSettings) -> SetElement | None:
    """What is in an element; None where the elements of nested sets take too many walks.

    An element of nested sets that refers to nothing around it has one walk, wherever it occurs.
    """
    nested = walk.nested
    if walk.around:
        known = nested.known.get(id(value))
        if known is not None and all(map(known.keys.isdisjoint, (each.seen for each in (walk, *walk.around)))):
            return known
        nested.visits[id(value)] += 1
        nested.is_tangled |= nested.visits[id(value)] > _MOST
        if nested.is_tangled:
            return None
    inner = type(walk)("", settings)
    inner.around, inner.nested = (walk, *walk.around), nested
    inner.missing, inner.documented = walk.missing, dict(walk.documented)
    inner.look(inner.start, value)
    inner.run()
    if nested.is_tangled:
        return None
    element = SetElement(
        inner.digest(),
        {inner.shown(at): reason for at, reason in inner.unknown.items()},
        [(at.suffix, module) for at, module in inner.modules],
        [(at.suffix, tensor) for at, tensor in inner.tensors],
        inner.functions,
        inner.library_functions,
        inner.passed_modules,
        inner.documented,
        inner.named,
        inner.introspects,
        inner.folders,
        tuple(inner.names_in_folders),
        frozenset(inner.seen).union(inner.inside) if walk.around else frozenset(),
        (value, *inner.alive) if walk.around else (),
    )
    if walk.around and not inner.is_open:
        nested.known[id(value)] = element
    return element
