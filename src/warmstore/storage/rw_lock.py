"""A readers-writer lock for threads and processes: many readers of files, or one process that makes holes in them."""

import contextlib
import fcntl
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from warmstore.storage.files import Files, open_or_create


class RWLock:
    """A readers-writer lock. The file at `path` carries the lock between processes."""

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self._open()

    def _open(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition(threading.Lock())
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

    def enter(self) -> None:
        """Take the lock as a reader, once no writer holds it."""
        self._reopen_after_fork()
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            if not self._inside:
                fcntl.flock(self._descriptor, fcntl.LOCK_SH)
            self._inside += 1

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            if not self._inside:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                self._changed.notify_all()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Hold the lock as a reader."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock as the writer. Later readers wait, so that readers cannot delay a writer for long."""
        self._reopen_after_fork()
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._alone = True
            self._changed.wait_for(lambda: not self._inside)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with self._changed:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                self._alone = False
                self._changed.notify_all()
