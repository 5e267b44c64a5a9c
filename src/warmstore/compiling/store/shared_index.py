"""Shares the index of a store between threads and processes: many readers, one writer. A damaged index is rebuilt.

Readers have a connection of their own and never wait for a writer. A writer holds a lock file. It first removes what a
killed writer left unfinished.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from warmstore.compiling.store.artifact_index import Index, IndexDamaged, is_index, is_refusal
from warmstore.compiling.store.blobs import Blobs
from warmstore.compiling.store.index_rows import COLUMNS, insert, insert_environment, salvaged
from warmstore.errors import NotAStore, ReadOnly, WriteFailed
from warmstore.storage.interrupts import uninterrupted

WAIT = 30.0
"""Seconds to wait for the lock of a store before a change fails."""

_PAUSE = 0.005  # seconds between two attempts to take the lock
_T = TypeVar("_T")
_log = logging.getLogger("warmstore")


class SharedIndex:
    """The index in a store's folder. With `read_only` it cannot be changed."""

    def __init__(self, folder: Path, blobs: Blobs, *, read_only: bool) -> None:
        self.folder = folder
        self.read_only = read_only
        self._rebuilt = 0
        self._blobs = blobs
        self._reader = Index(folder, blobs.files, read_only=read_only)
        self._writer = Index(folder, blobs.files)
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: replace connections and locks. Threads of the parent may hold the old locks."""
        self._reader.forget()
        self._writer.forget()
        self._reading = threading.RLock()
        self._writing = threading.RLock()
        self._depth = 0
        with uninterrupted():  # see `_locked`
            self._file_lock = FileLock(self.folder / "lock", thread_local=False)

    def take_rebuilt(self) -> int:
        """How often the index was rebuilt since the last call."""
        rebuilt, self._rebuilt = self._rebuilt, 0
        return rebuilt

    def close(self) -> None:
        """Close the connections."""
        with self._reading:
            self._reader.close()
        with self._writing:
            self._writer.close()

    def ask(self, question: Callable[[sqlite3.Connection], _T]) -> _T:
        """Call a function with a connection to read from, and return its result. Raises WriteFailed if the index is
        unreadable."""
        try:
            return self._ask(question)
        except sqlite3.Error as error:
            if self.read_only or not self._reader.is_damage(error):
                raise self._failed(error) from error
            reason = error
        try:
            self._rebuild(self._reader.opened, reason)
            return self._ask(question)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _ask(self, question: Callable[[sqlite3.Connection], _T]) -> _T:
        with self._reading:
            return _sound(lambda: question(self._reader.connection()))

    @contextmanager
    def alone(self, wait: float = WAIT) -> Iterator[Index]:
        """Hold the lock of writers, among threads and processes; the block may change the store. Nests. Raises
        ReadOnly, and WriteFailed if the disk refuses or another process holds the lock for more than `wait` seconds."""
        if self.read_only:
            raise ReadOnly(errno.EROFS, "this compile cache cannot be written; choose another folder", str(self.folder))
        with self._locked(wait):
            self._depth += 1
            try:
                if self._depth == 1:
                    self._twice(lambda: self._clean_up(self._writer))
                yield self._writer
            except sqlite3.Error as error:
                raise self._failed(error) from error
            except (WriteFailed, ReadOnly):
                raise
            except OSError as error:
                raise WriteFailed(error.errno, f"{error.strerror}; nothing was stored", str(self.folder)) from error
            finally:
                self._depth -= 1

    def change(self, work: Callable[[Index], _T], wait: float = WAIT) -> _T:
        """Call a function while holding the lock of writers, and return its result. If the index is damaged, the
        function is called again after the rebuild. Raises the errors of `alone`."""
        with self.alone(wait) as index:
            return self._twice(lambda: work(index))

    @contextmanager
    def _locked(self, wait: float) -> Iterator[None]:
        """Hold the lock among threads and the lock file. The wait for them can be interrupted, and what follows not:
        filelock has a condition of Python's, which an interrupt would leave locked. Raises ReadOnly and WriteFailed."""
        end = time.monotonic() + wait
        with self._writing:
            while True:
                with uninterrupted():
                    if self._take_file_lock():
                        try:
                            yield
                        finally:
                            self._file_lock.release()
                        return
                if time.monotonic() > end:
                    reason = f"another process has held the lock for {wait:.0f} s"
                    raise WriteFailed(errno.ETIMEDOUT, reason, str(self.folder / "lock"))
                time.sleep(_PAUSE)

    def _take_file_lock(self) -> bool:
        try:
            self._file_lock.acquire(blocking=False)
        except Timeout:
            return False
        except OSError as error:
            refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
            raise (ReadOnly if refused else WriteFailed)(
                error.errno, f"{error.strerror}", str(self.folder / "lock")
            ) from error
        return True

    def _twice(self, work: Callable[[], _T]) -> _T:
        try:
            return _sound(work)
        except sqlite3.Error as error:
            if not self._writer.is_damage(error):
                raise
            self._rebuild(self._writer.opened, error)
            return work()

    def _clean_up(self, index: Index) -> None:
        """Remove the blobs that killed writers left incomplete."""
        incomplete = index.connection().execute("SELECT digest FROM blobs WHERE NOT ready").fetchall()
        if incomplete:
            for (digest,) in incomplete:
                self._blobs.remove(digest)
            with index.transaction() as db:
                db.executemany("DELETE FROM blobs WHERE digest = ?", incomplete)

    def _rebuild(self, damaged: tuple[int, int] | None, reason: sqlite3.Error) -> None:
        """Move the damaged file aside and make a new one of its valid rows. Removes blobs without a row. Raises
        NotAStore for the file of another program."""
        if damaged is not None and not is_index(self.folder, self._blobs.files):
            raise NotAStore(
                f"{self._writer.path} is no index of a compile cache; choose another folder, or remove the file"
            )
        with self._locked(WAIT):
            index = self._writer
            if index.identity() != damaged:
                return  # another thread or process has rebuilt it
            new = damaged is None and not self._blobs.folder.exists()
            index.close()
            index.move_aside()
            rows = salvaged(index.aside, index.files) if damaged else []
            kept = [row for row in rows if self._blobs.has(row["digest"], row["size"])]
            self._blobs.sweep({row["digest"] for row in kept})
            index.create()
            with index.transaction() as db:
                for row in kept:
                    insert_environment(db, row["environment"], row["record"])
                    db.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?, 1)", (row["digest"], row["size"]))
                    insert(db, *(row[name] for name in COLUMNS))
        if new:
            return
        self._rebuilt += 1
        if damaged is None:
            _log.warning(
                "the index of the compile cache %s is missing and was made anew: all is compiled again", self.folder
            )
        else:
            _log.warning(
                "the index of the compile cache %s is damaged (%s) and was rebuilt; of %d artifacts in the damaged "
                "file, %s, %d are kept", self.folder, reason, len(rows), index.aside, len(kept),
            )  # fmt: skip

    def _failed(self, error: sqlite3.Error) -> WriteFailed | ReadOnly:
        if is_refusal(error):
            return ReadOnly(
                errno.EACCES, f"the index of the compile cache cannot be written ({error})", str(self.folder)
            )
        full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
        return WriteFailed(
            errno.ENOSPC if full else errno.EIO, f"the index of the compile cache failed: {error}", str(self.folder)
        )


def _sound(work: Callable[[], _T]) -> _T:
    """Call a function. Text that is not UTF-8 means that the index is damaged."""
    try:
        return work()
    except UnicodeDecodeError as error:
        raise IndexDamaged(f"{error}") from error
