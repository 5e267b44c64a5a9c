"""ThreadPrefetcher: worker threads that build a bounded number of batches ahead, in order, and end with their `for`."""

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError, Future
from itertools import islice
from typing import TypeVar

from warmstore.errors import Closed
from warmstore.storage.locks import holds_lock
from warmstore.storage.threads import ThreadPool, result_of

Task = TypeVar("Task")
Made = TypeVar("Made")

_here = threading.local()


class ThreadPrefetcher:
    """Worker threads of one iteration. `close` ends them, and waits for their end where it can."""

    def __init__(self, workers: int) -> None:
        self._pid = os.getpid()
        self._closed = self._has_ended = False
        self._pool = ThreadPool(workers, "warmstore-loader", initializer=_mark)

    def ahead(
        self, make: Callable[[Task], Made], tasks: Iterator[Task], depth: int
    ) -> Generator[tuple[Task, Made], None, None]:
        """Yield every task with the result of `make`, in order, with at most `depth` tasks begun ahead.

        Raises:
            Closed: the prefetcher was closed.
        """
        waiting: deque[tuple[Task, Future[Made]]] = deque()
        try:
            for task in islice(tasks, depth):
                waiting.append((task, self._begin(make, task)))
            while waiting:
                task, future = waiting.popleft()
                try:
                    made = result_of(future)
                except CancelledError:
                    if not future.cancelled():
                        raise  # `make` raised it
                    raise Closed("the loader was closed while its `for` waited for a batch") from None
                finally:
                    del future  # its result is given away; its error would keep this frame, and those of the callers
                for following in islice(tasks, 1):
                    waiting.append((following, self._begin(make, following)))
                yield task, made
                del made
        finally:
            waiting.clear()  # the traceback of an interrupt keeps this frame

    def _begin(self, make: Callable[[Task], Made], task: Task) -> Future[Made]:
        try:
            return self._pool.submit(make, task)
        except RuntimeError as error:
            if not self._closed:
                raise  # there is no memory for a thread
            raise Closed(f"the loader was closed while its `for` was running: {error}") from None

    def close(self) -> None:
        """Cancel waiting tasks, finish running ones, and end the threads. An interrupted call is repeated."""
        if self._has_ended:
            return  # generators may be closed at exit, when modules are cleared already
        self._closed = True
        if self._pid != os.getpid():
            return  # a forked child has none of the threads, but may have their locks
        # The garbage collector may call this in a worker thread, which cannot wait for itself, and in a thread with a
        # lock that the workers wait for.
        self._pool.shutdown(wait=not getattr(_here, "is_worker", False) and not holds_lock(), cancel_futures=True)
        self._has_ended = True


def _mark() -> None:
    _here.is_worker = True
