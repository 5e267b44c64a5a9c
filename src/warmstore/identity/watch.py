"""Notices that something moved since an identity was made, without making it again.

A walk tells a watch of every container and variable that it read; a check compares what they hold now with what they
held, object by object. Writes through torch raise a tensor's version. Writes that leave no trace, into NumPy arrays and
through `.data`, are found by hashing contents again, one after the other, in a hundredth of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import chain
from operator import is_
from typing import Any

SHARE = 0.01
"""Of the time that passes, what hashing contents again may take."""

_RATE = 2e9  # bytes/s that are hashed, until it was measured


class Watch:
    """What a walk has read, and the texts of the tensors and arrays in it.

    Args:
        only_code: leave out what data is held: attributes of objects, items of containers. Variables are watched.
    """

    def __init__(self, *, only_code: bool = False) -> None:
        self._only_code = only_code
        self._views: list[Iterable[Any]] = []
        self._cells: list[Callable[[], Any]] = []
        self._held: list[Any] = []
        self._values: list[Any] = []
        self._known: dict[int, tuple[Any, Any, str, Callable[[Any], str]]] = {}
        self._found: dict[int, tuple[Any, Any, str, Callable[[Any], str]]] = {}
        self._turn = 0
        self._began = time.monotonic()
        self._spent = 0.0
        self._hashed = 0

    def begin(self) -> None:
        """Forget what the walk before has read; texts are remembered."""
        self._views, self._cells = [], []
        self._known, self._found = self._found or self._known, {}

    def add(self, values: Iterable[Any], *, is_code: bool = False) -> None:
        """Watch what a list, or the live values of a dict, hold."""
        if is_code or not self._only_code:
            self._views.append(values)

    def add_cell(self, read: Callable[[], Any]) -> None:
        """Watch what a function without effects gives."""
        self._cells.append(read)

    def text_of(self, value: Any, make: Callable[[Any], str]) -> str:
        """The text of a tensor or array: that from before, if nothing has written to it through torch."""
        stamp = _stamp(value)
        known = self._known.get(id(value)) or self._found.get(id(value))
        is_same = known is not None and known[0] is value and known[1] == stamp
        text = known[2] if known is not None and is_same else self._timed(value, make)
        self._found[id(value)] = (value, stamp, text, make)
        return text

    def settle(self) -> None:
        """From now on, what is held now is what was held."""
        self._held = [read() for read in self._cells]
        self._values = list(chain.from_iterable(self._views))

    def has_moved(self) -> bool:
        """Whether a variable or container holds something else, or a tensor was written to."""
        cells = self._cells
        if cells and not all(map(is_, [read() for read in cells], self._held)):
            return True
        try:
            now = list(chain.from_iterable(self._views))
        except RuntimeError:
            return True  # a container grew meanwhile, in another thread
        if len(now) != len(self._values) or not all(map(is_, now, self._values)):
            return True
        return any(stamp != _stamp(value) for value, stamp, _, _ in self._found.values())

    def hash_in_turn(self) -> bool:
        """Hash contents again as long as a hundredth of the time allows; say whether any are others now."""
        if not self._found or self._spent > SHARE * (time.monotonic() - self._began):
            return False
        keys = list(self._found)
        self._turn = (self._turn + 1) % len(keys)
        value, _, text, make = self._found[keys[self._turn]]
        if self._timed(value, make) == text:
            return False
        self._found[keys[self._turn]] = (value, "written", text, make)  # so that the next walk hashes it
        return True

    @property
    def window(self) -> float:
        """Seconds within which a write that leaves no trace is found."""
        total = sum(map(_size, (value for value, _, _, _ in self._found.values())))
        rate = self._hashed / self._spent if self._spent > 1e-3 else _RATE
        return total / (SHARE * rate)

    def _timed(self, value: Any, make: Callable[[Any], str]) -> str:
        began = time.perf_counter()
        text = make(value)
        self._spent += time.perf_counter() - began
        self._hashed += _size(value)
        return text


def _size(value: Any) -> int:
    size = getattr(value, "nbytes", 0)
    return int(size) if isinstance(size, int) else 0


def _stamp(value: Any) -> Any:
    """What changes when torch writes to a tensor, or puts other memory below it; None of arrays."""
    if not hasattr(value, "_version"):
        return None
    version = -1 if value.is_inference() else value._version
    try:
        return version, value.data_ptr(), value.shape, value.dtype
    except RuntimeError:  # it has no memory of its own
        return version, 0, value.shape, value.dtype
