"""Objects with pending work. They are closed at exit, by the garbage collector and by a `with`, but not by a fork.

A forked child inherits the memory of its parent's writers, but must not write. It releases their locks and drops the
pending rows, which the parent still has.

SIGTERM, by which clusters announce that they take a machine away, flushes pending rows before it ends the process,
unless the program handles it. A handler of the program's that calls the one that was there before flushes, too.

A process that loses rows at its exit reports it on stderr and ends with status 120, the status of Python when it cannot
flush its own streams. The status of an uncaught exception takes precedence.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing import util
from typing import Any, Self, TextIO, cast

from warmstore.errors import message_of
from warmstore.storage import held_locks
from warmstore.storage.threads import Thread

_log = logging.getLogger("warmstore")

_LOST = "; rows that were still pending are lost"


class Closeable(ABC):
    """A context manager whose `close` also runs at exit if it was not called before."""

    closed = True  # until the constructor has finished
    _handed_over = False

    @property
    @abstractmethod
    def _has_pending(self) -> bool:
        """Whether data is lost if `close` fails now. If not, the failure does not change the status of the process."""

    @property
    def _flushes_at_sigterm(self) -> bool:
        """Whether there is a method `flush` that writes what is pending, and any thread may call it."""
        return False

    def _register(self) -> None:
        """Call `close` at the exit of this process or multiprocessing child, and `flush` at a SIGTERM, unless this
        object was handed over."""
        if self._handed_over:
            return
        _owners[self] = None
        if self._flushes_at_sigterm:
            _handle_sigterm()
        if not _owners.registered:
            _owners.registered = True
            os.register_at_fork(after_in_child=_after_fork)
            # A multiprocessing child clears the finalizers of its parent after the fork.
            util.register_after_fork(_owners, _close_at_exit)
            _close_at_exit()

    def _unregister(self) -> None:
        """Undo `_register`: there is nothing left to close."""
        _owners.pop(self, None)

    def _hand_over(self) -> None:
        """Leave `close` to the object that uses this one, which calls `close` in every case, or `_reclaim`. Neither the
        exit nor the garbage collector calls `close` then: the collector has no order for objects in a cycle."""
        self._handed_over = True
        self._unregister()

    def _reclaim(self) -> None:
        """Undo `_hand_over`: no other object works with this one, and it is closed when it is no longer referenced."""
        self._handed_over = False
        self._register()

    @abstractmethod
    def close(self) -> None:
        """Finish pending work and release files. Safe to call twice."""

    @abstractmethod
    def _after_fork(self) -> None:
        """In a forked child: stop working. The object must not write, lock or wait for anything inherited."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._handed_over or _ending():  # at the end everything is closed already, and modules are gone
            return
        if not self.closed and held_locks.held():
            # The collector runs amid a write of this thread, and closing may wait for its lock.
            Thread(target=_close_quietly, args=(self,), name="warmstore-closing").start()
        else:
            _close_quietly(self)


class _Owners(weakref.WeakKeyDictionary[Closeable, None]):
    registered = False
    forked = False
    """Whether this process is a forked child."""

    flusher: threading.Thread | None = None
    """Flushes after a SIGTERM."""


_owners = _Owners()


def open_objects() -> list[Closeable]:
    """The objects of this process that are open and close themselves at its exit."""
    return list(_owners)


class _FailingStream:
    """A stream whose last flush fails at the end of the interpreter, which then exits with status 120: the only way to
    change the status after all exit handlers have run."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._has_failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return int(self._stream.write(text)) if self._stream is not None else len(text)

    def flush(self) -> None:
        with contextlib.suppress(Exception):  # the stream may be None or closed
            self._stream.flush()
        if sys.is_finalizing() and not self._has_failed:
            self._has_failed = True
            raise OSError("rows were lost when the process ended")


def _close_at_exit(owners: object = None) -> None:
    # multiprocessing children skip atexit and run these instead; the main process runs them at exit too.
    util.Finalize(None, _close_all, exitpriority=100)


def _close_all() -> None:
    # In the order of registration: a cache waits for its writer thread, which may be opening a store. The cache closes
    # that store, which is in the list until then.
    for owner in list(_owners):
        if owner in _owners:
            has_pending = owner._has_pending
            error = _close_quietly(owner)
            if error is not None and has_pending:
                _fail(owner, error)


def _handle_sigterm() -> None:
    """Handle SIGTERM where nobody does. Only the main thread may. Parents end their children with it."""
    is_child = _owners.forked or multiprocessing.parent_process() is not None
    is_main = not is_child and threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _flush_and_end)


def _flush_and_end(number: int, frame: object) -> None:
    """Flush in another thread, and then end as by default. A second SIGTERM ends at once.

    This runs in the main thread, which may hold the locks that a flush needs, and goes on until they are free.
    """
    if _owners.flusher is None:
        _owners.flusher = Thread(target=_flush_all, name="warmstore-sigterm", daemon=True)
        _owners.flusher.start()
    elif signal.getsignal(number) is _flush_and_end:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _flush_all() -> None:
    for owner in list(_owners):
        if owner._flushes_at_sigterm and owner._has_pending:
            try:
                cast(Any, owner).flush()
            except Exception:
                if owner._has_pending:  # another thread has not flushed and closed it meanwhile
                    _log.exception("%r could not be flushed%s", owner, _LOST)
    if signal.getsignal(signal.SIGTERM) is _flush_and_end:
        os.kill(os.getpid(), signal.SIGTERM)  # to the main thread, which ends the process
    else:
        _owners.flusher = None  # a handler of the program's called this one, and says what follows


def _close_quietly(owner: Closeable) -> Exception | None:
    """Close an owner, log an error and return it."""
    has_pending = owner._has_pending
    try:
        owner.close()
    except Exception as error:
        _log.exception("%r could not be closed%s", owner, _LOST if has_pending else "; nothing was pending")
        return error
    return None


def _fail(owner: Closeable, error: Exception) -> None:
    """Report lost rows on stderr, and make this process end with a status other than 0."""
    if _log.hasHandlers():  # otherwise logging has written to stderr already
        with contextlib.suppress(Exception):
            message = message_of(error)
            print(f"{owner!r} could not be closed{_LOST}: {message}", file=sys.stderr)
    # An uncaught exception has a status of its own.
    if _owners.forked or getattr(sys, "last_value", None) is not None or isinstance(sys.stderr, _FailingStream):
        return
    sys.stderr = cast(TextIO, _FailingStream(sys.stderr))


def _after_fork() -> None:
    _owners.forked, _owners.flusher = True, None
    if signal.getsignal(signal.SIGTERM) is _flush_and_end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for owner in list(_owners):
        try:
            owner._after_fork()
        except OSError as error:  # a thread of the parent's was closing it
            _log.warning("%r, of a parent of this process, was not given up: %s", owner, error)
    _close_at_exit()
