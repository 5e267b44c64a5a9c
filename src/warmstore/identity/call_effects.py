"""What the library's own calls of a function, module or object change: its facts before and after those calls.

Functions fill caches, count calls and open what they need. A change during a call of the library is an effect of the
call: the identity keeps the value from before. A change at any other time is the program's, and changes the identity.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from warmstore.identity.identity import WalkResult
from warmstore.identity.places import Names
from warmstore.identity.plain_data import READ_ONLY
from warmstore.identity.settled_state import LEFT

_START = "@0:|"
_ITEM = re.compile(r"\[|\.<key ")  # begins the place of an item after that of its container

written_by_calls: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Tensors and arrays that the library's calls have made or written to, by their ids."""

Roots = dict[Any, tuple[str, weakref.ref[Any]]]
"""The beginnings of places, and what is there, by keys in this process."""

Shared = dict[Any, tuple[weakref.ref[Any], dict[str, tuple[Names, str | None, str | None]]]]
"""Effects of calls on things, by the keys of these."""

_shared: Shared = {}
"""Effects of calls on functions, classes and modules, which other identities may read too."""

_Effects = dict[Any, tuple["CallEffects", list[weakref.ref[Any]]]]
_effects: dict[int, tuple[weakref.ref[Any], _Effects]] = {}

_process = os.getpid()


def _after_fork() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_after_fork)


class Call:
    """Stands for a call while it is running.

    is_alone: Whether the program does nothing else meanwhile, as far as is known. is_exact: Whether the check before it
    compared everything.
    """

    def __init__(self, *, is_alone: bool, is_exact: bool) -> None:
        self.is_alone, self.is_exact = is_alone, is_exact


