"""ProcessPrefetcher: worker processes of torch's DataLoader build batches ahead, for sources that are Python code.

Processes live from the first epoch until the loader is closed. They return batches in shared memory. A message between
two processes costs about a millisecond of CPU time, so small batches that are built in less travel several at a time.
"""

import functools
import multiprocessing
import os
import pickle
import time
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np

from warmstore.errors import BadSource
from warmstore.extras import imported
from warmstore.loading.prefetch.batch_builder import BatchBuilder, Built, Task
from warmstore.loading.prefetch.parent_death import begin_worker
from warmstore.loading.prefetch.sent_objects import check_importable
from warmstore.loading.prefetch.shared_memory import SHARED, torch_has
from warmstore.loading.prefetch.shared_segments import ReceivedArray, forget_segments, start_worker
from warmstore.loading.prefetch.worker_deaths import DeathWatch, worker_context
from warmstore.records.framework_arrays import mapped
from warmstore.records.sample_batch import without_views
from warmstore.storage.interrupts import uninterrupted

_inherited: list[Any] = []

_SECONDS = 4e-3  # to build the batches of one message, about, if they are small
_BYTES = 4 << 20  # of the batches in one message, about, at most
_MOMENT = 5.0
"""Seconds in which a thread that is running gives back a lock."""
MOST = 8
"""Batches in one message, at most."""


class _Message(NamedTuple):
    """What a worker sends for some tasks. error: what the task after the last batch raised, wrapped by torch; or None.

    seconds, nbytes: of one batch. report: of the source, at the end of an epoch.
    """

    batches: list[Built]
    error: Any
    notes: list[str]
    seconds: float
    nbytes: int
    report: Any


