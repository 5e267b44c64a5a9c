"""The thread that runs the requests to a remote. Requests run concurrently and can be cancelled; none in a fork."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context
from multiprocessing import util
from typing import Any, TypeVar, TypeVarTuple

from warmstore.errors import RemoteUnavailable
from warmstore.storage.interrupts import uninterrupted
from warmstore.storage.lifecycle import Closeable
from warmstore.storage.threads import Thread, result_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Requests(Closeable):
    """A thread with an event loop, started with the first request. Threads may share it.

    Args:
        url: The remote, without secrets, for messages.
        at_exit: Close it at exit, or when it is collected. Otherwise the caller does, and calls `leave` in forked
            children.
    """

    _has_pending = False
    _process = 0
    """The process that made it; 0 where an interrupt came before, and there is nothing to close."""

    def __init__(self, url: str, *, at_exit: bool) -> None:
        self._url = url
        if not at_exit:
            self._hand_over()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine. Cancelling the future cancels its requests. Raises RemoteUnavailable after `close` and in
        forks."""
        future: Future[T] | None = None
        try:
            self.check_process()
            # Under the lock: a coroutine is submitted before `close`, which cancels it, or refused.
            with uninterrupted(), self._lock:
                future = asyncio.run_coroutine_threadsafe(coroutine, self._running())
        except BaseException:
            _drop(coroutine, future)
            raise
        return future

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Start a coroutine, and wait for its result. An interrupt is raised, and cancels its requests."""
        future: Future[T] | None = None
        try:
            with uninterrupted():
                future = self.submit(coroutine)
            return result_of(future)
        except BaseException:
            with uninterrupted():
                _drop(coroutine, future)
            raise
        finally:
            del future  # else its error would keep this frame, and those of the callers

    @property
    def works_here(self) -> bool:
        """False in a forked child of a process that has used a remote."""
        process = os.getpid()
        return self._process == process and _used.process in (0, process)

    def check_process(self) -> None:
        """Raise RemoteUnavailable in a forked child, which does not have obstore's threads."""
        if not self.works_here:
            raise RemoteUnavailable(
                f"{self._url} cannot be used here: this process was forked from one that used a remote before, and "
                "obstore does not work after a fork. Start workers by spawn, for example torch's DataLoader with "
                "multiprocessing_context='spawn'"
            )

    def close(self) -> None:
        """Cancel all requests, and end the thread. Safe to call twice."""
        if os.getpid() != self._process:
            return
        with uninterrupted():
            with self._lock:
                ended, self._ended = self._ended, True
                loop, thread = self._loop, self._thread
            if ended or loop is None or thread is None:
                return
            self.closed = True
            self._unregister()
            asyncio.run_coroutine_threadsafe(_end(loop), loop)
        thread.join()

    def leave(self) -> None:
        """In a forked child: refuse all requests."""
        self.closed = self._ended = True
        self._lock = threading.Lock()
        self._loop = self._thread = None

    def _after_fork(self) -> None:
        self.leave()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._ended:
            raise RemoteUnavailable(f"{self._url} was closed")
        if self._loop is None:
            if _used.process != os.getpid():
                _used.process = os.getpid()
                util.Finalize(None, _wait_for_obstore, exitpriority=0)
            loop = _Loop()
            thread = Thread(target=_serve, args=(loop,), name="warmstore-remote", daemon=True)
            try:
                thread.start()
            except BaseException:
                loop.close()
                raise
            self._loop, self._thread = loop, thread
            self.closed = False
            self._register()
        return self._loop


def _drop(coroutine: Coroutine[Any, Any, T], future: Future[T] | None) -> None:
    """End a coroutine that nobody waits for. future: its own, once it was submitted."""
    if future is None:
        coroutine.close()
    else:
        future.cancel()


async def aside(function: Callable[..., T], *arguments: object) -> T:
    """The result of a function, called in a new thread. Executors accept no work at the exit of a program, when pending
    rows are pushed."""
    loop, result = asyncio.get_running_loop(), Future[T]()
    Thread(target=_call_into, args=(result, function, *arguments), name="warmstore-aside", daemon=True).start()
    try:
        return await asyncio.wrap_future(result, loop=loop)
    finally:
        del result  # else its error would keep this frame, and those of the callers


def _call_into(result: Future[T], function: Callable[..., T], *arguments: object) -> None:
    try:
        result.set_result(function(*arguments))
    except BaseException as error:
        result.set_exception(error)
    finally:
        del result  # as above


class _Used:
    """`process`: the id of the process that has obstore's threads; 0 before they are started."""

    process = 0


_used = _Used()
_PAUSE = 0.1  # seconds


def _wait_for_obstore() -> None:
    """At exit, after the last request: wait until obstore's threads are idle.

    A thread returns its result before it releases Python's lock. If the interpreter ends in between, taking the lock
    again ends the thread within Rust, which aborts the process.
    """
    if os.getpid() == _used.process:
        time.sleep(_PAUSE)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that, once it is closed, ignores the results of cancelled requests, which obstore's threads may
    still have in hand. obstore prints the error that other loops raise."""

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        except RuntimeError:
            if not self.is_closed():
                raise
            return asyncio.Handle(callback, args, self, context)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end(loop: asyncio.AbstractEventLoop) -> None:
    while tasks := asyncio.all_tasks(loop) - {asyncio.current_task(loop)}:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # the loop reports tasks that have ended in its next iteration
    loop.stop()
