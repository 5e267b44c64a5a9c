"""A lock between many readers of files and the one process that makes holes in them, for threads and processes."""

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
        # The file is closed with an array, which the garbage collector does not track. With this object, in a cycle, it
        # would be closed before a forgotten store has closed itself.
        self._held = np.array(self._descriptor)
        self._let_go = weakref.finalize(self._held, self._files.close, self._descriptor)
        self._let_go.atexit = False

    def _see_process(self) -> None:
        # With the inherited descriptor a forked child would release its parent's lock, and the shares of the parent's
        # threads would never be released.
        if self._process != os.getpid():
            self._let_go()
            self._open()

    def enter(self) -> None:
        """Take the lock as a reader, once no writer holds it."""
        self._see_process()
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
        self._see_process()
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
