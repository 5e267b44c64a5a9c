"""A readers-writer lock for threads and processes: many readers of files, or one process that makes holes in them."""

import contextlib
import fcntl
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from warmstore.storage.files import Files, open_or_create
from warmstore.storage.interrupts import uninterrupted


class RWLock:
    """A readers-writer lock. The file at `path` carries the lock between processes."""

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self._open()

    def _open(self) -> None:
        self._process = os.getpid()
        self._guard = threading.Lock()  # of what follows; held for moments, inside `uninterrupted`
        self._waiting: list[threading.Lock] = []  # by thread that waits for a change: locked until then
        self._inside = 0
        self._alone = False
        self._descriptor = open_or_create(self._path, self._files)
        # An array owns the descriptor: the garbage collector does not track arrays. Otherwise the descriptor of a store
        # in a cycle could be closed before the store closes itself.
        self._owner = np.array(self._descriptor)
        self._close = weakref.finalize(self._owner, self._files.close, self._descriptor)
        self._close.atexit = False

    def _reopen_after_fork(self) -> None:
        # With the inherited descriptor a forked child would release its parent's lock, and never the locks of the
        # parent's other threads.
        if self._process != os.getpid():
            self._close()
            self._open()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Hold the lock as a reader, once no writer holds it. Only the wait can be interrupted."""
        with self._held(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock as the writer. Later readers wait, so that readers cannot delay a writer for long.

        Only the wait can be interrupted.
        """
        with self._held(fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def _held(self, kind: int) -> Iterator[None]:
        self._reopen_after_fork()
        taken = False

        def take() -> None:
            nonlocal taken
            taken = True
            if kind == fcntl.LOCK_EX:
                self._alone = True
            else:
                self._inside += 1

        def take_now() -> bool:
            with self._guard:
                if self._alone or (kind == fcntl.LOCK_EX and self._inside):
                    return False
                try:
                    fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                take()
                return True

        def wait() -> None:
            self._when(lambda: not self._alone, take)
            if kind == fcntl.LOCK_EX:
                self._when(lambda: not self._inside)
            fcntl.flock(self._descriptor, kind)  # at once if another reader of this process has it

        def release() -> None:
            nonlocal taken
            with self._guard:
                taken = False
                if kind == fcntl.LOCK_EX:
                    self._alone = False
                else:
                    self._inside -= 1
                if not self._inside:
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                while self._waiting:
                    self._waiting.pop().release()

        try:
            while True:
                with uninterrupted():
                    if taken or take_now():
                        try:
                            yield
                        finally:
                            release()
                        return
                wait()
        finally:
            if taken:  # and the wait was interrupted
                with uninterrupted():
                    release()

    def _when(self, is_true: Callable[[], bool], call: Callable[[], None] = lambda: None) -> None:
        """Wait for a condition, and call a function before it can change."""
        while True:
            with uninterrupted(), self._guard:
                if is_true():
                    call()
                    return
                turn = threading.Lock()
                turn.acquire()
                self._waiting.append(turn)
            turn.acquire()
