"""Condition: a condition variable whose lock is as it should be after an interrupt."""

import threading

from warmstore.storage.interrupts import uninterrupted

_LOOK = 0.1
"""Seconds of a wait in the main thread, which an interrupt ends no earlier."""


class Condition:
    """A wait, with a lock, until another thread that had the lock says that something has changed.

    `__exit__` and `wait` of `threading.Condition` are Python code. An interrupt there leaves its lock locked for ever,
    or unlocked inside of the `with`. Here the lock is used itself, whose `__exit__` is code in C, and an interrupt of a
    wait is raised at the end.

    lock: `with condition.lock:` stands around every call, as `with condition:` does in Python's.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._condition = threading.Condition(self.lock)

    def wait(self, timeout: float | None = None) -> None:
        """Release the lock until another thread calls `notify_all` or some time has passed, and take it again.

        Args:
            timeout: the most seconds; None for no limit. In the main thread they are fewer.
        """
        if threading.current_thread() is threading.main_thread():
            timeout = _LOOK if timeout is None else min(timeout, _LOOK)
        with uninterrupted():
            self._condition.wait(timeout)

    def notify_all(self) -> None:
        """Let all waiting threads go on once this one has released the lock."""
        with uninterrupted():
            self._condition.notify_all()
