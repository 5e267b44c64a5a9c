"""Locks of a folder's writers, locks of a forked child, which has no other thread, and locks whose holder is known."""

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from warmstore.storage.files import Files, file_lock


class ReentrantFileLock:
    """An exclusive reentrant lock between threads and processes, on a file that is created if missing.

    A forked child does not hold the lock of its parent. A pickled copy is a lock on the same file.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self._holders: dict[int, _Holder] = {}  # by process, since a fork copies the parent's

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock inside a `with`."""
        pid = os.getpid()
        holder = self._holders.get(pid) or self._holders.setdefault(pid, _Holder())  # setdefault is atomic
        with holder.threads, contextlib.ExitStack() as stack:
            if not holder.depth:  # a process that locks the file twice would wait for itself
                stack.enter_context(file_lock(self._path, self._files, briefly=True))
            holder.depth += 1
            try:
                yield
            finally:
                holder.depth -= 1

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._path, self._files)


class _Holder:
    """The state of the lock in one process."""

    def __init__(self) -> None:
        self.threads = threading.RLock()
        self.depth = 0


def is_held(lock: "threading.Lock | threading.RLock") -> bool:
    """Whether another thread holds a lock: in a forked child one that is not there, and will never release it.

    `Lock.locked` does not know of a thread that was about to go on with the lock.
    """
    if not lock.acquire(blocking=False):
        return True
    lock.release()
    return False


_reentrant: weakref.WeakKeyDictionary[threading.RLock, None] = weakref.WeakKeyDictionary()


def reentrant_lock() -> threading.RLock:
    """A reentrant lock for long work, which `holds_lock` knows. To take it costs what any other lock costs."""
    lock = threading.RLock()
    _reentrant[lock] = None
    return lock


def holds_lock() -> bool:
    """Whether this thread holds a lock of `reentrant_lock`.

    Such a thread must not wait for another one to end, which may be waiting for the lock. The garbage collector closes
    objects at any moment, so `close` has to ask.
    """
    locks = [reference() for reference in _reentrant.keyrefs()]
    return any(lock._is_owned() for lock in locks if lock is not None)  # type: ignore[attr-defined]


_renewed: weakref.WeakKeyDictionary[object, tuple[str, Callable[[], object]]] = weakref.WeakKeyDictionary()


def renewed_in_children(owner: object, name: str, new: Callable[[], object] = threading.Lock) -> None:
    """Set the attribute `name` to a lock, and in each forked child to a new one: another thread may hold the parent's.

    What the lock protects stays as it is, and must be usable between any two statements that hold the lock.
    """
    setattr(owner, name, new())
    _renewed[owner] = name, new


def _after_fork() -> None:
    for owner, (name, new) in list(_renewed.items()):
        setattr(owner, name, new())


os.register_at_fork(after_in_child=_after_fork)
