"""The thread in which requests to a remote run: many at a time, given up at any moment, and none in a forked child."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from multiprocessing import util
from typing import Any, TypeVar

from warmstore.errors import RemoteUnavailable
from warmstore.storage.lifecycle import Closeable

T = TypeVar("T")


class Requests(Closeable):
    """A thread with an event loop, which begins with the first request. Threads may share it.

    Args:
        url: The remote, without secrets, for messages.
        at_exit: Have it closed at exit, or when it is collected; else whoever made it does, and calls `leave` in forked
            children.
    """

    has_rows = False

    def __init__(self, url: str, *, at_exit: bool) -> None:
        self._url = url
        if not at_exit:
            self.hand_over()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine. Cancelling the future gives its requests up.

        Raises:
            RemoteUnavailable: this was closed, or cannot be used in this process.
        """
        try:
            self.check_process()
            # Under the lock, so that whatever is submitted comes before the end, which cancels it, or is refused.
            with self._lock:
                return asyncio.run_coroutine_threadsafe(coroutine, self._running())
        except BaseException:
            coroutine.close()
            raise

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Start a coroutine, and wait for it."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def check_process(self) -> None:
        """See that requests can be made in this process: obstore's threads do not come along with a fork.

        Raises:
            RemoteUnavailable: they cannot.
        """
        process = os.getpid()
        if self._process != process or _used.process not in (0, process):
            raise RemoteUnavailable(
                f"{self._url} cannot be used here: this process was forked from one that used a remote before, and "
                "obstore does not work in it. Start workers by spawn, such as torch's DataLoader with "
                "multiprocessing_context='spawn'"
            )

    def close(self) -> None:
        """Give up what goes on, and end the thread. Closing twice is fine."""
        if os.getpid() != self._process:
            return
        with self._lock:
            ended, self._ended = self._ended, True
            loop, thread = self._loop, self._thread
        if ended or loop is None or thread is None:
            return
        self.closed = True
        self.unregister()
        asyncio.run_coroutine_threadsafe(_end(loop), loop)
        thread.join()

    def leave(self) -> None:
        """In a forked child: be of no use."""
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
                util.Finalize(None, _rest, exitpriority=0)
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_serve, args=(self._loop,), name="warmstore-remote", daemon=True)
            self._thread.start()
            self.closed = False
            self.register()
        return self._loop


async def aside(do: Callable[..., T], *arguments: object) -> T:
    """What a function gives, called in a thread of its own: executors take nothing more when a program exits, and what
    is pending is pushed then."""
    loop, result = asyncio.get_running_loop(), Future[T]()

    def run() -> None:
        try:
            result.set_result(do(*arguments))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="warmstore-aside", daemon=True).start()
    return await asyncio.wrap_future(result, loop=loop)


class _Used:
    """`process`: the one that has obstore's threads; 0 before they are there."""

    process = 0


_used = _Used()
_REST = 0.1
"""Seconds."""


def _rest() -> None:
    """At exit, after everything that makes requests: let obstore's threads come to rest.

    A thread has given its answer before it gives Python's lock back. If the interpreter ends meanwhile, taking the lock
    again ends the thread within Rust, and that aborts the process.
    """
    if os.getpid() == _used.process:
        time.sleep(_REST)


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
    # What was done already is no task any more, and whoever waits for it is told in the next turn of the loop.
    await asyncio.sleep(0)
    loop.stop()
