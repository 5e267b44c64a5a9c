"""Rules of containers: sequences, mappings, their weak counterparts, and other values that are a few values.

The elements of a container are values of their own. Mutable containers are watched for changes.
"""

from __future__ import annotations

import functools
import re
import types
import weakref
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from typing import Any

from warmstore.identity.kinds.registry import rule
from warmstore.identity.places import Place
from warmstore.identity.walk import Walk


@rule(list)
def _list(walk: Walk, place: Place, value: Any) -> None:
    walk.watch(value)
    walk.items(place, "list", value)


@rule(deque)
def _deque(walk: Walk, place: Place, value: Any) -> None:
    walk.watch(value)
    walk.items(place, f"deque with at most {value.maxlen}", list(value))


@rule(dict, OrderedDict, Counter, types.MappingProxyType)
def _dict(walk: Walk, place: Place, value: Any) -> None:
    walk.watch(value.keys())
    walk.watch(value)
    walk.pairs(place, type(value).__name__, value.items())


@rule(defaultdict)
def _defaultdict(walk: Walk, place: Place, value: Any) -> None:
    walk.watch(value)
    walk.watch_cell(functools.partial(getattr, value, "default_factory"))
    walk.pairs(place, "defaultdict", value.items())
    walk.whole(place + ".default_factory", value.default_factory)


@rule(ChainMap)
def _chain_map(walk: Walk, place: Place, value: Any) -> None:
    walk.watch(value.maps)
    walk.items(place, "ChainMap", value.maps)


@rule(tuple)
def _tuple(walk: Walk, place: Place, value: Any) -> None:
    walk.items(place, "tuple", value)


@rule(type({}.keys()), type({}.values()), type({}.items()))
def _view(walk: Walk, place: Place, value: Any) -> None:
    walk.watch(value.mapping)
    walk.items(place, type(value).__name__, list(value))


@rule(types.SimpleNamespace)
def namespace(walk: Walk, place: Place, value: Any) -> None:
    """Record a namespace, whose text shows its attributes in order."""
    walk.fact(place, f"{type(value).__name__} of {list(vars(value))}")
    walk.watch(vars(value))
    walk.attributes(place, vars(value))


@rule(weakref.ref)
def _weak_reference(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, "weak reference")
    walk.whole(place + ".<target>", value())


@rule(weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
def _weak_dict(walk: Walk, place: Place, value: Any) -> None:
    walk.watch(value.data)
    walk.pairs(place, type(value).__name__, value.items())


@rule(slice)
def _slice(walk: Walk, place: Place, value: Any) -> None:
    walk.items(place, "slice", (value.start, value.stop, value.step))


@rule(re.Pattern)
def _pattern(walk: Walk, place: Place, value: Any) -> None:
    walk.items(place, "re.Pattern", (value.pattern, value.flags))
