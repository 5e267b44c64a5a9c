"""Loader: batches of samples in an order, for one rank of many, that stop and go on exactly.

A batch is arithmetic until somebody makes it: the sampler says which positions it has, so worker threads can make any
of them ahead, and where a loader stands is two numbers. What was handed out is counted, never what was prepared.
An epoch ends when its last batch is handed out: whoever takes exactly `len(loader)` batches need not ask for one more.
"""

import logging
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Never

import numpy as np

from warmstore.errors import Closed
from warmstore.loading.batch_sizes import BatchSize
from warmstore.loading.collate import Collation
from warmstore.loading.loader_options import check_options
from warmstore.loading.prefetch.batch_builder import VALID, BatchBuilder, Built, OnError, Task
from warmstore.loading.prefetch.device_transfer import transfer_to
from warmstore.loading.prefetch.process_prefetcher import ProcessPrefetcher
from warmstore.loading.prefetch.thread_prefetcher import ThreadPrefetcher
from warmstore.loading.samplers.counter_rng import MOST_SEED
from warmstore.loading.samplers.samplers import Sampler, Sequential, sampler_of
from warmstore.loading.sources.iterable import IterableSource
from warmstore.loading.sources.mixture import MixtureSource
from warmstore.loading.sources.resolve import source_of
from warmstore.loading.steps.cursor import MOST_EPOCH, EpochCursor
from warmstore.loading.steps.epoch_steps import EpochSteps
from warmstore.loading.steps.rank_steps import batch_size_of, shard_of, steps_of
from warmstore.loading.steps.shard import Shard, Uneven, find_rank
from warmstore.loading.steps.stream_steps import StreamSteps
from warmstore.loading.trainers.drivers import held_by_lightning
from warmstore.loading.trainers.trainer_faces import EpochSampler, LoaderDataset
from warmstore.loading.validation import integer, refuse
from warmstore.records.sample_batch import SampleBatch
from warmstore.storage.lifecycle import Closeable
from warmstore.storage.thread_pool import thread_count

_CHEAP = 4 << 20
_MOST_WORKERS = 4
_MOST = 2**16
_log = logging.getLogger("warmstore")