class ProcessPrefetcher:
    """Worker processes. `close` ends them.

    Args:
        workers: the number of processes, at least 1.
        prefetch: the most batches built ahead, or messages of several small ones, rounded up to a multiple of the
            workers.
        start_method: "fork", "spawn", "forkserver", or None for Python's default.

    Raises:
        NotInstalled: torch is not installed.
        NotPicklable: processes that are not forked would have to import what a notebook defines.
        BadSource: forked processes could not read the source.
    """

    def __init__(self, workers: int, make: BatchBuilder, prefetch: int, start_method: str | None) -> None:
        check_importable(make, start_method)
        self._tasks = _Tasks(workers)
        self._source = make.source
        torch = imported("torch")
        method = start_method or multiprocessing.get_start_method()
        if method == "fork" and not make.source.forks:
            raise BadSource(
                "processes that are forked cannot read ArrayRecord files, as the library's threads do not survive a "
                "fork: pass start_method='forkserver', or use threads (workers=)"
            )
        with _without_advice():
            self._loader: Any = imported("torch.utils.data").DataLoader(
                _Batches(make),
                batch_size=None,
                sampler=self._tasks,
                collate_fn=_as_it_is,
                num_workers=workers,
                prefetch_factor=-(-prefetch // workers),
                persistent_workers=True,
                worker_init_fn=functools.partial(begin_worker, None if method == "forkserver" else os.getpid()),
                multiprocessing_context=worker_context(start_method),
                generator=torch.Generator(),  # the default would draw from the program's generator
            )
        self._watch = DeathWatch(self._loader)

    @property
    def has_lost_workers(self) -> bool:
        """Whether a process has ended that should be waiting for tasks."""
        running = getattr(self._loader, "_iterator", None)
        return running is not None and not all(worker.is_alive() for worker in running._workers)

    def ahead(self, tasks: Iterator[Task]) -> Generator[tuple[Task, Built], None, None]:
        """Yield every task with its batch, in order."""
        self._tasks.begin(tasks)
        # multiprocessing starts threads, which an interrupt amid that leaves waiting for ever.
        with uninterrupted(), _without_advice(), self._watch:
            made = iter(self._loader)
        while (message := self._next(made)) is not None:
            for note in message.notes:
                warnings.warn(note, RuntimeWarning, stacklevel=5)
            if message.report is not None:
                self._source.take_report(message.report)
            if not message.batches:
                continue
            self._tasks.fit(message)
            turn = self._tasks.rounds[0]
            turn.messages.append(message)
            del message  # a batch has no reference but the consumer's
            while turn.has_next():
                yield turn.next()
            if not turn.tasks:
                self._tasks.rounds.popleft()

    def _next(self, made: Iterator[_Message]) -> _Message | None:
        with self._watch:
            return next(made, None)

    def close(self) -> None:
        """End the processes, once they have finished their batches."""
        loader, self._loader = self._loader, None
        running = getattr(loader, "_iterator", None)
        if running is not None:  # a `for` or a traceback may keep the iterator alive
            self._watch.end()
            for queue in getattr(running, "_index_queues", ()):
                _unlock(queue)
            running._shutdown_workers()
            forget_segments([worker.pid for worker in running._workers])

    def kill(self) -> None:
        """End the processes in the middle of their batches."""
        running = getattr(self._loader, "_iterator", None)
        if running is not None:
            self._watch.end()
            for worker in running._workers:
                worker.terminate()
        self.close()

    def forget(self) -> None:
        """In a forked child, keep torch's loader alive: collecting it would end the parent's processes."""
        _inherited.append(self._loader)
        self._loader = None


def _unlock(queue: Any) -> None:
    """Release the lock of a queue if the error or interrupt that ends the loader came amid `put` and left it locked."""
    changed = queue._notempty
    changed.acquire(timeout=_MOMENT)  # which the thread that sends has for microseconds
    changed.release()


class _Round:
    """The tasks of one message from each worker. Their batches are in turn from all of these messages."""

    def __init__(self, tasks: Sequence[Task], workers: int) -> None:
        self.tasks = deque(tasks)
        self.messages: list[_Message] = []
        self._workers = min(workers, len(tasks))
        self._turn = 0  # of the workers

    def has_next(self) -> bool:
        """Whether the message with the next batch has come."""
        return bool(self.tasks) and self._turn < len(self.messages)

    def next(self) -> tuple[Task, Built]:
        """The next task and its batch.

        Raises:
            Exception: the task raised it in the worker.
        """
        message = self.messages[self._turn]
        if not message.batches:
            message.error.reraise()
        built = message.batches.pop(0)
        self._turn = (self._turn + 1) % self._workers
        return self.tasks.popleft(), _received(built)


class _Tasks:
    """A sampler for torch's DataLoader: the tasks of one iteration in groups, then an empty group for every worker.

    With w workers, batch n is built by worker n % w, however many batches travel together: steps may have a state.
    """

    def __init__(self, workers: int) -> None:
        self.rounds: deque[_Round] = deque()
        self._workers = workers
        self._tasks: Iterable[Task] = ()
        self._size = 1

    def begin(self, tasks: Iterator[Task]) -> None:
        self.rounds.clear()
        self._tasks = tasks

    def fit(self, message: _Message) -> None:
        """Choose the size of the next groups by the batches of a message."""
        if message.batches:
            least, most = int(_SECONDS / max(message.seconds, 1e-9)), _BYTES // max(message.nbytes, 1)
            self._size = max(1, min(least, most, MOST, 2 * self._size))

    def __iter__(self) -> Iterator[Sequence[Task]]:
        tasks = iter(self._tasks)
        while together := list(islice(tasks, self._workers * self._size)):
            self.rounds.append(_Round(together, self._workers))
            for worker in range(min(self._workers, len(together))):
                yield together[worker :: self._workers]
        yield from ((),) * self._workers  # workers take groups in turn, so each gets one


class _Batches:
    """A data set for torch's DataLoader: batches by their task."""

    def __init__(self, make: BatchBuilder) -> None:
        self._make = make

    def __getitem__(self, tasks: Sequence[Task]) -> "_Packed":
        try:
            return _Packed(self._message(tasks))
        except Exception as error:
            if _can_be_sent(type(error)):
                raise
            raise RuntimeError(f"{type(error).__qualname__}: {error}") from error

    def _message(self, tasks: Sequence[Task]) -> _Message:
        source = self._make.source
        segments = start_worker()
        if not tasks:
            source.finish()
        made: list[Built] = []
        error, sizes, began = None, _Sizes(), time.perf_counter()
        for task in tasks:
            try:
                built = self._make(task)
                made.append(built._replace(batch=mapped(sizes.shared, without_views(built.batch))))
            except Exception:
                if not made:
                    raise
                error = imported("torch._utils").ExceptionWrapper(where=f"in worker process {os.getpid()}")
                if not _can_be_sent(error.exc_type):
                    error.exc_type = RuntimeError
                break
        count = max(1, len(made))
        took, report = time.perf_counter() - began, None if tasks else source.report()
        return _Message(made, error, [*source.notes(), *segments.notes()], took / count, sizes.nbytes // count, report)


def _can_be_sent(kind: type) -> bool:
    """Whether the class of an error can be sent: not if it is made while a program runs, as those of botocore are. Then
    the thread that feeds torch's queue would only print that, and the consumer would wait for ever."""
    try:
        pickle.dumps(kind)
    except Exception:
        return False
    return True


class _Packed:
    """A message as bytes. It is pickled where it is made, so that what cannot be sent is an error of its task: the
    thread that feeds torch's queue would only print the error, and the consumer would wait for ever."""

    def __init__(self, message: _Message) -> None:
        self._data = bytes(ForkingPickler.dumps(message))

    def __reduce__(self) -> Any:
        return pickle.loads, (self._data,)


@contextmanager
def _without_advice() -> Iterator[None]:
    with warnings.catch_warnings():
        # torch warns of more workers than cores.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        yield


def _as_it_is(value: Any) -> Any:
    return value


class _Shared:
    """An array as a tensor, which torch sends to another process in shared memory."""

    device = dtype = None  # `mapped` treats objects with these attributes as arrays

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


class _Sizes:
    """Puts arrays into shared memory. nbytes: of all arrays so far."""

    def __init__(self) -> None:
        self.nbytes = 0

    def shared(self, value: Any, name: str) -> Any:
        with suppress(AttributeError, RuntimeError):  # a sparse tensor has none
            self.nbytes += value.nbytes
        return _as_shared(value)


def _as_shared(value: Any) -> Any:
    if type(value) is not np.ndarray or value.nbytes < SHARED or not torch_has(value.dtype):
        return value
    segments = start_worker()
    if (sent := segments.sent(value)) is not None:
        return sent
    tensor = imported("torch").from_numpy(value if _has_tensor(value) else value.copy())
    return _Shared(tensor) if segments.shares(tensor) else value


def _has_tensor(array: np.ndarray[Any, Any]) -> bool:
    """Whether torch has tensors over the memory of an array: it has none with steps back, or of parts of an element."""
    steps_fit = all(step >= 0 and step % array.itemsize == 0 for step in array.strides)
    return steps_fit and bool(array.flags.writeable)


def _received(built: Built) -> Built:
    return built._replace(batch=mapped(_as_array, built.batch))


def _as_array(value: Any, name: str) -> Any:
    if isinstance(value, ReceivedArray):
        return value.array
    return value.tensor.numpy() if isinstance(value, _Shared) else value
