"""A gate between those who copy from files and the one who makes holes in them, threads and processes alike."""

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
    """Many may be inside at once, or one alone. The file at `path` carries the lock between processes."""

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
        # Not with this object but with an array, which the garbage collector does not see: of objects in a cycle it
        # would close the file before a forgotten store has closed itself.
        self._held = np.array(self._descriptor)
        self._let_go = weakref.finalize(self._held, self._files.close, self._descriptor)
        self._let_go.atexit = False

    def _see_process(self) -> None:
        # With a descriptor that came along with a fork a child would let go of its parent's lock, and threads that did
        # not come along would never let go of theirs.
        if self._process != os.getpid():
            self._let_go()
            self._open()

    def enter(self) -> None:
        """Come in, as soon as nobody is alone inside."""
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
        """Be inside, with others."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Be inside alone. Who comes later waits, so that many readers keep nobody out for long."""
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
