"""Limits the threads of BLAS and OpenMP, which NumPy, SciPy, scikit-learn and torch use.

The last bits of a matrix product depend on the number of threads, and workers with one thread per core slow each other
down. So each thread that makes samples sets the number of its pipeline. For libraries with one number per process, all
threads must want the same: while they do not, the earlier number stays, and what other threads make is not cached.
"""

import os
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from warmstore.pipeline.native_libraries import NativeLibraries
from warmstore.storage.locks import renewed_in_children

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


class _Limit:
    """A limit, in force while this object exists. is_kept: whether all libraries had this number so far."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.is_kept = True


class _LimitedThread:
    """The limits of this thread, the innermost one last, and its own numbers, by the library's file."""

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.limits: list[weakref.ref[_Limit]] = []  # an interrupt may leave one that is dead
        self.before: dict[str, int] = {}

    def live(self) -> list[_Limit]:
        return [limit for each in self.limits if (limit := each()) is not None]

    def remove(self, limit: _Limit) -> None:
        self.limits = [each for each in self.limits if each() not in (None, limit)]


class _ThreadLimits:
    """The limits of all threads of this process."""

    lock: threading.RLock

    def __init__(self) -> None:
        self._libraries = NativeLibraries()
        self._threads: dict[int, _LimitedThread] = {}  # those with limits
        self._count = 0  # the number of the process
        self._before: dict[str, int] = {}  # the process's own numbers, by the library's file
        self._exported = 0
        renewed_in_children(self, "lock", threading.RLock)

    def forget_other_threads(self) -> None:
        """In a forked child: they do not exist there."""
        here = threading.get_ident()
        self._threads = {ident: thread for ident, thread in self._threads.items() if ident == here}

    def enter(self, limit: _Limit) -> _LimitedThread:
        """Put a limit in force in this thread, which is returned."""
        with self.lock:
            self._look()
            here = threading.get_ident()
            thread = self._threads.get(here) or _LimitedThread()
            outer = thread.live()
            thread.limits.append(weakref.ref(limit))
            if outer and outer[-1].count == limit.count:
                limit.is_kept = outer[-1].is_kept
                return thread
            self._libraries.begin_thread()
            self._threads[here] = thread
            if _in_worker() and self._exported != limit.count:
                os.environ.update(dict.fromkeys(_VARIABLES, str(limit.count)))
                self._exported = limit.count
            self._set(thread)
            return thread

    def leave(self, limit: _Limit, thread: _LimitedThread) -> None:
        """End a limit of a thread. Libraries get the number of its outer limit, or their own."""
        with self.lock:
            thread.remove(limit)
            outer = thread.live()
            if outer and outer[-1].count == limit.count:
                outer[-1].is_kept = outer[-1].is_kept and limit.is_kept
            else:
                self._set(thread)

    def holds(self) -> bool:
        """See `native_threads_hold`."""
        thread = self._threads.get(threading.get_ident())
        limits = [] if thread is None else thread.live()
        if not limits:
            return True
        if not self._libraries.is_current:
            with self.lock:
                self._look()
        return limits[-1].is_kept

    def _look(self) -> None:
        """Find new libraries. Limits in force are not kept if these were loaded with another number."""
        if not self._libraries.is_current:
            counts = self._libraries.look()
            for thread in list(self._threads.values()):
                for limit in thread.live():
                    limit.is_kept = limit.is_kept and counts <= {limit.count}

    def _set(self, thread: _LimitedThread) -> None:
        """Set the numbers of a thread, if it is this one, and those of the process."""
        if thread.ident == threading.get_ident():  # the collector may end a generator, and its limit, in another one
            limits = thread.live()
            self._set_thread(thread, limits[-1] if limits else None)
        self._set_process()

    def _set_thread(self, thread: _LimitedThread, limit: _Limit | None) -> None:
        if limit is not None:
            for file, library in self._libraries.of_thread.items():
                if file not in thread.before:
                    thread.before[file] = library.get()
                library.set(limit.count)
        elif not _in_worker():
            for file, count in thread.before.items():
                self._libraries.of_thread[file].set(count)
            thread.before = {}

    def _set_process(self) -> None:
        live = {ident: limits for ident, each in list(self._threads.items()) if (limits := each.live())}
        self._threads = {ident: self._threads[ident] for ident in live}
        innermost = [limits[-1] for limits in live.values()]
        libraries = self._libraries.of_process
        if innermost and libraries:
            if all(limit.count == innermost[0].count for limit in innermost):
                self._count = innermost[0].count
            for file, library in libraries.items():
                count = library.get()
                self._before.setdefault(file, count)
                if count != self._count:
                    library.set(self._count)
            for limit in innermost:
                limit.is_kept = limit.is_kept and limit.count == self._count
        elif not _in_worker():
            for file, count in self._before.items():
                libraries[file].set(count)
            self._before = {}


_limits = _ThreadLimits()

os.register_at_fork(after_in_child=_limits.forget_other_threads)


def _in_worker() -> bool:
    """Whether this is a worker process of torch's DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


@contextmanager
def native_threads(count: int) -> Iterator[None]:
    """Limit BLAS and OpenMP to `count` threads in this thread. Of limits inside each other the innermost one applies.

    A loader's worker process keeps its last limit afterwards, also for libraries that it imports later.
    """
    limit, thread = _Limit(count), None
    try:
        thread = _limits.enter(limit)
        yield
    finally:
        if thread is not None:
            _limits.leave(limit, thread)


def native_threads_hold() -> bool:
    """Whether all libraries had the number of this thread's innermost limit since it began; True without a limit.

    If not, what was computed may have other last bits. Another thread has another limit and a library has one number
    per process, or an import has loaded a library. It costs a microsecond, and some milliseconds after an import.
    """
    return _limits.holds()
