"""An identity over time: what it was when it was first made, and what changed since, by whom.

Functions remember: they fill caches, count calls, open what they need. What changes while we call them is their
memory, and keeps counting at the value that it had before. What changes at any other time was changed by the program,
and counts.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from warmstore.identity.identity import Found, Identity
from warmstore.identity.plain import READ_ONLY
from warmstore.identity.walk import Walk
from warmstore.identity.watch import LEFT, Watch


class Memory:
    """What is known of a thing that is called: its facts when it was last looked at, and its memory.

    changed: by place, the facts that our own calls have changed: before the first of them, and after the last. None
    stands for no fact. calls: how many are going on.
    """

    def __init__(self) -> None:
        self.current: Found | None = None
        self.changed: dict[str, tuple[str | None, str | None]] = {}
        self.was_called = False
        self._begin()

    def _begin(self) -> None:
        self.calls = 0
        self._process = os.getpid()
        self._lock = threading.RLock()

    @property
    def lock(self) -> threading.RLock:
        """Held while what is known changes. Threads that held it, or called the thing, are none in a forked child."""
        if self._process != os.getpid():
            self._begin()
        return self._lock

    def learn(self, now: Found, *, weights_too: bool) -> bool:
        """Take what is others now than when the thing was last looked at for changed by our own calls.

        Returns:
            Whether weights have changed that are no memory.
        """
        last = {} if self.current is None else self.current.facts
        changed = [place for place in {**last, **now.facts} if now.facts.get(place) != last.get(place)]
        fixed = () if weights_too or self.current is None else now.weights | self.current.weights
        for place in changed:
            if place not in fixed:
                before, after = self.changed.get(place, (None, None))
                if place not in self.changed or after != last.get(place):
                    before = last.get(place)
                self.changed[place] = before, now.facts.get(place)
        self._share(now, [place for place in changed if place in self.changed and not place.startswith(_START)])
        self.current, self.was_called = now, True
        return any(place in fixed for place in changed)

    def _share(self, now: Found, changed: Collection[str]) -> None:
        """Tell others who read the same globals, classes and functions what our calls have changed of those."""
        for key, (root, thing) in now.roots.items() if changed else ():
            for place in changed:
                before, after = self.changed[place]
                if place.startswith(root) and "@" not in f"{before}{after}":
                    known = _shared.get(key)
                    if known is None or known[0]() is not thing():
                        known = _shared[key] = thing, {}
                    known[1][place[len(root) :]] = before, after

    def take_shared(self, now: Found) -> None:
        """Know what calls of other things have changed of what this one reads too."""
        for key, (thing, facts) in list(_shared.items()):
            root, other = now.roots.get(key, ("", None))
            if other is not None and other() is thing():
                for suffix, (before, after) in facts.items():
                    text, own = now.facts.get(root + suffix), self.changed.get(root + suffix)
                    if text == after and (own is None or own[1] != text):
                        self.changed[root + suffix] = before, after

    def before_calls(self, now: Found) -> Found:
        """What was found now, with what our own calls have left as it was before them."""
        if not self.changed:
            return now
        facts, unknown = dict(now.facts), dict(now.unknown)
        for place, (before, after) in self.changed.items():
            if facts.get(place) == after:  # else the program has written to it since
                facts.pop(place, None)
                unknown.pop(place, None)
                if before is not None:
                    facts[place] = before
        return replace(now, facts=facts, unknown=unknown)

    @property
    def left_at(self) -> frozenset[str]:
        """Where the tensors and arrays are that our calls have left."""
        return frozenset(place for place, (_, after) in self.changed.items() if after == LEFT)

    def __getstate__(self) -> dict[str, Any]:
        changed = dict(self.changed)
        for place, text in (self.current.facts if self.current is not None else {}).items():
            if text.startswith("array ") and READ_ONLY in text and place not in changed:
                changed[place] = text, text.replace(READ_ONLY, "")  # copies can be written to
        current = None if self.current is None else self.current.elsewhere()
        return {"current": current, "changed": changed, "was_called": self.was_called}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()


_left: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Tensors and arrays that calls of ours have made or written to, by their ids."""

_shared: dict[Any, tuple[weakref.ref[Any], dict[str, tuple[str | None, str | None]]]] = {}
"""What calls of ours have changed of functions, classes and modules, which others may read too."""

_START = "@0:|"
_BRIEF = 0.25  # seconds that all may take to be looked at again after the first call

_memories: dict[int, tuple[weakref.ref[Any], dict[Any, Memory]]] = {}


