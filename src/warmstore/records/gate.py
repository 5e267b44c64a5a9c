"""A gate between those who copy from files and the one who makes holes in them, threads and processes alike."""

import contextlib
import fcntl
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from warmstore.records.files import Files


class Gate:
    """Many may be inside at once, or one alone. The file at `path` carries the lock between processes."""

    def __init__(self, path: Path, files: Files) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._alone = False
        try:
            self._descriptor = files.create(path)
        except FileExistsError:
            self._descriptor = files.open(path, write=True)
        weakref.finalize(self, files.close, self._descriptor).atexit = False

    def enter(self) -> None:
        """Come in, as soon as nobody is alone inside."""
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
