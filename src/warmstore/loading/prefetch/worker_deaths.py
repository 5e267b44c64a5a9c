"""Worker processes of torch's DataLoader that die: told where the program waits for a batch, and nowhere else.

Torch watches its workers by a handler of SIGCHLD, which raises in the main thread, wherever that stands: in the middle
of a flush, or where a thread is started. Here torch watches only while the program waits for workers, when the handler
is needed: a worker that was killed while it sent something leaves half a message, and a read of the rest never ends.
Between batches nothing is raised, and the next wait looks first who is dead.
"""

import copy
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from typing import Any

from warmstore.extras import imported


@contextmanager
def watched(loader: Any) -> Iterator[None]:
    """Tell the death of a worker in this `with`.

    In other threads than the main one, torch looks every five seconds who is alive.

    Args:
        loader: a `DataLoader` with persistent workers. They may be started in this `with`.

    Raises:
        RuntimeError: a worker has died.
    """
    running = loader._iterator
    if running is not None:
        if threading.current_thread() is threading.main_thread():
            running._worker_pids_set = True
            _of_torch()._set_worker_pids(id(running), tuple(worker.pid for worker in running._workers))
        for worker in running._workers:  # after that, so that none dies in between
            if not worker.is_alive():
                raise RuntimeError(f"worker process {worker.pid} {_end(worker.exitcode)}")
    try:
        yield
    except KeyError as error:
        if isinstance(error.__context__, RuntimeError):  # Thread.start does not expect it: its own clean-up fails
            raise error.__context__ from None
        raise
    finally:
        if loader._iterator is not None:
            unwatched(loader._iterator)


def unwatched(running: Any) -> None:
    """Let torch raise nothing for workers that end from now on.

    Args:
        running: the iterator of a `DataLoader`.
    """
    if running._worker_pids_set:
        with suppress(ValueError):  # an error has come between two statements of `watched`
            _of_torch()._remove_worker_pids(id(running))
        running._worker_pids_set = False


class EndFlag:
    """An event without a lock, by which torch tells its workers that their loader ends.

    `multiprocessing.Event` has a lock, also to look whether it is set. A worker that is killed while it looks keeps the
    lock, and both the other workers and the program would wait for it for ever.
    """

    def __init__(self, context: BaseContext) -> None:
        self._ends = context.Semaphore(0)

    def set(self) -> None:
        self._ends.release()

    def is_set(self) -> bool:
        return not self._ends._semlock._is_zero()  # type: ignore[attr-defined]  # macOS cannot say the value


def worker_context(start_method: str | None) -> BaseContext:
    """How torch starts workers, with `EndFlag` for its event.

    Args:
        start_method: "fork", "spawn", "forkserver", or None for Python's default.
    """
    context: Any = copy.copy(multiprocessing.get_context(start_method))
    context.Event = lambda: EndFlag(context)
    return context  # type: ignore[no-any-return]


def _end(code: int) -> str:
    return f"was killed by signal: {signal.strsignal(-code)}" if code < 0 else f"exited unexpectedly with code {code}"


def _of_torch() -> Any:
    return imported("torch.utils.data._utils.signal_handling")
