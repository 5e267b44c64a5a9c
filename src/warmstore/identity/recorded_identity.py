"""The identity of an object that the library calls, kept up to date while the program runs.

A check notices what has changed since the last walk (`watch`) and walks again only then. Changes during a call of the
library are effects of the call (`call_effects`) and leave the identity as it is; all other changes count. Beside a call
in another thread the program may run, and change what it likes: then a change is an effect only where calls were seen
to change the same before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from warmstore.identity.call_effects import Call, CallEffects, written_by_calls
from warmstore.identity.identity import Identity, WalkResult
from warmstore.identity.walk import Walk
from warmstore.identity.watch import Watch
from warmstore.storage.threads import ANY_THREAD, NO_THREAD, is_program_thread

_BRIEF = 0.25  # seconds that reading all contents again may take at the first call, and in a check in between


class RecordedIdentity:
    """The identity of an object that the library calls, and that the program may change between calls.

    Copies and pickles keep what was recorded. Several threads may use one.

    Args:
        look: Walks over the object with a watch.
        version: Stands for what is unknown.
        effects: Effects of earlier calls.
        is_strict: Changes of parameters and buffers never are effects, and values that no watch shows are read again
            in turn.
        caller: The thread that calls the object while the program does nothing else, beside the main thread: by default
            the one that makes this; `NO_THREAD` or `ANY_THREAD`.
        clock: Returns seconds.
    """

    def __init__(
        self,
        look: Callable[[Watch], Walk],
        version: str | None = None,
        effects: CallEffects | None = None,
        *,
        is_strict: bool = False,
        caller: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._version = version
        self._is_strict = is_strict
        self.effects = CallEffects() if effects is None else effects
        self._watch = Watch(written_by_calls, clock)
        self._is_current = False  # not while a walk is running, nor after one that was interrupted
        self._home = threading.get_ident()  # settings of threads count as they are in this one, unless it calls here
        self._caller = self._home if caller is None else caller
        self._is_exact_next = True  # whether the check before the next call is to compare everything
        self._known: list[tuple[WalkResult, Identity]] = []
        self.found: WalkResult
        self.identity: Identity
        self._settle(self._walked())

    def refresh(self, *, again: bool = False, exactly: bool = False, arrays: bool = False) -> Identity:
        """The current identity, without the effects of calls.

        Args:
            again: Walk even if nothing has changed visibly, and read files and all contents again.
            exactly: Check small arrays, large containers and all else that takes longer, too.
            arrays: Check the contents of large arrays, too.
        """
        with self.effects.lock:
            if again:
                self._watch.forget()
            is_due = again or not self._is_current or self._watch.has_moved(exactly=exactly)
            if is_due or (arrays and self._watch.has_written()):
                self._walk_again()
            elif self._watch.look_in_turn(at_all=self._is_strict):
                with self._watch.charged():
                    self._walk_again()
            return self.identity

    @contextmanager
    def calling(self) -> Iterator[Identity]:
        """Call the object in this context. Changes meanwhile are effects of the call, but for those by the program."""
        effects, is_exact = self.effects, self._is_strict or self._is_exact_next
        with effects.lock:
            if self._reads_arrays():
                self._watch.forget(arrays_only=True)
                self._is_current = False
            identity = self.refresh(exactly=is_exact)
            call = Call(is_alone=is_program_thread(self._caller), is_exact=is_exact)
            effects.running.add(call)
        try:
            yield identity
        finally:
            try:
                self.called()
            finally:
                with effects.lock:
                    effects.running.discard(call)

    def called(self) -> bool:
        """Count changes since the last walk as effects of calls. Returns whether there are any."""
        with self.effects.lock:
            is_first = not self.effects.was_called
            if self._reads_arrays():
                self._watch.forget(arrays_only=True)
            elif self._is_current and not self._watch.has_moved(exactly=self._is_strict or is_first):
                self.effects.was_called, self._is_exact_next = True, False
                return False
            self._is_exact_next = True
            last = self.effects.current
            now = self._learn()
            return last is None or now.facts != last.facts

    def _reads_arrays(self) -> bool:
        """Whether all arrays are read before and after the next call: the first one tells which of them calls write."""
        return not self.effects.was_called and self._watch.seconds < _BRIEF

    def has_moved_in_large(self) -> bool:
        """Whether the elements of large containers have changed, by a call or by the program."""
        return self._watch.has_moved_in_large()

    @property
    def window(self) -> float:
        """Seconds within which a check finds a write that leaves no trace."""
        return self._watch.window

    @property
    def is_read_briefly(self) -> bool:
        """Whether an exact check takes little time."""
        return self._watch.reading < _BRIEF

    def _walk_again(self) -> None:
        if self.effects.running:
            self._learn()
            self._is_current = False  # a running call may have changed what the walk had read before
        else:
            self._settle(self._walked())

    def _learn(self) -> WalkResult:
        """Walk, and count what has changed as effects of calls. Returns the result of the walk."""
        weights_too, calls = not self._is_strict, list(self.effects.running)
        is_sure = bool(calls) and all(call.is_alone for call in calls) and not self._watch.has_found_in_turn
        if is_sure and not all(call.is_exact for call in calls):
            is_sure = not self._watch.has_moved_inside()
        is_memory = None if is_sure else self.effects.is_memory
        with self._watch.after_call(weights_too=weights_too, is_memory=is_memory):
            now = self._walked()
        if self.effects.learn(now, weights_too=weights_too, is_sure=is_sure):
            self._settle(now)
        self._is_current = len(self.effects.running) < 2  # as in `_walk_again`
        return now

    def _walked(self) -> WalkResult:
        self._is_current = False
        walk = self._look(self._watch)
        now, last = WalkResult.of(walk), self.effects.current
        if last is None or walk.settings.is_called_here or threading.get_ident() == self._home:
            return now
        kept = {place: last.facts[place] for place in now.of_thread if place in last.facts}
        return replace(now, facts=now.facts | kept)

    def _settle(self, now: WalkResult) -> None:
        """Take over the result of a walk."""
        self.identity = self._settled(now)
        self._is_current = True

    def _settled(self, now: WalkResult) -> Identity:
        """The identity of the result of a walk, with the effects of calls undone."""
        self.effects.take_shared(now)
        self.effects.current = now
        found = self.found = self.effects.undone(now)
        for known, identity in self._known:
            if found.facts == known.facts and found.unknown == known.unknown:
                return identity
        identity = found.identity(self._version)
        self._known = [*self._known[:1], (found, identity)]  # the first and the last
        return identity

    def __getstate__(self) -> dict[str, Any]:
        known = [(found.without_roots(), identity) for found, identity in self._known]
        return {**vars(self), "_watch": None, "_known": known, "found": self.found.without_roots()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._home = threading.get_ident()
        self._caller = self._caller if self._caller in (NO_THREAD, ANY_THREAD) else self._home
        # The next check walks. Places tell which tensors calls have written to, as ids differ in this process.
        self._watch = Watch(written_by_calls, left_at=self.effects.left_at, is_stale=True)