def memory_of(function: Any, key: Any, memory: Memory | None = None) -> Memory:
    """The memory of a function with the arguments and settings that `key` stands for: one for all who call it.

    What cannot be referenced weakly has a new one each time.

    Args:
        memory: to begin with, where nobody has called it.
    """
    memory = Memory() if memory is None else memory
    number = id(function)
    known = _memories.get(number)
    if known is None or known[0]() is not function:
        try:
            known = weakref.ref(function, lambda gone: _forget(number, gone)), {}
        except TypeError:
            return memory
        _memories[number] = known
    return known[1].setdefault(key, memory)


def _forget(number: int, gone: weakref.ref[Any]) -> None:
    if number in _memories and _memories[number][0] is gone:
        del _memories[number]


class RecordedIdentity:
    """The identity of something that is called by us, and may be changed by the program meanwhile.

    Copies and pickles carry what was recorded. Safe to use from several threads: what changes while one of them calls
    the thing is memory, whichever thread looks.

    Args:
        look: walks over the thing, telling a watch.
        version: stands for what cannot be told.
        memory: what is known of the thing already.
        is_strict: parameters and buffers never are memory, and what no watch shows is looked at again in turn.
        clock: seconds that pass.
    """

    def __init__(
        self,
        look: Callable[[Watch], Walk],
        version: str | None = None,
        memory: Memory | None = None,
        *,
        is_strict: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._version = version
        self._is_strict = is_strict
        self.memory = Memory() if memory is None else memory
        self._watch = Watch(_left, clock)
        self._known: list[tuple[Found, Identity]] = []
        self.found: Found
        self.identity = self._settled(self._found())

    def refresh(self, *, again: bool = False, exactly: bool = False) -> Identity:
        """The identity as it is now, without what our own calls have changed.

        Args:
            again: look also where nothing seems to have moved: at files, and at arrays that leave no trace of writes.
            exactly: look also at small arrays, into large containers, and at what takes longer to see.
        """
        with self.memory.lock:
            if again:
                self._watch.forget()
                self._look_again()
            elif self._watch.has_moved(exactly=exactly):
                self._look_again()
            elif self._watch.look_in_turn(at_all=self._is_strict):
                with self._watch.charged():
                    self._look_again()
            return self.identity

    @contextmanager
    def calling(self) -> Iterator[Identity]:
        """While the thing is called by us: what changes meanwhile is its memory."""
        identity = self.refresh(exactly=self._is_strict)
        with self.memory.lock:
            self.memory.calls += 1
        try:
            yield identity
        finally:
            try:
                self.called()
            finally:
                with self.memory.lock:
                    self.memory.calls -= 1

    def called(self) -> bool:
        """What has changed since we last looked was changed by our calls. Says whether anything has."""
        with self.memory.lock:
            is_first = not self.memory.was_called
            if is_first and self._watch.seconds < _BRIEF:
                self._watch.forget(arrays_only=True)
            elif not self._watch.has_moved(exactly=self._is_strict or is_first):
                self.memory.was_called = True
                return False
            last = self.memory.current
            self._learn()
            now = self.memory.current
            return last is None or now is None or now.facts != last.facts

    def has_moved_in_large(self) -> bool:
        """Whether large containers hold something else. It cannot be told by whom it was put there."""
        return self._watch.has_moved_in_large()

    @property
    def window(self) -> float:
        """Seconds within which a write that leaves no trace is found."""
        return self._watch.window

    def _look_again(self) -> None:
        if self.memory.calls:
            self._learn()
        else:
            self.identity = self._settled(self._found())

    def _learn(self) -> None:
        """Look for what a call has changed."""
        with self._watch.after_call(weights_too=not self._is_strict):
            now = self._found()
        if self.memory.learn(now, weights_too=not self._is_strict):
            self.identity = self._settled(now)

    def _found(self) -> Found:
        return Found.of(self._look(self._watch))

    def _settled(self, now: Found) -> Identity:
        """The identity of what was found now, its memory put back to what it was before."""
        self.memory.take_shared(now)
        self.memory.current = now
        found = self.found = self.memory.before_calls(now)
        for known, identity in self._known:
            if found.facts == known.facts and found.unknown == known.unknown:
                return identity
        identity = found.identity(self._version)
        self._known = [*self._known[:1], (found, identity)]  # the first and the last
        return identity

    def __getstate__(self) -> dict[str, Any]:
        known = [(found.elsewhere(), identity) for found, identity in self._known]
        return {**vars(self), "_watch": None, "_known": known, "found": self.found.elsewhere()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        # It has moved, as far as this process knows, and tensors that our calls have left are known by their places.
        self._watch = Watch(_left, left_at=self.memory.left_at, is_stale=True)
