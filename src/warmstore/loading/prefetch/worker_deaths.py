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
from contextlib import suppress
from multiprocessing.context import BaseContext
from typing import Any

from warmstore.extras import imported


class DeathWatch:
    """Tells the death of a worker in a `with`. In other threads than the main one, torch looks every five seconds who
    is alive.

    Args:
        loader: a `DataLoader` with persistent workers. They may be started in the `with`.

    Raises:
        RuntimeError: a worker has died. From the `with`, and from whatever runs in it.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._signals = imported("torch.utils.data._utils.signal_handling")

    def __enter__(self) -> None:
        running = self._loader._iterator
        if running is None:
            return
        if threading.current_thread() is threading.main_thread():
            running._worker_pids_set = True
            self._signals._set_worker_pids(id(running), tuple([worker.pid for worker in running._workers]))
        try:  # only now, so that none dies in between
            for worker in running._workers:
                if not worker.is_alive():
                    raise RuntimeError(f"worker process {worker.pid} {_end(worker.exitcode)}")
        except BaseException:
            self.end()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end()
        if isinstance(error, KeyError) and isinstance(error.__context__, RuntimeError):
            raise error.__context__ from None  # Thread.start does not expect it: its own clean-up fails

    def end(self) -> None:
        """Tell nothing of workers that end from now on."""
        running = self._loader._iterator
        if running is not None and running._worker_pids_set:
            with suppress(ValueError):  # an error has come between two statements of `__enter__`
                self._signals._remove_worker_pids(id(running))
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
