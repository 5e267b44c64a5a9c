"""The identity of a function together with the objects among its arguments, as far as it reads them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from warmstore.errors import NoFingerprint, NotStateless
from warmstore.identity.call_effects import Shared, effects_of, roots_of
from warmstore.identity.identity import Identity, reasons, walk_over
from warmstore.identity.recorded_identity import RecordedIdentity
from warmstore.identity.walk import Walk
from warmstore.identity.watch import Watch
from warmstore.storage.locks import renewed_in_children
from warmstore.storage.threads import NO_THREAD

_MOST = 16
"""Combinations of objects whose identities are remembered. They stay alive meanwhile."""

_DRAWS = ("random.Random ", "numpy.random.Generator ", "numpy.random.RandomState ", "torch.Generator ")
_HERE: dict[str, Any] = {"is_called_here": True, "modes": True}
_DEFAULT_OF_TORCH = "default generator of torch"


class CallIdentity:
    """The identity of one function. A check costs microseconds while nothing has changed.

    Args:
        name: the name of the function in messages.
        version: stands for what is unknown about the function, but not about its arguments.
        ignore: places that do not count, as messages show them.
    """

    _lock: threading.Lock

    def __init__(self, function: Callable[..., Any], name: str, version: str | None, ignore: frozenset[str]) -> None:
        self._function = function
        self._name = name
        self._version = version
        self._ignore = ignore
        renewed_in_children(self, "_lock")
        self._alone: RecordedIdentity | None = None
        self._checked: Identity | None = None
        self._effects: Shared = {}
        self._known: OrderedDict[Any, tuple[dict[str, Any], RecordedIdentity]] = OrderedDict()

    def recorded(self, objects: Mapping[str, Any]) -> RecordedIdentity:
        """The identity of the function with some arguments that are objects, by place.

        Raises:
            NoFingerprint: a part of the function or of an object has no identity.
            NotStateless: it draws random numbers from a generator.
        """
        alone = self._alone
        if alone is None:
            with self._lock:
                alone = self._alone = self._alone or self._new({})
        if not objects:
            return alone
        key = tuple((place, id(value)) for place, value in objects.items())
        with self._lock:
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = dict(objects), self._new(objects)
                if len(self._known) > _MOST:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
        return known[1]

    def _new(self, objects: Mapping[str, Any]) -> RecordedIdentity:
        named = {place: value for place, value in objects.items() if place.isidentifier()}
        others = {place: value for place, value in objects.items() if place not in named}
        thing = partial(self._function, **named) if named else self._function
        look = partial(_look, thing, others, self._name, self._ignore)
        key = self._ignore, tuple((place, id(value)) for place, value in objects.items())
        effects = effects_of(self._function, ("cached", key), objects=objects.values())
        effects.arguments, effects.of_function = roots_of({} if others else named), self._effects
        return RecordedIdentity(look, self._version, effects, is_strict=True, caller=NO_THREAD)

    def check(self, recorded: RecordedIdentity, identity: Identity) -> None:
        """Raise for an identity whose results must not be kept; see `recorded`."""
        if identity is self._checked:
            return
        unknown = recorded.found.unknown
        if unknown and self._alone is not None and recorded is not self._alone:
            covered = _in_words(self._alone)
            extra = {place: reason for place, reason in _in_words(recorded).items() if place not in covered}
            if extra:
                raise NoFingerprint(
                    f"{reasons(extra)}. Pass ignore=({next(iter(extra))!r},) where it makes no difference, or define "
                    "__identity__ on the object; version= stands for parts of the function alone"
                )
        identity.require()
        drawn = [place for place, text in identity.facts.items() if place == _DEFAULT_OF_TORCH or _is_generator(text)]
        if drawn:
            raise NotStateless(
                f"{self._name} draws random numbers from {drawn[0]!r}, so each call has another result. Make the "
                f"generator inside the function, from a seed that is an argument; or pass ignore=({drawn[0]!r},) to "
                "keep the result of the first call"
            )
        self._checked = identity


def _in_words(recorded: RecordedIdentity) -> dict[str, str]:
    found = recorded.found
    return {found.names.in_words(place): reason for place, reason in found.unknown.items()}


def _is_generator(text: str) -> bool:
    return text.startswith(_DRAWS)


def _look(thing: Any, others: Mapping[str, Any], name: str, ignore: frozenset[str], watch: Watch) -> Walk:
    if not others:
        return walk_over(thing, name=name, ignore=ignore, watch=watch, **_HERE)
    return walk_over({name: thing, **others}, name="call", ignore=ignore, watch=watch, **_HERE)
