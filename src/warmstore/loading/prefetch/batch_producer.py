"""BatchProducer: builds the batches of tasks, in order, in the caller's thread, in worker threads or in processes.

Threads belong to one iteration and end with it. Worker processes are started once and live until `close`.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

from warmstore.loading.prefetch.batch_builder import BatchBuilder, Built, Task
from warmstore.loading.prefetch.loader_iteration import LoaderIteration
from warmstore.loading.prefetch.process_prefetcher import ProcessPrefetcher
from warmstore.loading.prefetch.thread_prefetcher import ThreadPrefetcher

Batches = Generator[tuple[Task, Built], None, None]


class BatchProducer:
    """The workers of one loader.

    Args:
        threads: worker threads; 0 builds in the caller's thread.
        processes: worker processes, instead of threads.
        prefetch: the most batches that are built ahead.
        start_method: of the processes; None for Python's default.
    """

    def __init__(self, threads: int, processes: int, prefetch: int, start_method: str | None) -> None:
        self.threads = threads
        self._processes = processes
        self._prefetch = prefetch
        self._start_method = start_method
        self._pool: ProcessPrefetcher | None = None

    def batches(
        self,
        build: BatchBuilder,
        tasks: Iterator[Task],
        iteration: LoaderIteration,
        others: Iterable[LoaderIteration],
        started: Callable[[], None],
    ) -> Batches:
        """The tasks and their batches.

        Args:
            iteration: that asks for them.
            others: iterations of the same loader. Only one can use the worker processes: those are ended.
            started: called once threads or processes are running.
        """
        if self._processes:
            return self._built_by_processes(build, tasks, iteration, others, started)
        return self._built_by_threads(build, tasks, iteration, started) if self.threads else _built_here(build, tasks)

    def _built_by_threads(
        self, build: BatchBuilder, tasks: Iterator[Task], iteration: LoaderIteration, started: Callable[[], None]
    ) -> Batches:
        prefetcher = iteration.prefetcher = ThreadPrefetcher(self.threads)
        started()
        with closing(prefetcher):
            yield from prefetcher.ahead(build, tasks, self._prefetch)

    def _built_by_processes(
        self,
        build: BatchBuilder,
        tasks: Iterator[Task],
        iteration: LoaderIteration,
        others: Iterable[LoaderIteration],
        started: Callable[[], None],
    ) -> Batches:
        for other in others:
            if other is not iteration and other.has_begun:
                other.end("another `for` has taken over the worker processes of this one")
        if self._pool is None:
            without_send = replace(build, send=None)  # CUDA does not survive a fork
            self._pool = ProcessPrefetcher(self._processes, without_send, self._prefetch, self._start_method)
        started()
        send = build.send
        try:
            for task, built in self._pool.ahead(tasks):
                yield task, built if send is None else built._replace(batch=send(built.batch))
        except Exception:
            self.close()  # one process that died takes the others along
            raise

    def close(self) -> None:
        """End the worker processes. The next call of `batches` starts new ones."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def after_fork(self) -> None:
        """In a forked child: the worker processes stay with the parent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.forget()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_pool": None}


def _built_here(build: BatchBuilder, tasks: Iterator[Task]) -> Batches:
    for task in tasks:
        yield task, build(task)
