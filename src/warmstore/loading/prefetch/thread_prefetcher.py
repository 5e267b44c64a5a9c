"""Worker threads that make batches ahead of their use, in order and boundedly many.

They live as long as one `for` does: whoever leaves it, in whatever way, finds them gone.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from warmstore.errors import Closed

Task = TypeVar("Task")
Made = TypeVar("Made")

_here = threading.local()


class ThreadPrefetcher:
    """So many threads for one iteration. `close` ends them and waits until they are gone."""

    def __init__(self, workers: int) -> None:
        self._pid = os.getpid()
        self._closed = False
        self._pool = ThreadPoolExecutor(workers, "warmstore-loader", initializer=_mark)

    def ahead(
        self, make: Callable[[Task], Made], tasks: Iterator[Task], depth: int
    ) -> Generator[tuple[Task, Made], None, None]:
        """Yield every task with what `make` makes of it, in order; at most `depth` are begun beyond the one yielded.

        Raises:
            Closed: the crew was closed meanwhile.
        """
        waiting: deque[tuple[Task, Future[Made]]] = deque()
        for task in islice(tasks, depth):
            waiting.append((task, self._begin(make, task)))
        while waiting:
            task, future = waiting.popleft()
            try:
                made = future.result()
            except CancelledError:
                if not future.cancelled():
                    raise  # what was called to make it raised this
                raise Closed("the loader was closed while a batch was waited for") from None
            del future
            for following in islice(tasks, 1):
                waiting.append((following, self._begin(make, following)))
            yield task, made
            del made

    def _begin(self, make: Callable[[Task], Made], task: Task) -> Future[Made]:
        try:
            return self._pool.submit(make, task)
        except RuntimeError as error:
            raise Closed(f"the loader was closed while its batches were wanted: {error}") from None

    def close(self) -> None:
        """Forget what waits, finish what is being made, and end the threads."""
        if self._closed:
            return  # at the end of the program not even modules may be left by the time a `for` is taken apart
        self._closed = True
        if self._pid != os.getpid():
            return  # a forked child has none of the threads, and perhaps their locks
        # The garbage collector may come here in one of the threads, which cannot wait for itself.
        self._pool.shutdown(wait=not getattr(_here, "is_worker", False), cancel_futures=True)


def _mark() -> None:
    _here.is_worker = True
