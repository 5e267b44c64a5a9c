"""ProcessPrefetcher: worker processes of torch's DataLoader that build batches ahead, for sources that are Python code.

Processes live from the first epoch until the loader is closed. They return batches in shared memory.
"""

import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any

import numpy as np

from warmstore.loading.prefetch.batch_builder import BatchBuilder, Built, Task
from warmstore.loading.prefetch.shared_memory import SHARED, torch_has
from warmstore.loading.prefetch.shared_segments import ReceivedArray, forget_segments, start_worker
from warmstore.loading.values.ownership import without_views
from warmstore.records.framework_arrays import imported, mapped

_inherited: list[Any] = []


class ProcessPrefetcher:
    """Worker processes. `close` ends them.

    Args:
        workers: the number of processes, at least 1.
        prefetch: the most batches built ahead, rounded up to a multiple of the workers.
        start_method: "fork", "spawn", "forkserver", or None for Python's default.

    Raises:
        NotInstalled: torch is not installed.
    """

    def __init__(self, workers: int, make: BatchBuilder, prefetch: int, start_method: str | None) -> None:
        self._tasks = _Tasks(workers)
        torch = imported("torch")
        with _without_advice():
            self._loader: Any = imported("torch.utils.data").DataLoader(
                _Batches(make),
                batch_size=None,
                sampler=self._tasks,
                collate_fn=_as_it_is,
                num_workers=workers,
                prefetch_factor=-(-prefetch // workers),
                persistent_workers=True,
                multiprocessing_context=start_method,
                generator=torch.Generator(),  # the default would draw from the program's generator
            )

    def ahead(self, tasks: Iterator[Task]) -> Generator[tuple[Task, Built], None, None]:
        """Yield every task with its batch, in order."""
        self._tasks.begin(tasks)
        with _without_advice():
            made = iter(self._loader)
        for built, notes in made:
            for note in notes:
                warnings.warn(note, RuntimeWarning, stacklevel=5)
            task = self._tasks.drawn.popleft()
            if task is not None:
                yield task, built._replace(batch=mapped(_as_array, built.batch))
            del built

    def close(self) -> None:
        """End the processes, once they have finished their batches."""
        loader, self._loader = self._loader, None
        running = getattr(loader, "_iterator", None)
        if running is not None:  # a `for` or a traceback may keep the iterator alive
            running._shutdown_workers()
            forget_segments([worker.pid for worker in running._workers])

    def forget(self) -> None:
        """In a forked child, keep torch's loader alive: collecting it would end the parent's processes."""
        _inherited.append(self._loader)
        self._loader = None


class _Tasks:
    """A sampler for torch's DataLoader: the tasks of one iteration, then one None for every worker."""

    def __init__(self, workers: int) -> None:
        self.drawn: deque[Task | None] = deque()
        self._workers = workers
        self._tasks: Iterable[Task] = ()

    def begin(self, tasks: Iterator[Task]) -> None:
        self.drawn.clear()
        self._tasks = tasks

    def __iter__(self) -> Iterator[Task | None]:
        # Workers take tasks in turn, so each gets one None.
        for task in chain(self._tasks, repeat(None, self._workers)):
            self.drawn.append(task)
            yield task


class _Batches:
    """A data set for torch's DataLoader: batches by their task."""

    def __init__(self, make: BatchBuilder) -> None:
        self._make = make

    def __getitem__(self, task: Task | None) -> tuple[Built | None, list[str]]:
        source = self._make.source
        start_worker()
        if task is None:
            source.finish()
            return None, source.notes()
        built = self._make(task)
        return built._replace(batch=mapped(_as_shared, without_views(built.batch))), source.notes()


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


def _as_shared(value: Any, name: str) -> Any:
    if type(value) is not np.ndarray or value.nbytes < SHARED or not torch_has(value.dtype):
        return value
    if (sent := start_worker().sent(value)) is not None:
        return sent
    return _Shared(imported("torch").from_numpy(value if value.flags.writeable else value.copy()))


def _as_array(value: Any, name: str) -> Any:
    if isinstance(value, ReceivedArray):
        return value.array
    return value.tensor.numpy() if isinstance(value, _Shared) else value
