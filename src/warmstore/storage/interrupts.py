"""Sections of code that an interrupt does not leave half done: Ctrl-C, and the interrupt of a notebook.

Python raises KeyboardInterrupt between any two instructions of the main thread. Inside `uninterrupted` it waits for the
end of the section.
"""

import signal
import threading
from typing import Any

_MOST_WAITING = 2


class uninterrupted:  # noqa: N801  reads as the function that it is used as
    """A context manager: an interrupt that comes inside is raised at the end. The third one is raised at once.

    It has no effect in other threads than the main one, where no interrupt is raised, and inside of another one. Use it
    for what takes milliseconds, or waits for a disk, and never around the functions of a caller.
    """

    __slots__ = ("_handler", "_waiting")

    def __init__(self) -> None:
        self._handler: Any = None
        self._waiting = 0

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and not isinstance(getattr(handler, "__self__", None), uninterrupted):
            self._handler = handler
            signal.signal(signal.SIGINT, self._wait)

    def _wait(self, number: int, frame: Any) -> None:
        self._waiting += 1
        if self._waiting > _MOST_WAITING:
            self._handler(number, frame)

    def __exit__(self, *exception: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            if 0 < self._waiting <= _MOST_WAITING:
                self._handler(signal.SIGINT, None)