class Loader(Closeable):
    """Batches of samples. One `for` is one epoch.

    An epoch is over when its last batch was handed out. Every `iter()` starts an epoch: after one that was left in the
    middle, the next one; the same one again where all epochs are alike (`Sequential`). So `next(iter(loader))`, a
    sample batch, costs no batch of what follows. Only a state that was loaded is gone on with in its middle, by the
    next `iter()`; and with `resume_partial` an epoch that was left, too.

    Args:
        source: a RecordStore or its path, a field of one (`store["image"]`), a NumPy or JAX array, a CPU tensor, a .npy
            file (memory-mapped), ArrayRecord files (bytes), a Hugging Face Dataset, a DataFrame or Arrow table, a
            `Mixture`, a `Subset`, a list or anything with `__len__` and `__getitem__` or `__getitems__`; an iterable
            without positions; or a dict or tuple of these, all of one length.
        batch_size: samples in a batch of one rank; or a rule for batches of varying size, such as a `TokenBudget`.
        sampler: which sample stands where: a `Sampler`, "shuffle" or "sequential"; `Sequential()` by default.
        epochs: after so many finished ones there are no more batches; None for no end.
        fields: of record stores and tables, which to read; all by default.
        transform: gets each batch as NumPy arrays, collated, and returns what takes its place. In a worker thread where
            there are any.
        random: call it as transform(batch, rng), with a NumPy Generator that is a function of the seed, the epoch and
            the batch's first place in the order: the same after a resume, and with any number of workers.
        seed: of these generators; by default the sampler's, or 0.
        collate: for values that vary in length: "list", "pad" or a `Pad`, "packed"; or a dict of these by field.
        to: "numpy", "torch", "jax", a torch device or its name such as "cuda:0", or a JAX device or sharding.
        workers: threads that read, transform, collate and convert ahead; 0 does it in the caller's thread. None takes 0
            where a batch is a small copy from memory, and else up to 4.
        prefetch: batches made ahead at most.
        processes: worker processes, through torch's DataLoader, that do it instead of threads: for sources and
            transforms that are Python code. The source, and a transform, must then survive a pickle, unless processes
            are forked. They live until the loader is closed.
        start_method: of these processes: "fork", "spawn", "forkserver", or None for Python's own choice.
        rank, world_size: this process among how many; None asks torch.distributed, if it is initialised, or the
            environment, when an epoch begins.
        uneven: the rest at the end of an epoch, where ranks would get unequal numbers of steps; see `Shard`. "pad" (all
            ranks take equally many steps, filled up with repeated samples), "drop", "allow", or "full" (every batch has
            batch_size rows). Where rows may be repeated, with "full" or "pad" on several ranks, batches that are dicts
            have "valid": bool [rows], False for those; `padded` counts them for all.
        resume_partial: go on after a break instead of beginning an epoch.
        on_error: what to do with a sample that cannot be read: "raise"; "skip", which leaves it out, logs it and counts
            it in `skipped`; or a function of the error and the position, which returns a sample to take its place, or
            None to skip it.
        copy: batches are memory of their own. False hands out views of the source where that is cheaper, which must not
            be written to.

    A batch has the structure of the source: an array or list for one array, a dict for a store or a dict.

    Raises:
        BadSource: no source, or sources of different lengths.
        BadRank: a rank outside the world.
        ValueError, TypeError: an option that cannot be.
    """

    num_workers = 0  # as trainers ask of torch's DataLoader, when they make one of `dataset` and `batch_sampler`
    prefetch_factor = None

    def __init__(
        self,
        source: Any,
        batch_size: int | BatchSize,
        sampler: Sampler | str | None = None,
        *,
        epochs: int | None = None,
        fields: Sequence[str] | None = None,
        transform: Callable[..., Any] | None = None,
        random: bool = False,
        seed: int | None = None,
        collate: Any = "list",
        to: Any = "numpy",
        workers: int | None = None,
        prefetch: int = 4,
        processes: int = 0,
        start_method: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
        resume_partial: bool = False,
        on_error: str | OnError = "raise",
        copy: bool = True,
        **unknown: Never,
    ) -> None:
        refuse("Loader", unknown)
        self._size = batch_size_of(batch_size)
        self._rank, self._world_size, self._uneven = rank, world_size, uneven
        self._epochs = None if epochs is None else integer("epochs", epochs, 0, MOST_SEED)
        self._prefetch = integer("prefetch", prefetch, 1, _MOST)
        self._collation = Collation.of(collate)
        self._source = source_of(source, fields, self._collation, copy=copy)
        self._resume_partial = resume_partial
        order = sampler_of(sampler)
        if isinstance(self._source, IterableSource) and not isinstance(order, Sequential):
            raise ValueError(f"an iterable has no positions, so {order!r} cannot order it: shuffle the iterable itself")
        if isinstance(self._source, MixtureSource):
            order = self._source.mixed.sampler(self._source.lengths, order)
        self._order = order
        check_options(
            transform, random=random, seed=seed, workers=workers, processes=processes, start_method=start_method,
            resume_partial=resume_partial, copy=copy,
        )  # fmt: skip
        seed = integer("seed", getattr(order, "seed", 0) if seed is None else seed, 0, MOST_SEED)
        self._processes = integer("processes", processes, 0, _MOST)
        self._start_method = start_method
        self._transfer = transfer_to(to)
        send = None if self._transfer is None else self._transfer.send
        self._receive = None if self._transfer is None else self._transfer.receive
        self._shard = self._found_shard()
        self._build = BatchBuilder(
            self._source,
            self._collation,
            self._shard.marks,
            uneven == "full",
            transform,
            random,
            seed,
            _policy(on_error, self._source),
            send,
        )
        self._cursor = EpochCursor(
            self._steps(),
            None if isinstance(self._source, IterableSource) else len(self._source),
            partial(getattr, self._source, "identity"),
            {"seed": seed} if random else {},
            resume_partial=resume_partial,
        )
        self._workers = self._chosen() if workers is None else integer("workers", workers, 0, _MOST)
        self._iterations: weakref.WeakSet[_Iteration] = weakref.WeakSet()
        self._others: ProcessPrefetcher | None = None
        self._timed = 0
        # Of a stream: where it stood before its last batches.
        self._before: deque[tuple[int, int, int]] = deque(maxlen=4)
        self.padded = 0
        """Repeated rows at the end of the batch that was handed out last."""
        self.skipped = 0
        """Bad samples that were left out of the batches handed out so far."""
        # Called with the seconds of every epoch that was handed out whole, but for the first.
        self.epoch_over: Callable[[float], None] | None = None
        self._check_structure()
        self.closed = False

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0 on: one more as soon as the last batch of one was handed out.

        Once another epoch was named, that one.
        """
        return self._cursor.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that begins next. One that runs is not changed; a state loaded from that epoch stays.

        Raises:
            ValueError: no integer from 0 to 2**64 - 1.
        """
        self._cursor.set_epoch(integer("epoch", epoch, 0, MOST_EPOCH))

    @property
    def workers(self) -> int:
        """Worker threads of a `for`."""
        return self._workers

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch. Of batches of varying size: in the epoch that comes next.

        Raises:
            TypeError: the source is an iterable that does not know its length.
        """
        self._find_shard()
        return self._cursor.count()

    def __repr__(self) -> str:
        cursor = self._cursor
        samples = "an iterable" if cursor.samples is None else f"{cursor.samples:,} samples"
        return (
            f"Loader({samples}, {self._order!r:.200}, {self._shard}, epoch {cursor.epoch:,}, place {cursor.place:,}, "
            f"{self._workers} workers)"
        )

    def __iter__(self) -> Iterator[Any]:
        """The batches of an epoch. It begins with the first one that is asked for."""
        return self._iterate(endless=False)

    def stream(self) -> Iterator[Any]:
        """The batches of an epoch and all that follow, without end or until `epochs` are finished.

        Raises:
            ValueError: an epoch has no batch for this rank.
        """
        if not isinstance(self._source, IterableSource) and not len(self):
            raise ValueError(f"an epoch has no batch for this rank, so a stream would never give one: {self!r}")
        return self._iterate(endless=True)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: a small dict of what JSON can say, between any two batches or before the first.

        It counts batches that were handed out. It holds neither rank nor batch size nor workers, so the state of any
        rank is that of all after the same number of steps, and may be loaded with others of these. It knows the data:
        see `load_state_dict`.
        """
        held = held_by_lightning() if self._before else 0
        return self._cursor.state_at(*self._before[-held]) if held else self._cursor.state()

    def load_state_dict(self, state: dict[str, Any], strict: bool = True, *, check_identity: bool = True) -> None:
        """Go on where a state was taken; a `for` that runs is ended.

        A state is refused where the samples are others, or stand at other positions: after deletes, a rebalance or an
        edit that changes their number. Of a record store that has only grown the epoch is finished over the samples it
        was begun with, and the next one is over all.

        Args:
            strict: False takes a state of other data, too, and begins its epoch anew.
            check_identity: False takes the state of another store of the same length exactly: for copies that were made
                anew, as by a conversion on each host.

        Raises:
            BadState: no state, one of other samples or another order; nothing has changed.
        """
        self._cursor.load(state, strict=strict, check_identity=check_identity)
        self._before.clear()
        self._stop("load_state_dict has ended this `for`")

    def close(self) -> None:
        """End a running `for` and its threads. The sources stay open. Closing twice is fine."""
        if self.closed:
            return
        self.closed = True
        self._stop("the loader was closed while this `for` was running")
        self._dismiss()
        self._source.release()
        self.unregister()

    def __getstate__(self) -> dict[str, Any]:
        """A copy stands where this loader stands, and has no `for`, threads or processes of it."""
        own = {"_iterations", "_others", "_receive", "epoch_over"}
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._cursor = self._cursor.moved(self._cursor.steps)
        self._receive = None if self._transfer is None else self._transfer.receive
        self._iterations = weakref.WeakSet()
        self._others = None
        self.epoch_over = None

    def _after_fork(self) -> None:
        # Threads and processes are the parent's. In the child a `for` goes on with its own.
        others, self._others = self._others, None
        if others is not None:
            others.forget()
        for iteration in self._iterations:
            iteration.is_forked = True

    # What trainers look for

    @property
    def dataset(self) -> LoaderDataset:
        """The samples, map-style. With `batch_sampler` and `collate_fn` torch's DataLoader gives the same batches."""
        return LoaderDataset(self._build)

    @property
    def sampler(self) -> EpochSampler:
        """The order of this rank's samples; its `set_epoch` is this loader's."""
        self._find_shard()
        return EpochSampler(self._order, self._cursor, None if self._resume_partial else self.set_epoch)

    @property
    def batch_sampler(self) -> Any:
        """This rank's batches of positions, a `BatchSampler` with an epoch count of its own.

        Raises:
            NotInstalled: it is torch's, which is not there.
            AttributeError: an iterable source has no positions.
        """
        from warmstore.loading.trainers.batch_sampler import BatchSampler  # needs torch

        if isinstance(self._source, IterableSource):
            raise AttributeError("an iterable source has no positions, and so no batch sampler")
        made = BatchSampler(
            self._source, self._size, self._order, rank=self._rank, world_size=self._world_size, uneven=self._uneven
        )
        made.set_epoch(self._cursor.next_epoch)
        return made

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of one rank; None where batches vary in size."""
        return None if isinstance(self._size, BatchSize) else self._size

    @property
    def drop_last(self) -> bool:
        """Whether the rest of an epoch is left out."""
        return self._uneven == "drop"

    def collate_fn(self, samples: Any) -> Any:
        """The batch of what `dataset.__getitems__` gives, as this loader hands it out."""
        built = samples.batch if isinstance(samples, SampleBatch) else self._build.finish(samples)
        return built if self._receive is None else self._receive(built)

    # Iterations

    def _found_shard(self) -> Shard:
        return shard_of(self._size, self._rank, self._world_size, self._uneven)

    def _find_shard(self) -> None:
        """Ask again who this process is: a trainer may have started torch.distributed since the loader was made."""
        if self._rank is None and find_rank() != (self._shard.rank, self._shard.world_size):
            self._shard = self._found_shard()
            self._cursor.steps = self._steps()
            self._build = replace(self._build, marks=self._shard.marks)
            self._dismiss()

    def _steps(self) -> EpochSteps:
        if isinstance(self._source, IterableSource):
            if isinstance(self._size, BatchSize):
                raise ValueError("batches of varying size need to know all lengths, and an iterable does not say them")
            return StreamSteps(self._source, self._shard)
        return steps_of(self._size, self._order, self._shard, len(self._source))

    def _iterate(self, *, endless: bool) -> Iterator[Any]:
        if self.closed:
            raise Closed("the loader is closed; make another one")
        iteration = _Iteration()
        self._iterations.add(iteration)
        return self._hand_out(iteration, endless=endless)

    def _hand_out(self, iteration: "_Iteration", *, endless: bool) -> Iterator[Any]:
        """Begin an epoch, and hand out its batches; or those of all epochs from there on."""
        cursor = self._cursor
        iteration.check()
        iteration.has_begun = True
        self._find_shard()
        if self._is_over():
            return
        epoch, place, samples = cursor.begin()
        if self._is_over():  # nothing was left of an epoch that was gone on with
            return
        whole, start = not place, time.perf_counter()
        made = self._made(iteration, self._tasks(epoch, place, samples, endless=endless))
        while True:
            for task, built in made:
                if iteration.is_forked:
                    break
                ends = task.step.is_last and (not endless or self._is_over(1))
                if ends:
                    next(made, None)  # threads and worker processes end their epoch
                    self._source.finish()
                batch = built.batch
                if self._receive is not None:
                    batch = self._receive(batch)
                self._report(built)
                if cursor.samples is None:
                    self._before.append((cursor.epoch, cursor.place, cursor.finished))
                for passed in range(epoch, task.epoch):
                    cursor.end(passed)  # without any batch for this rank
                cursor.hand_out(task.epoch, task.step, goes_on=endless and not ends)
                epoch, place = (task.epoch + 1, 0) if task.step.is_last else (task.epoch, task.step.after)
                if ends and self.epoch_over is not None and whole and self._timed and not endless:
                    self.epoch_over(time.perf_counter() - start)
                self._timed += ends
                del built
                yield batch
                del batch  # its memory serves the next one
                if ends:
                    return
                iteration.check()
                if iteration.is_forked:
                    break
            else:
                break
            # This is a forked child: what was made ahead is the parent's, and so are the threads.
            iteration.is_forked = False
            made = self._made(
                iteration, self._tasks(epoch, place, samples if place else cursor.samples, endless=endless)
            )
        if cursor.epoch == epoch and not self._is_over() and not endless:
            cursor.end(epoch)  # without any batch for this rank
        self._source.finish()
        self._say()

    def _is_over(self, coming: int = 0) -> bool:
        """Whether all epochs are finished, once so many more are."""
        return self._epochs is not None and self._cursor.finished + coming >= self._epochs

    def _tasks(self, epoch: int, place: int, samples: int | None, *, endless: bool) -> Iterator[Task]:
        left = 1 if not endless else None if self._epochs is None else self._epochs - self._cursor.finished
        while left is None or left > 0:
            for step, positions in self._cursor.steps.steps(samples, epoch, place):
                yield Task(epoch, step, positions)
            epoch, place, samples = epoch + 1, 0, self._cursor.samples
            left = None if left is None else left - 1

    def _made(self, iteration: "_Iteration", tasks: Iterator[Task]) -> Generator[tuple[Task, Built], None, None]:
        if self._processes:
            return self._made_by_processes(iteration, tasks)
        return self._made_ahead(iteration, tasks) if self._workers else self._made_here(tasks)

    def _made_here(self, tasks: Iterator[Task]) -> Generator[tuple[Task, Built], None, None]:
        for task in tasks:
            yield task, self._build(task)

    def _made_ahead(self, iteration: "_Iteration", tasks: Iterator[Task]) -> Generator[tuple[Task, Built], None, None]:
        prefetcher = iteration.prefetcher = ThreadPrefetcher(self._workers)
        self.register()
        with closing(prefetcher):
            yield from prefetcher.ahead(self._build, tasks, self._prefetch)

    def _made_by_processes(
        self, iteration: "_Iteration", tasks: Iterator[Task]
    ) -> Generator[tuple[Task, Built], None, None]:
        for other in self._iterations:
            if other is not iteration and other.has_begun:
                other.end("another `for` has taken over the worker processes of this one")
        if self._others is None:
            build = replace(self._build, send=None)  # CUDA does not survive a fork
            self._others = ProcessPrefetcher(self._processes, build, self._prefetch, self._start_method)
        self.register()
        send = self._build.send
        try:
            for task, built in self._others.ahead(tasks):
                yield task, built if send is None else built._replace(batch=send(built.batch))
        except Exception:
            self._dismiss()  # one that has died takes the others along
            raise

    def _stop(self, reason: str) -> None:
        for iteration in [one for one in self._iterations if one.has_begun or self.closed]:
            iteration.end(reason, Closed if self.closed else RuntimeError)

    def _dismiss(self) -> None:
        others, self._others = self._others, None
        if others is not None:
            others.close()

    def _report(self, built: Built) -> None:
        self.padded = built.padded
        self.skipped += len(built.skipped)
        for position, error in built.skipped:
            _log.warning("sample %d is bad, and was left out: %s", position, error)
        self._say()

    def _say(self) -> None:
        for note in self._source.notes():
            warnings.warn(note, RuntimeWarning, stacklevel=4)

    def _check_structure(self) -> None:
        """What can be found out before the first batch: one sample of each source is read where it matters."""
        needed = self._shard.marks or self._collation.ways or isinstance(self._source, MixtureSource)
        if not self._cursor.samples or not needed:
            return
        first = self._source.first_positions if isinstance(self._source, MixtureSource) else np.zeros(1, np.int64)
        try:
            batch = self._source.read(first)
        except Exception:
            if self._build.on_error == "raise":
                raise
            return
        self._collation.check_names(batch)
        if self._shard.marks and isinstance(batch, dict) and VALID in batch:
            raise ValueError(
                f"batches have {VALID!r} already, which is the mask of repeated rows: rename it, or pass "
                'uneven="drop" or "allow"'
            )

    def _chosen(self) -> int:
        width = self._source.sample_bytes
        cheap = width is not None and width * self._shard.batch_size <= _CHEAP
        ahead = self._transfer is not None and self._transfer.ahead
        if self._processes or (cheap and self._build.transform is None and self._collation.does_nothing and not ahead):
            return 0
        return min(thread_count(), _MOST_WORKERS)


class _Iteration:
    """One `for` over a loader: whether it was ended from outside, and the threads that work for it."""

    def __init__(self) -> None:
        self.prefetcher: ThreadPrefetcher | None = None
        self.is_forked = False
        self.has_begun = False
        self._reason: Exception | None = None

    def end(self, reason: str, kind: type[Exception] = RuntimeError) -> None:
        """Have the next batch refused, and end the threads."""
        self._reason = kind(reason)
        prefetcher, self.prefetcher = self.prefetcher, None
        if prefetcher is not None:
            prefetcher.close()

    def check(self) -> None:
        """Raise if it was ended."""
        if self._reason is not None:
            raise self._reason


def _policy(on_error: Any, source: Any) -> str | OnError:
    if on_error not in ("raise", "skip") and not callable(on_error):
        raise ValueError(f"on_error must be 'raise', 'skip' or a function of error and position; got {on_error!r:.80}")
    if on_error != "raise" and isinstance(source, IterableSource):
        raise ValueError("an iterable that raises is at its end, so on_error cannot go on with it: skip samples there")
    return on_error  # type: ignore[no-any-return]
