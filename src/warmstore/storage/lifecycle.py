"""What it means to own pending work: closed at exit, at collection and at the end of a `with`, and never by a fork.

A forked child inherits the memory of its parent's writers but not their right to write: it lets go of their locks and
drops the pending rows, which the parent still has.

A process that loses rows at its exit says so on stderr and ends with status 120, which Python gives where it cannot
flush its own streams. That of an uncaught exception stays.
"""

import contextlib
import logging
import os
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing import util
from typing import Any, ClassVar, Self, TextIO, cast

from warmstore.errors import message_of

_log = logging.getLogger("warmstore")


class Closeable(ABC):
    """A context manager with a `close` that also runs at exit when the user forgot it."""

    closed = True  # until there is something to close
    has_rows: ClassVar[bool] = True
    """Whether data is lost where `close` fails. What can be made again at no harm is no reason to fail a program."""
    _handed_over = False

    def register(self) -> None:
        """Have `close` called at the exit of this process, also of a multiprocessing child, unless it is entrusted."""
        if self._handed_over:
            return
        _owners[self] = None
        if not _owners.registered:
            _owners.registered = True
            os.register_at_fork(after_in_child=_after_fork)
            # A child of multiprocessing forgets, after it was forked, what was to be done at exit.
            util.register_after_fork(_owners, _close_at_exit)
            _close_at_exit()

    def unregister(self) -> None:
        """The opposite of `register`: there is nothing left to close."""
        _owners.pop(self, None)

    def hand_over(self) -> None:
        """Leave `close` to whoever holds this, who has work for it until then.

        Neither the exit calls it then, nor the garbage collector, which keeps to no order among objects in a cycle.
        Whoever holds it closes it on every way out, or takes it back.
        """
        self._handed_over = True
        self.unregister()

    def reclaim(self) -> None:
        """The opposite of `hand_over`: nobody has work for it any more, and it is closed when the last one drops it."""
        self._handed_over = False
        self.register()

    @abstractmethod
    def close(self) -> None:
        """Finish pending work and let go of files. Closing twice is fine."""

    @abstractmethod
    def _after_fork(self) -> None:
        """Become inert in a forked child: nothing inherited may be written, locked or waited for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not self._handed_over and not _ending():  # what had to be closed at the exit has been, and modules are gone
            _close_quietly(self)


class _Owners(weakref.WeakKeyDictionary[Closeable, None]):
    registered = False
    forked = False
    """Whether this process is a forked child."""


_owners = _Owners()


class _FailingStream:
    """A stream of which the last flush fails, when the interpreter ends: it exits with status 120 then.

    Only there may the status still be changed with everything done that others have left for the exit.
    """

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._has_failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return int(self._stream.write(text)) if self._stream is not None else len(text)

    def flush(self) -> None:
        with contextlib.suppress(Exception):  # there may be no stream, or a closed one
            self._stream.flush()
        if sys.is_finalizing() and not self._has_failed:
            self._has_failed = True
            raise OSError("rows were lost when the process ended")


def _close_at_exit(owners: object = None) -> None:
    # multiprocessing children skip atexit and run these instead; the main process runs them at exit too.
    util.Finalize(None, _close_all, exitpriority=100)


def _close_all() -> None:
    # In the order they came: a cache waits for its writer thread, which may be opening a store that is the cache's to
    # close and stands in the list until the cache has it.
    for owner in list(_owners):
        if owner in _owners:
            error = _close_quietly(owner)
            if error is not None and owner.has_rows:
                _fail(owner, error)


def _close_quietly(owner: Closeable) -> Exception | None:
    """Close an owner where nobody can catch what it raises; returns that."""
    try:
        owner.close()
    except Exception as error:
        _log.exception("%r could not be closed; rows that were still pending are lost", owner)
        return error
    return None


def _fail(owner: Closeable, error: Exception) -> None:
    """Say on stderr that rows are lost, and have this process end with a status that is not 0."""
    if _log.hasHandlers():  # else what was logged stands there already
        with contextlib.suppress(Exception):
            said = message_of(error)
            print(f"{owner!r} could not be closed; rows that were still pending are lost: {said}", file=sys.stderr)
    # An uncaught exception is a status of its own.
    if _owners.forked or getattr(sys, "last_value", None) is not None or isinstance(sys.stderr, _FailingStream):
        return
    sys.stderr = cast(TextIO, _FailingStream(sys.stderr))


def _after_fork() -> None:
    _owners.forked = True
    for owner in list(_owners):
        owner._after_fork()
    _close_at_exit()
