"""Detects changes since the last walk without walking again.

A walk adds every container and variable that it reads to a watch. A check compares the objects in them now with those
at the walk, in loops that run in C. A write through torch raises the version of a tensor. Writes that leave no trace,
into NumPy arrays and through `.data`, are found by hashing contents again, in turn, in 1 % of the time.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from warmstore.identity.object_state import MISSING, Elements, slots_of
from warmstore.identity.plain_data import array_text, nbytes_of
from warmstore.identity.settled_state import LEFT, SMALL, Added, Make, SettledState, WatchedContent, form_of, stamp_of

SHARE = 0.01
"""The fraction of time that hashing contents again may take."""

_RATE = 2e9  # bytes/s of hashing, until it is measured
_TINY = 1 << 14  # bytes. Every walk hashes tensors up to this size: batch norm writes statistics without a trace


@dataclass(frozen=True)
class _State:
    """Stands for a state that is read by a function. nbytes: as many as are hashed in that time."""

    nbytes: int


class Watch:
    """The containers, variables, tensors and arrays that a walk has read, with the texts of tensors and arrays.

    Args:
        left: Tensors and arrays that calls of the library have made or written to, by id. Their contents do not count.
        clock: Returns seconds.
        left_at: The places of more tensors and arrays whose contents do not count.
        is_stale: Whether the next check reports a change in any case.
    """

    def __init__(
        self,
        left: MutableMapping[int, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        left_at: Collection[str] = (),
        is_stale: bool = False,
    ) -> None:
        self._left: MutableMapping[int, Any] = WeakValueDictionary() if left is None else left
        self._clock = clock
        self._left_at = left_at
        self._is_stale = is_stale
        self._added = Added()
        self._contents: dict[int, WatchedContent] = {}
        self._known: dict[int, WatchedContent] = {}
        self._in_turn: list[WatchedContent] = []
        self._size = 0
        self._weights: dict[int, Any] = {}
        self._weights_before: dict[int, Any] = {}
        self._settled = SettledState(self._added, ())
        self._is_memory: Callable[[str], bool] | None = None
        self._leaves: bool | None = None  # during `after_call`: whether weights may have changed, too
        self.patches: Any = None
        """The patches that a walk has used. A search for them takes long, so that it has its turn as contents have."""
        self.has_found_in_turn = False
        """Whether a content that `look_in_turn` has read differs from the last walk: it may have done so for long."""
        self._turn = 0
        self._last = clock()
        self._allowance = 0.0
        self._hashing = 0.0
        self._hashed = 0
        self._began = (0.0, 0.0)
        self._walking = 0.0

    # For walks

    def begin(self) -> None:
        """Start a walk: drop all containers and variables of the previous walk. Texts are kept."""
        self._added = Added()
        self._known, self._contents = self._contents or self._known, {}
        self._weights, self._weights_before = {}, self._weights
        self._is_stale = True  # until the walk has come to its end
        self._began = self._clock(), self._hashing

    def add(self, container: Collection[Any]) -> None:
        """Watch the items of a list, set or view of a dict, or the keys and values of a dict."""
        self._added.containers.append(container)

    def add_code(self, container: Collection[Any]) -> None:
        """Watch a dict of methods or hooks. A subclass may watch only these."""
        self._added.containers.append(container)

    def add_items(self, mapping: Mapping[str, Any], names: Collection[str]) -> None:
        """Watch some items of a dict, and its length. Only exact checks see changes of other items."""
        self._added.items.append((mapping, tuple(names)))

    def add_object(self, value: Any) -> None:
        """Watch the class of an object and, in exact checks, the identity of its `__dict__`."""
        self._added.objects.append(value)

    def add_cell(self, read: Callable[[], Any]) -> None:
        """Watch which object a function returns. The function has no side effects."""
        self._added.cells.append(read)

    def add_setting(self, read: Callable[[], Any]) -> None:
        """Watch the text of a setting of the process."""
        self.add_cell(read)

    def add_probe(self, read: Callable[[], Any]) -> None:
        """Watch the value of a function that makes a new, equal object at each call. Only exact checks call it."""
        self._added.probes.append(read)

    def add_state(self, text: Callable[[], str]) -> None:
        """Watch a state by its text: in exact checks if that takes little time, and in turn otherwise."""
        took, now = inf, ""
        for _ in range(3):  # as other processes may interrupt it, or it may import a module
            began, now = self._clock(), text()
            took = min(took, self._clock() - began)
            if not SMALL / _RATE < took < 0.05:
                break
        state = _State(int(took * _RATE))
        self._contents[id(state)] = WatchedContent(state, None, now, lambda _: text(), None)

    def add_attributes(self, value: Any) -> None:
        """Watch the attributes of an object and, in subclasses of builtin containers, its elements."""
        own = getattr(value, "__dict__", None)
        self.add_object(value)
        if type(own) is dict:
            self.add(own)
        for name in slots_of(type(value)):
            self.add_cell(partial(getattr, value, name, MISSING))
        if isinstance(value, dict):  # of an OrderedDict, dict.values has another order
            base: type[dict[Any, Any]] = OrderedDict if isinstance(value, OrderedDict) else dict
            self.add(base.keys(value))
            self.add(base.values(value))
        elif isinstance(value, list | deque | set):
            self.add(Elements(value) if issubclass(type(value), list | deque | set) else value)

    def add_plain(self, value: Any, place: str = "") -> None:
        """Watch a container of plain data, or an object whose attributes are plain data. `place`: of what it is in."""
        if isinstance(value, dict | list | set | deque):
            self.add(value)
            if isinstance(value, dict):
                self.add(value.keys())  # 1 and True are equal
        elif isinstance(value, np.ndarray):
            self.text_of(value, array_text, place)
        elif isinstance(value, bytearray):
            self.add_probe(partial(bytes, value))
        else:
            self.add_attributes(value)

    def add_weight(self, value: Any) -> None:
        """Note that a tensor is a parameter or buffer, and watch whether it gets attributes."""
        self._weights[id(value)] = value
        if not vars(value):
            self._added.empty.append(vars(value))

    @contextmanager
    def after_call(self, *, weights_too: bool, is_memory: Callable[[str], bool] | None = None) -> Iterator[None]:
        """In this context, a walk searches for effects of a call: contents that the call made do not count.

        Args:
            weights_too: Contents of parameters and buffers that the call has written to do not count either.
            is_memory: Tells for places whether what differs there is an effect of the call; None: all is.
        """
        self._leaves, self._is_memory = weights_too, is_memory
        try:
            yield
        finally:
            self._leaves = self._is_memory = None

    def text_of(self, value: Any, make: Make, place: str = "") -> str:
        """The text of a tensor or array: the previous text if nothing has written to it through torch."""
        key = id(value)
        now = self._contents.get(key)
        if now is None or now.value is not value:
            stamp, known = stamp_of(value), self._known.get(key)
            form = form_of(value) if isinstance(value, np.ndarray) else None
            if known is not None and (known.value is not value or known.form != form):
                known = None
            text = self._text(value, stamp, known, make, place)
            if text == LEFT:
                self._left[key] = value
            now = self._contents[key] = WatchedContent(value, stamp, text, make, form)
        return now.text

    def _text(self, value: Any, stamp: Any, known: WatchedContent | None, make: Make, place: str) -> str:
        if place in self._left_at or self._left.get(id(value)) is value:
            return LEFT
        is_weight = id(value) in self._weights or id(value) in self._weights_before
        counts = self._leaves is None or (is_weight and not self._leaves)
        if self._is_memory is not None and not counts:
            counts = not self._is_memory(place)
        if known is None or known.stamp != stamp:
            return self._timed(value, make) if counts else LEFT
        if known.is_known and nbytes_of(value) > (SMALL if stamp is None or stamp[0] < 0 else _TINY):
            return known.text
        text = self._timed(value, make)
        return text if counts or text == known.text else LEFT

    def settle(self) -> None:
        """End a walk: later checks compare with the state now."""
        self._settled = SettledState(self._added, self._contents.values())
        self._is_stale = self.has_found_in_turn = False
        self._in_turn = [content for content in self._contents.values() if content.text != LEFT]
        self._size = sum(nbytes_of(content.value) for content in self._in_turn)
        self._known, self._weights_before, self._left_at = {}, {}, ()
        self._walking = self._clock() - self._began[0] - (self._hashing - self._began[1])

    # For checks

    def has_moved(self, *, exactly: bool = False) -> bool:
        """Whether a variable or container has changed, or a tensor was written to.

        Args:
            exactly: Check also items of large containers, small arrays, keys of dicts, and probes.
        """
        if self._is_stale:
            return True
        try:
            return self._settled.has_moved(exactly) or (exactly and self.has_written(SMALL))
        except Exception:
            return True  # an item was removed, a container grew in another thread, or a state cannot be read any more

    def has_moved_inside(self) -> bool:
        """Whether anything has changed that only exact checks see."""
        try:
            return self._settled.has_moved_inside() or self.has_written(SMALL)
        except Exception:
            return True  # as above

    def has_moved_in_large(self) -> bool:
        """Whether the items of large containers have changed."""
        try:
            return self._settled.has_moved_in_large()
        except (RuntimeError, ValueError):
            return True

    def has_written(self, most: float = inf) -> bool:
        """Whether the content of an array, or tensor of inference mode, of at most `most` bytes has changed."""
        for content in self._contents.values():
            is_traceless = content.stamp is None or content.stamp[0] < 0
            if is_traceless and content.text != LEFT and nbytes_of(content.value) <= most:
                text = self._timed(content.value, content.make)
                if text != content.text:
                    self._is_stale = True
                    if nbytes_of(content.value) > SMALL:
                        content.text = text  # walks do not hash it
                    return True
        return False

    def forget(self, *, arrays_only: bool = False) -> None:
        """Make the next walk hash contents again.

        Args:
            arrays_only: Only arrays, which are written to without a trace.
        """
        self.patches = self.patches if arrays_only else None
        for content in self._contents.values():
            content.is_known = arrays_only and content.stamp is not None and content.stamp[0] >= 0

    def look_in_turn(self, *, at_all: bool = False) -> bool:
        """Hash the next tensor or array again if 1 % of the time allows it. Returns whether to walk again.

        Args:
            at_all: After all contents, request a walk, which finds changes that no container shows.
        """
        now = self._clock()
        allowance = self._allowance + SHARE * (now - self._last)
        contents = self._in_turn
        if allowance <= 0 or not (contents or at_all):
            return False
        # After a pause, the allowance suffices to hash all contents once.
        most = max(self.reading, 1e-3) + (self._walking if at_all else 0.0)
        self._allowance, self._last = min(allowance, most), now
        self._turn = (self._turn + 1) % (len(contents) + at_all)
        if self._turn == len(contents):
            return True
        content = contents[self._turn]
        text = self._timed(content.value, content.make)
        self._allowance -= self._clock() - now
        if text != content.text:
            self._is_stale = self.has_found_in_turn = True
            content.text = text
        return self._is_stale

    @contextmanager
    def charged(self) -> Iterator[None]:
        """A walk in this context uses up the allowance of `look_in_turn`."""
        began, self.patches = self._clock(), None
        try:
            yield
        finally:
            self._allowance -= self._clock() - began

    @property
    def window(self) -> float:
        """Seconds within which frequent checks find a write that leaves no trace."""
        return self.seconds / SHARE

    @property
    def seconds(self) -> float:
        """Seconds to read everything again."""
        return self.reading + self._walking

    @property
    def reading(self) -> float:
        """Seconds to hash all contents again."""
        return self._size / self._rate

    @property
    def _rate(self) -> float:
        return self._hashed / self._hashing if self._hashing > 1e-3 and self._hashed else _RATE

    def _timed(self, value: Any, make: Make) -> str:
        began = self._clock()
        text = make(value)
        self._hashing += self._clock() - began
        self._hashed += nbytes_of(value)
        return text
