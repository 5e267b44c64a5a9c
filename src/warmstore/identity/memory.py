"""An identity over time: what it was when it was first made, and what changed since, by whom.

Functions remember: they fill caches, count calls, open what they need. What changes while we call them is their
memory, and keeps counting at the value that it had before. What changes at any other time was changed by the program,
and counts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from warmstore.identity.identity import Found, Identity
from warmstore.identity.walk import Walk
from warmstore.identity.watch import Watch


@dataclass
class Memory:
    """What is known of a thing that is called: its facts when it was last looked at, and its memory.

    before: by place, the facts that our own calls have changed since, as they were before; None where there was none.
    """

    current: Found | None = None
    before: dict[str, str | None] = field(default_factory=dict)
    was_called: bool = False


_memories: dict[int, tuple[weakref.ref[Any], dict[Any, Memory]]] = {}


def memory_of(function: Any, key: Any) -> Memory:
    """The memory of a function with the arguments and settings that `key` stands for: one for all who call it.

    What cannot be referenced weakly has a new one each time.
    """
    number = id(function)
    known = _memories.get(number)
    if known is None or known[0]() is not function:
        try:
            reference = weakref.ref(function, partial(_forget, _memories, number))
        except TypeError:
            return Memory()
        known = _memories[number] = (reference, {})
    return known[1].setdefault(key, Memory())


def _forget(memories: dict[int, Any], number: int, _: Any) -> None:
    memories.pop(number, None)


class Recorded:
    """The identity of something that is called by us, and may be changed by the program meanwhile.

    Copies and pickles carry what was recorded.

    Args:
        look: walks over the thing, telling a watch.
        version: stands for what cannot be told.
        memory: what is known of the thing already.
    """

    def __init__(self, look: Callable[[Watch], Walk], version: str | None = None, memory: Memory | None = None) -> None:
        self._look = look
        self._version = version
        self._watch = Watch()
        self._memory = Memory() if memory is None else memory
        self.identity = self._settled(self._found())

    def refresh(self, *, again: bool = False) -> Identity:
        """The identity as it is now, without what our own calls have changed.

        Args:
            again: look also where nothing seems to have moved: at files, and at arrays that leave no trace of writes.
        """
        if again or self._watch.has_moved() or self._watch.hash_in_turn():
            if again:
                self._watch = Watch()
            self.identity = self._settled(self._found())
        return self.identity

    @contextmanager
    def calling(self) -> Iterator[Identity]:
        """While the thing is called by us: what changes meanwhile is its memory."""
        yield self.refresh()
        self.called()

    def called(self) -> None:
        """What has changed since we last looked was changed by our calls."""
        memory = self._memory
        if memory.was_called and not self._watch.has_moved():
            return
        if not memory.was_called:
            self._watch = Watch()  # arrays too
        memory.was_called = True
        now = self._found()
        before = {} if memory.current is None else memory.current.facts
        for place in {place for place in (*now.facts, *before) if now.facts.get(place) != before.get(place)}:
            memory.before.setdefault(place, before.get(place))
        memory.current = now

    @property
    def window(self) -> float:
        """Seconds within which a write to an array that leaves no trace is found."""
        return self._watch.window

    def _found(self) -> Found:
        return Found.of(self._look(self._watch))

    def _settled(self, now: Found) -> Identity:
        """The identity of what was found now, its memory put back to what it was before."""
        memory = self._memory
        known = {} if memory.current is None else memory.current.facts
        for place in [place for place in memory.before if now.facts.get(place) != known.get(place)]:
            del memory.before[place]  # the program has written to what our calls had changed
        memory.current = now
        if not memory.before:
            return now.identity(self._version)
        facts = {place: text for place, text in now.facts.items() if place not in memory.before}
        facts |= {place: text for place, text in memory.before.items() if text is not None}
        unknown = {place: reason for place, reason in now.unknown.items() if place not in memory.before}
        return replace(now, facts=facts, unknown=unknown).identity(self._version)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_watch": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._watch = Watch()
        self._watch.add_cell(object)  # it has moved, as far as this process knows
        self._watch.settle()
