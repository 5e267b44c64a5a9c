"""BatchProducer: builds the batches of tasks, in order, in the caller's thread, in worker threads or in processes.

Threads end with their iteration. Worker processes live until `close`.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

from warmstore.loading.prefetch.batch_builder import BatchBuilder, Built, Task
from warmstore.loading.prefetch.process_prefetcher import ProcessPrefetcher
from warmstore.loading.prefetch.thread_prefetcher import ThreadPrefetcher
from warmstore.loading.steps.until_error import until_error

Batches = Generator[tuple[Task, Built], None, None]


class LoaderIteration:
    """One `for` over a loader, which the loader ends when it is closed or loads a state.

    batches: what it reads from the producer. prefetcher: its worker threads, if any. is_forked: this is a copy in a
    forked child, without threads and prefetched batches. has_begun: whether the first `next` was called.
    """

    def __init__(self) -> None:
        self.batches: Batches | None = None
        self.prefetcher: ThreadPrefetcher | None = None
        self.is_forked = False
        self.has_begun = False
        self._reason: tuple[type[Exception], str] | None = None

    def run(self, handed_out: Iterator[Any]) -> Iterator[Any]:
        """Yield what is handed out, and at its end close `batches` and end the threads.

        An error or Ctrl-C between two statements of the loader leaves `batches` in a frame that the traceback keeps, in
        a notebook until the next error.
        """
        self.check()
        self.has_begun = True
        try:
            yield from handed_out
        finally:
            if self.batches is not None:
                self.batches.close()
            prefetcher = self.prefetcher  # which another thread may end meanwhile
            if prefetcher is not None:
                prefetcher.close()  # unless `batches` has: an interrupt may have come amid that

    def end(self, reason: str, kind: type[Exception] = RuntimeError) -> None:
        """Stop the threads, and make `check` raise."""
        self._reason = kind, reason
        prefetcher, self.prefetcher = self.prefetcher, None
        if prefetcher is not None:
            prefetcher.close()

    def check(self) -> None:
        """Raise the reason if the iteration was ended."""
        if self._reason is not None:
            kind, reason = self._reason
            raise kind(reason)


class BatchProducer:
    """The workers of one loader.

    Args:
        threads: worker threads; 0 builds in the caller's thread.
        processes: worker processes, instead of threads, at most.
        prefetch: the most batches that are built ahead.
        start_method: of the processes; None for Python's default.
    """

    def __init__(self, threads: int, processes: int, prefetch: int, start_method: str | None) -> None:
        self.threads = threads
        self._most = self.processes = processes
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
        """The tasks and their batches. The source says how many of the processes they are worth. An error of the tasks
        is raised after the batches before it.

        Args:
            iteration: the iteration that reads the batches.
            others: iterations of the same loader, which are ended if processes are used: only one can use them.
            started: called once threads or processes are running.
        """
        processes = build.source.processes(self._most) if self._most else 0
        if self._pool is not None or processes:
            for other in others:
                if other is not iteration and other.has_begun:
                    other.end("another `for` has taken over the worker processes of this one")
        if processes != self.processes or (self._pool is not None and self._pool.has_lost_workers):
            self.close()
            self.processes = processes
        if not processes and not self.threads:
            for task in tasks:
                yield task, build(task)
            return
        errors: list[Exception] = []
        tasks = until_error(tasks, errors)
        if not processes:
            prefetcher = iteration.prefetcher = ThreadPrefetcher(self.threads)
            started()
            with closing(prefetcher):
                yield from prefetcher.ahead(build, tasks, self._prefetch)
        else:
            yield from self._in_processes(build, tasks, processes, started)
        if errors:
            raise errors.pop()

    def _in_processes(
        self, build: BatchBuilder, tasks: Iterator[Task], processes: int, started: Callable[[], None]
    ) -> Batches:
        if self._pool is None:
            without_send = replace(build, send=None)  # CUDA cannot be used after a fork
            self._pool = ProcessPrefetcher(processes, without_send, self._prefetch, self._start_method)
        started()
        send = build.send
        try:
            for task, built in self._pool.ahead(tasks):
                yield task, built if send is None else built._replace(batch=send(built.batch))
        except Exception:
            self.close()  # after a process died, torch's DataLoader cannot be used
            raise
        except KeyboardInterrupt:
            self._kill()  # it may have come between any two statements of torch's DataLoader
            raise

    def close(self) -> None:
        """End the worker processes. The next call of `batches` starts new processes."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _kill(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.kill()

    def after_fork(self) -> None:
        """In a forked child, leave the worker processes to the parent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.forget()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_pool": None}
