"""What interrupts an operation at the n-th place of those that it runs through, as Ctrl-C does."""

import _weakrefset
import ast
import contextlib
import ctypes
import functools
import os
import signal
import sys
import sysconfig
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Self, cast

import warmstore as ws

SOURCES = str(Path(ws.__file__).parent)
LIBRARY, PACKAGES = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")


@functools.cache
def unhandled_lines(file: str) -> frozenset[int]:
    """The lines of statements where Python handles no signal: `with`, `try`, and jumps without an expression.

    Tracing sees a `with` again before `__exit__`. A `try` inside of another one, and a `return` inside of a `with`, are
    instructions that no handler covers: signals are handled at calls and jumps back, before them or after them.
    """
    found = set[int]()
    for node in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(node, ast.With | ast.Try):
            found.update(range(node.lineno, node.body[0].lineno))
        if isinstance(node, ast.Return) and (node.value is None or isinstance(node.value, ast.Constant)):
            found.add(node.lineno)
        if isinstance(node, ast.Break | ast.Continue):
            found.add(node.lineno)
    return frozenset(found)


def is_finalized(frame: FrameType | None) -> bool:
    """Whether the collector has called `__del__` or a `weakref.finalize`. Python ignores an exception there."""
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code.co_filename in (weakref.__file__, _weakrefset.__file__):
            return True
        frame = frame.f_back
    return False


MANY = 10**9
"""More places than an operation has."""


class Interrupter:
    """Interrupts what runs inside a `with` between two lines of warmstore.

    left: lines until then. has_come: whether there were so many lines. within: the beginning of the names of files
    whose lines count.
    """

    def __init__(self, left: int, within: str = SOURCES) -> None:
        self.left = left
        self.has_come = False
        self._within = within
        self._process = os.getpid()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(self._within) or self.has_come:
            return None
        if event == "line" and frame.f_lineno not in unhandled_lines(file) and self._is_here(frame):
            signal.raise_signal(signal.SIGINT)
        return self._trace

    def _is_here(self, frame: FrameType) -> bool:
        """Whether the next place, which is in a frame, is the one to interrupt."""
        self.left -= 1
        self.has_come = self.left < 0 and os.getpid() == self._process and not is_finalized(frame)
        return self.has_come

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)

    def interrupt(self, call: Callable[[], Any]) -> None:
        """Call a function, and interrupt it."""
        try:
            with self:
                call()
        except KeyboardInterrupt:
            assert self.has_come


def _trip_function() -> Callable[[object], None]:
    """Lets SIGINT come, which Python handles at the next place where it does."""
    trip = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyErr_SetInterrupt", ctypes.pythonapi))
    return cast(Callable[[object], None], trip)


_profiling: list[Any] = []
"""Functions that have profiled: Python 3.11 calls one that was taken away, and was freed, if it was interrupted in a
generator that ends."""


class CallInterrupter(Interrupter):
    """Interrupts where Python handles signals: as a function begins, as a generator goes on, and after a call of a
    function in C; in warmstore, and in those parts of Python's library that it calls.

    contexts: whether also in contextlib. An interrupt as the `with` of a generator is left keeps what the generator
    holds for as long as the traceback lives.
    """

    # A function in C, and called by reading an attribute, so that Python handles no signal before `_note` has returned:
    # what a profiling function raises in the finalizer of a generator makes Python 3.11 call freed memory.
    _trip = property(_trip_function())

    def __init__(self, left: int, within: str = SOURCES, *, contexts: bool = True) -> None:
        super().__init__(left, within)
        self._contexts = contexts

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event in ("return", "c_call") or self.has_come or (file == contextlib.__file__ and not self._contexts):
            return
        counts = file.startswith(self._within) or (file.startswith(LIBRARY) and not file.startswith(PACKAGES))
        if counts and self._is_here(frame):
            self._trip  # noqa: B018  and nothing afterwards

    def __enter__(self) -> Self:
        _profiling.append(self._note)
        sys.setprofile(_profiling[-1])
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)