class CallEffects:
    """The facts of a called object when the walk last read them, and the effects of calls on them.

    changed: by place, the fact before the first call that changed it, and after the last one. None stands for no fact.
    running: one object for each call that is running. A call that was interrupted anywhere takes its object with it.
    arguments: the places of arguments. of_function: effects of calls of one function with any arguments.
    """

    def __init__(self) -> None:
        self.current: WalkResult | None = None
        self.changed: dict[str, tuple[str | None, str | None]] = {}
        self.was_called = False
        self.arguments: Roots = {}
        self.of_function: Shared = {}
        self._begin()

    def _begin(self) -> None:
        self.running: weakref.WeakSet[Call] = weakref.WeakSet()
        self._process = _process
        self._lock = threading.RLock()

    @property
    def lock(self) -> threading.RLock:
        """The lock of all attributes. A forked child has a new one: the threads of its parent are gone there."""
        if self._process != _process:
            self._begin()
        return self._lock

    def learn(self, now: WalkResult, *, weights_too: bool, is_sure: bool) -> bool:
        """Count the differences from the last walk as effects of calls.

        Args:
            weights_too: Whether changes of parameters and buffers are effects as well.
            is_sure: Whether the program has changed nothing since the last walk. Otherwise only changes of what calls
                were seen to change before are effects.

        Returns:
            Whether anything has changed whose changes are not effects.
        """
        last = {} if self.current is None else self.current.facts
        changed = [place for place in {**last, **now.facts} if now.facts.get(place) != last.get(place)]
        own = now.of_thread & last.keys()  # another thread than that of the call has other settings
        below = tuple(f"{place}." for place in own)
        fixed = own | {place for place in changed if place.startswith(below)}
        if not weights_too and self.current is not None:
            fixed |= now.weights | self.current.weights
        if not is_sure:
            fixed |= {place for place in changed if not self.is_memory(place, is_gone=place not in now.facts)}
        for place in changed:
            if place not in fixed:
                before, after = self.changed.get(place, (None, None))
                if place not in self.changed or after != last.get(place):
                    before = last.get(place)
                self.changed[place] = before, now.facts.get(place)
        if own_changes := [place for place in changed if place in self.changed]:
            self._share(now, now.roots, _shared, own_changes, "@")
            self._share(now, now.roots | self.arguments, self.of_function, own_changes, _START)
        self.current, self.was_called = now, True
        return any(place in fixed for place in changed)

    def is_memory(self, place: str, *, is_gone: bool = False) -> bool:
        """Whether calls were seen to change a place or, if it has come or gone as an item, its container."""
        if place in self.changed:
            return True
        if not is_gone and self.current is not None and place in self.current.facts:
            return False
        return any(place[: item.start()] in self.changed for item in _ITEM.finditer(place))

    def _share(self, now: WalkResult, roots: Roots, shared: Shared, changed: Collection[str], without: str) -> None:
        """Publish effects below some roots, but for facts that have a text."""
        for key, (root, thing) in roots.items():
            for place in changed:
                before, after = self.changed[place]
                if place.startswith(root) and without not in f"{before}{after}":
                    known = shared.get(key)
                    if known is None or known[0]() is not thing():
                        known = shared[key] = thing, {}
                    known[1][place[len(root) :]] = now.names, before, after

    def take_shared(self, now: WalkResult) -> None:
        """Take over effects that other calls have had on what this one reads too."""
        roots = now.roots | self.arguments
        for shared in (_shared, self.of_function):
            for key in [key for key in list(shared) if key in roots]:
                (thing, facts), (root, other) = shared[key], roots[key]
                if other() is not None and other() is thing():
                    self._take(now, root, facts)

    def _take(self, now: WalkResult, root: str, facts: dict[str, tuple[Names, str | None, str | None]]) -> None:
        for suffix, (names, before, after) in list(facts.items()):
            text, own = now.facts.get(root + suffix), self.changed.get(root + suffix)
            with suppress(ValueError):  # another walk has met other modules
                if text == names.renumbered(after, now.names) and (own is None or own[1] != text):
                    self.changed[root + suffix] = names.renumbered(before, now.names), text

    def undone(self, now: WalkResult) -> WalkResult:
        """The result of a walk with the effects of calls undone."""
        if not self.changed:
            return now
        facts, unknown = dict(now.facts), dict(now.unknown)
        for place, (before, after) in self.changed.items():
            if facts.get(place) == after:  # otherwise the program has written to it since
                facts.pop(place, None)
                unknown.pop(place, None)
                if before is not None:
                    facts[place] = before
        return replace(now, facts=facts, unknown=unknown)

    @property
    def left_at(self) -> frozenset[str]:
        """The places of tensors and arrays that calls have made or written to."""
        return frozenset(place for place, (_, after) in self.changed.items() if after == LEFT)

    def __getstate__(self) -> dict[str, Any]:
        changed = dict(self.changed)
        for place, text in (self.current.facts if self.current is not None else {}).items():
            if text.startswith("array ") and READ_ONLY in text and place not in changed:
                changed[place] = text, text.replace(READ_ONLY, "")  # copies can be written to
        current = None if self.current is None else self.current.without_roots()
        return {"current": current, "changed": changed, "was_called": self.was_called}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.arguments, self.of_function = {}, {}
        self._begin()


def roots_of(arguments: Mapping[str, Any]) -> Roots:
    """The places of arguments, by keys in this process. Those without weak references are left out."""
    found: Roots = {}
    for name, value in arguments.items():
        with suppress(TypeError):
            found["argument", id(value)] = f"{_START}({name})", weakref.ref(value)
    return found


def effects_of(
    function: Any, key: Any, effects: CallEffects | None = None, *, objects: Collection[Any] = ()
) -> CallEffects:
    """The effects of calls of a function with the arguments and settings that `key` identifies.

    All callers share one object. Where the function or an argument has no weak references, each caller has its own.

    Args:
        effects: What to start with if the function has none.
        objects: Arguments whose ids are in the key: the effects are forgotten with the first of them.
    """
    effects = CallEffects() if effects is None else effects
    number = id(function)
    known = _effects.get(number)
    if known is None or known[0]() is not function:
        try:
            known = weakref.ref(function, lambda gone: _forget(number, gone)), {}
        except TypeError:
            return effects
        _effects[number] = known
    of_function = known[1]
    if key not in of_function:
        try:
            alive = [weakref.ref(value, lambda _: of_function.pop(key, None)) for value in objects]
        except TypeError:
            return effects
        of_function[key] = effects, alive
    return of_function[key][0]


def _forget(number: int, gone: weakref.ref[Any]) -> None:
    if number in _effects and _effects[number][0] is gone:
        del _effects[number]
