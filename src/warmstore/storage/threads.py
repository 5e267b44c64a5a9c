"""Threads of this process: they raise an error where there is no memory for them, and a pool that parts share.

Python waits for ever for a thread that has no memory to begin with (https://github.com/python/cpython/issues/140746).
"""

import functools
import mmap
import os
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import ParamSpec, TypeVar

from warmstore.storage.interrupts import uninterrupted

P = ParamSpec("P")
T = TypeVar("T")

_LOOK = 0.5
"""Seconds of a wait: Python notices an interrupt that comes just before a wait begins when it ends."""
_ROOM = 1 << 20
"""Bytes that must be left beside the stack of a new thread: its first frames take 16 KiB, and an allocator 256 KiB."""
_STACK = 8 << 20
"""Bytes of a stack where the system has no limit."""

NO_THREAD, ANY_THREAD = 0, -1
"""Stand for identifiers of threads."""


def is_program_thread(known: int) -> bool:
    """Whether this is the main thread, or the one with the identifier `known`. Beside any other thread the program goes
    on, as beside one of a loader."""
    if known == ANY_THREAD or threading.get_ident() == known:
        return True
    return threading.current_thread() is threading.main_thread()


class Thread(threading.Thread):
    """A thread whose start raises RuntimeError where there is no memory for it. No interrupt comes into the start, in
    which it would leave a lock that the thread waits for."""

    def start(self) -> None:
        check_room()
        with uninterrupted():
            super().start()


class ThreadPool(ThreadPoolExecutor):
    """A pool whose `submit` raises RuntimeError where there is no memory for a thread that it needs. Wait with
    `as_finished` and `result_of`.

    At the exit of the process, where Python has ended all pools and pending rows are written, it works in the caller.
    """

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            with uninterrupted():  # a thread has begun before it is in the list of those that `shutdown` waits for
                if len(self._threads) < self._max_workers:
                    check_room()
                return super().submit(function, *args, **kwargs)
        except RuntimeError:
            # Asked only here: an interrupt amid the question lets Python take the main thread for ended
            # (https://github.com/python/cpython/issues/90882).
            if threading.main_thread().is_alive():
                raise
        done: Future[T] = Future()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)
        return done


def as_finished(futures: Sequence[Future[T]]) -> Iterator[Future[T]]:
    """The futures, each as soon as it is finished. An interrupt of the wait is raised.

    In `Future.result` and `concurrent.futures.as_completed`, an interrupt that comes as a wait begins is lost, is
    raised as another error, or leaves a lock locked that the working thread then waits for.
    """
    finished: SimpleQueue[Future[T]] = SimpleQueue()
    with uninterrupted():
        for future in futures:
            future.add_done_callback(finished.put)
    for _ in range(len(futures)):
        yield _next(finished)


def _next(finished: "SimpleQueue[Future[T]]") -> Future[T]:
    while True:
        try:
            return finished.get(timeout=_LOOK)
        except Empty:
            continue


def result_of(future: Future[T]) -> T:
    """The result of a future, or its error, as soon as `as_finished` has it."""
    try:
        next(as_finished([future]))
        return future.result()
    finally:
        del future  # its error would keep this frame, and those of the callers


def check_room() -> None:
    """Raise RuntimeError, as Python does, where a thread could not begin. Takes 3 µs."""
    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    stack = threading.stack_size() or (_STACK if limit == resource.RLIM_INFINITY else limit)
    try:
        mmap.mmap(-1, stack + _ROOM, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError as error:
        raise RuntimeError("can't start new thread: there is no memory for it") from error


def thread_count() -> int:
    """The number of threads worth starting: one per processor, at most 16."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 16)


def pool(threads: int | None = None) -> ThreadPool:
    """A pool of `threads` threads for work that releases Python's lock, by default `thread_count()`.

    They start when they are first needed.
    """
    return _pool(os.getpid(), threads or thread_count())


@functools.lru_cache(maxsize=4)
def _pool(pid: int, threads: int) -> ThreadPool:
    # A forked child has another pid, and so its own pool.
    return ThreadPool(threads, thread_name_prefix="warmstore")
