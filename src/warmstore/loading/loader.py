"""Loader: batches of samples in the order of a sampler, for one rank of many, with exact resume.

The positions of a batch are a function of the sampler, the epoch and the batch's place in the epoch. So workers can
build batches ahead in any order, and a loader's state is an epoch and a place. It counts batches handed out, not built.
An epoch ends when its last batch is handed out: after exactly `len(loader)` batches, less those that are left out
because all of their samples are bad.
"""

import itertools
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Never

from warmstore.display.html import html_method
from warmstore.errors import Closed, SampleSkipped
from warmstore.loading.batch_sizes import BatchSize
from warmstore.loading.collate import Collation
from warmstore.loading.epoch_times import EpochListener, IterationClock, LoaderTimes
from warmstore.loading.loader_options import (
    MOST_COUNT,
    check_first_samples,
    check_on_error,
    check_options,
    order_of,
    threads_of,
)
from warmstore.loading.loader_views import loader_html, loader_text
from warmstore.loading.prefetch.batch_builder import BatchBuilder, OnError, Task
from warmstore.loading.prefetch.batch_producer import Batches, BatchProducer, LoaderIteration
from warmstore.loading.prefetch.device_transfer import transfer_to
from warmstore.loading.samplers.counter_rng import MOST_SEED
from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.skipped_samples import SkippedSamples
from warmstore.loading.sources.iterable import IterableSource
from warmstore.loading.sources.resolve import source_of
from warmstore.loading.steps.cursor import MOST_EPOCH, EpochCursor
from warmstore.loading.steps.epoch_steps import EpochSteps
from warmstore.loading.steps.shard import Shard, Uneven, find_rank
from warmstore.loading.steps.step_arguments import batch_size_of, shard_of, steps_of
from warmstore.loading.steps.stream_steps import StreamSteps
from warmstore.loading.trainers.drivers import buffered_by_lightning
from warmstore.loading.trainers.trainer_faces import EpochSampler, LoaderDataset, sendable
from warmstore.loading.validation import integer, refuse
from warmstore.records.sample_batch import SampleBatch
from warmstore.storage.lifecycle import Closeable


class Loader(Closeable):
    """Batches of samples. One `for` is one epoch.

    An epoch is over when its last batch was handed out. Every `iter()` starts an epoch: after a break the next epoch,
    or the same epoch again if all epochs are equal (`Sequential`). Only a loaded state and `resume_partial` resume an
    epoch in the middle.

    Args:
        source: a RecordStore or its path, a field of one (`store["image"]`), a NumPy or JAX array, a CPU tensor, a .npy
            file (memory-mapped), ArrayRecord files (bytes), a Hugging Face Dataset, a DataFrame or Arrow table, a
            `Mixture`, a `Subset`, a list or anything with `__len__` and `__getitem__` or `__getitems__`; an iterable
            without positions; or a dict or tuple of these, all of one length.
        batch_size: samples in a batch of one rank; or a rule for batches of varying size, such as a `TokenBudget`.
        sampler: the order of samples: a `Sampler`, "shuffle" or "sequential"; `Sequential()` by default.
        epochs: the number of epochs; None for no end.
        fields: the fields to read of record stores and tables; all by default.
        transform: a function of each collated batch of NumPy arrays, which returns the batch to hand out. Workers call
            it.
        random: call transform(batch, rng). The NumPy Generator is a function of the seed, the epoch and the batch's
            first place in the order: the same after a resume, and with any number of workers.
        seed: the seed of these generators; by default the sampler's, or 0.
        collate: for values that vary in length: "list", "pad" or a `Pad`, "packed"; or a dict of these by field.
        to: "numpy", "torch", "jax", a torch device or its name such as "cuda:0", or a JAX device or sharding.
        workers: threads that read, transform, collate and convert ahead; 0 uses the caller's thread. None: 0 where a
            batch is a small copy from memory, else up to 4.
        prefetch: the most batches that are built ahead.
        processes: worker processes, through torch's DataLoader, instead of threads: for sources and transforms that are
            Python code. Unless processes are forked, source and transform must be picklable. The processes live until
            the loader is closed.
        start_method: how processes start: "fork", "spawn", "forkserver", or None for Python's default.
        rank: of this process; None asks torch.distributed, if it is initialised, or the environment, when an epoch
            begins.
        world_size: the number of ranks; None as for `rank`.
        uneven: what to do at the end of an epoch where ranks would get unequal numbers of steps; see `Shard`. "pad"
            (all ranks take equally many steps, filled up with repeated samples), "drop", "allow", or "full" (every
            batch has batch_size rows). With "full", and with "pad" on several ranks, batches that are dicts have
            "valid": bool [rows], False for repeated rows. `padded` counts these rows for batches of any structure.
        resume_partial: after a break, resume the epoch instead of starting the next one.
        on_error: what to do with a sample that cannot be read: "raise"; "skip", which leaves the sample out, counts it
            in `skipped`, logs it and warns of the first; or a function of the error and the position, which returns a
            replacement, or None to skip the sample. A batch without samples is left out too, but raises the error on
            several ranks, which need equal numbers of steps, and where all batches of an epoch are empty.
        copy: batches own their memory. False returns views of the source where that is cheaper; do not write to them.

    A batch has the structure of the source: an array or list for one array, a dict for a store or a dict.

    Raises:
        BadSource: no source, or sources of different lengths.
        BadRank: a rank outside the world.
        ValueError, TypeError: an invalid option.
    """

    _has_pending = False
    num_workers = 0  # trainers read these when they build torch's DataLoader of `dataset` and `batch_sampler`
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
        prefetch = integer("prefetch", prefetch, 1, MOST_COUNT)
        self._collation = Collation.of(collate)
        self._source = source_of(source, fields, self._collation, copy=copy)
        self._resume_partial = resume_partial
        self._order = order = order_of(sampler, self._source)
        check_options(
            transform, random=random, seed=seed, workers=workers, processes=processes, start_method=start_method,
            resume_partial=resume_partial, copy=copy,
        )  # fmt: skip
        seed = integer("seed", getattr(order, "seed", 0) if seed is None else seed, 0, MOST_SEED)
        processes = integer("processes", processes, 0, MOST_COUNT)
        self._transfer = transfer_to(to)
        send = None if self._transfer is None else self._transfer.send
        self._shard = shard_of(self._size, rank, world_size, uneven)
        self._build = BatchBuilder(
            self._source, self._collation, self._shard.marks, uneven == "full", transform, random, seed,
            check_on_error(on_error, self._source), self._shard.world_size == 1, send,
        )  # fmt: skip
        self._cursor = EpochCursor(
            self._steps(self._shard),
            None if isinstance(self._source, IterableSource) else len(self._source),
            partial(getattr, self._source, "identity"),
            {"seed": seed} if random else {},
            resume_partial=resume_partial,
        )
        ahead = self._transfer is not None and self._transfer.ahead
        threads = threads_of(workers, self._build, self._shard.batch_size, processes=processes, transfers_ahead=ahead)
        self._producer = BatchProducer(threads, processes, prefetch, start_method)
        self._iterations: weakref.WeakSet[LoaderIteration] = weakref.WeakSet()
        self._ended_epochs, self._times = 0, LoaderTimes()
        # Epoch, place and finished epochs before each of the last batches of an iterable.
        self._last_places: deque[tuple[int, int, int]] = deque(maxlen=4)
        self.padded = 0
        """Repeated rows at the end of the last batch."""
        self._skipped = SkippedSamples()
        self._observer: EpochListener | None = None
        if self._cursor.samples:
            check_first_samples(self._build)
        self.closed = False

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0 on. It increases when the last batch of an epoch is handed out."""
        return self._cursor.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that begins next. A running epoch, and a state loaded from that epoch, do not change.

        Raises:
            ValueError: not an integer from 0 to 2**64 - 1.
        """
        self._cursor.set_epoch(integer("epoch", epoch, 0, MOST_EPOCH))

    @property
    def skipped(self) -> int:
        """Bad samples that were left out so far."""
        return self._skipped.count

    @property
    def workers(self) -> int:
        """Worker threads of a `for`."""
        return self._producer.threads

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch; with batches of varying size, in the next epoch.

        Raises:
            TypeError: the source is an iterable without a length.
        """
        self._find_shard()
        return self._cursor.count()

    def __repr__(self) -> str:
        return loader_text(self)

    _repr_html_ = html_method(loader_html)

    def __iter__(self) -> Iterator[Any]:
        """The batches of an epoch, which begins with the first `next`."""
        return self._iterate(endless=False)

    def stream(self) -> Iterator[Any]:
        """The batches of all following epochs, without end or until `epochs` are finished.

        Raises:
            ValueError: an epoch has no batch for this rank.
        """
        if not isinstance(self._source, IterableSource) and not len(self):
            raise ValueError(f"an epoch has no batch for this rank, so a stream would never give one: {self!r}")
        return self._iterate(endless=True)

    def state_dict(self) -> dict[str, Any]:
        """The position after the batches handed out so far: a small JSON-serialisable dict.

        The state has no rank, batch size or workers: after the same number of steps it is equal on all ranks, and a
        loader with other ranks, batch sizes or workers can load it. It identifies the data: see `load_state_dict`.
        """
        buffered = buffered_by_lightning() if self._last_places else 0
        return self._cursor.state_at(*self._last_places[-buffered]) if buffered else self._cursor.state()

    def load_state_dict(self, state: dict[str, Any], strict: bool = True, *, check_identity: bool = True) -> None:
        """Resume where a state was taken. A running `for` is ended.

        A state is refused if the samples or their positions differ: after deletes, a rebalance, edits of their number.
        If a record store has only grown, the epoch is finished over its first samples, and the next one is over all.

        Args:
            strict: False accepts a state of other data, too, and starts its epoch again.
            check_identity: False accepts the state of another store of the same length, such as one that another host
                converted from the same files.

        Raises:
            BadState: not a state, or a state of other samples or another order; the loader is unchanged.
        """
        self._cursor.load(state, strict=strict, check_identity=check_identity)
        self._last_places.clear()
        self._stop("load_state_dict has ended this `for`")

    def close(self) -> None:
        """End running iterations, threads and processes. The sources stay open. Closing twice is fine."""
        if self.closed:
            return
        self.closed = True
        self._stop("the loader was closed while this `for` was running")
        self._producer.close()
        self._source.release()
        if self._observer is not None:
            self._observer.close()
        self._unregister()

    def __getstate__(self) -> dict[str, Any]:
        """A copy is at the same position, without the iterations, threads and processes of this loader."""
        own = {key: copy(getattr(self, key)) for key in ("_cursor", "_last_places", "_producer", "_skipped", "_times")}
        return {**vars(self), **own, "_iterations": None, "_observer": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._iterations = weakref.WeakSet()

    def _after_fork(self) -> None:
        # The parent keeps threads and processes. In the child a running `for` starts new ones.
        self._producer.after_fork()
        for iteration in self._iterations:
            iteration.is_forked = True

    # What trainers look for

    @property
    def dataset(self) -> LoaderDataset:
        """The samples, map-style. Torch's DataLoader of it, `batch_sampler` and `collate_fn` has the same batches.

        It raises the error of a batch of which every sample is bad, and cannot leave it out.
        """
        return LoaderDataset(replace(self._build, skips_batches=False))

    @property
    def sampler(self) -> EpochSampler:
        """The order of this rank's samples; its `set_epoch` is this loader's."""
        self._find_shard()
        return EpochSampler(self._order, self._cursor, None if self._resume_partial else self.set_epoch)

    @property
    def batch_sampler(self) -> Any:
        """This rank's batches of positions: a new `BatchSampler` at this loader's epoch.

        Raises:
            NotInstalled: torch is not installed.
            AttributeError: an iterable source has no positions.
        """
        from warmstore.loading.trainers.batch_sampler import BatchSampler  # needs torch

        if isinstance(self._source, IterableSource):
            raise AttributeError("an iterable source has no positions, so it has no batch sampler")
        sampler = BatchSampler(
            self._source, self._size, self._order, rank=self._rank, world_size=self._world_size, uneven=self._uneven
        )
        sampler.set_epoch(self._cursor.next_epoch)
        return sampler

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of one rank; None where batches vary in size."""
        return None if isinstance(self._size, BatchSize) else self._size

    @property
    def drop_last(self) -> bool:
        """Whether the rest of an epoch is left out."""
        return self._uneven == "drop"

    def collate_fn(self, samples: Any) -> Any:
        """The result of `dataset.__getitems__` as a batch of this loader."""
        built = samples.batch if isinstance(samples, SampleBatch) else self._build.finish(samples)
        return sendable(built if self._transfer is None else self._transfer.receive(built))

    # Iterations

    def _find_shard(self) -> None:
        """Look up rank and world size again: a trainer may have started torch.distributed since."""
        if self._rank is None and find_rank() != (self._shard.rank, self._shard.world_size):
            shard = shard_of(self._size, None, None, self._uneven)
            self._producer.close()
            self._build = replace(self._build, marks=shard.marks, skips_batches=shard.world_size == 1)
            self._cursor.steps = self._steps(shard)
            self._shard = shard  # last, so that an interrupted call is repeated

    def _steps(self, shard: Shard) -> EpochSteps:
        if isinstance(self._source, IterableSource):
            if isinstance(self._size, BatchSize):
                raise ValueError("batches of varying size need to know all lengths, and an iterable has none")
            return StreamSteps(self._source, shard)
        return steps_of(self._size, self._order, shard, len(self._source))

    def _iterate(self, *, endless: bool) -> Iterator[Any]:
        if self.closed:
            raise Closed("the loader is closed; make another one")
        iteration = LoaderIteration()
        self._iterations.add(iteration)
        return iteration.run(self._hand_out(iteration, endless=endless))

    def _hand_out(self, iteration: LoaderIteration, *, endless: bool) -> Iterator[Any]:
        """Begin an epoch and yield its batches; with `endless`, those of all following epochs too."""
        cursor = self._cursor
        self._find_shard()
        if self._is_over():
            return
        epoch, place, samples = cursor.begin()
        if self._is_over():  # the resumed epoch had no batches left
            return
        whole, clock = not place, IterationClock(self._times)
        is_empty = whole  # whether all batches of the epoch so far were left out
        batches = self._batches(iteration, self._tasks(epoch, place, samples, endless=endless))
        while True:
            for task, built in batches:
                if iteration.is_forked:
                    break
                iteration.check()  # another thread may have loaded a state meanwhile
                ends = task.step.is_last and (not endless or self._is_over(1))
                if ends:
                    next(batches, None)  # ends the epoch in threads and worker processes
                    self._source.finish()
                batch = built.batch
                if self._transfer is not None and not built.is_empty:
                    batch = self._transfer.receive(batch)
                self.padded = built.padded
                self._skipped.add(built.skipped)
                self._warn()
                is_empty &= built.is_empty
                if task.step.is_last:
                    if is_empty:
                        raise SampleSkipped(
                            f"every sample of epoch {task.epoch:,} was skipped; the last one: {built.skipped[-1][1]}"
                        )
                    is_empty = True  # of the next epoch
                if cursor.samples is None:
                    self._last_places.append((cursor.epoch, cursor.place, cursor.finished))
                if ends and self._observer is not None:
                    is_steady = whole and self._ended_epochs > 0 and not endless
                    self._observer(clock.taken(self._producer.processes, is_steady=is_steady))
                for empty_epoch in range(epoch, task.epoch):
                    cursor.end(empty_epoch)  # without any batch for this rank
                epoch, place = (task.epoch + 1, 0) if task.step.is_last else (task.epoch, task.step.after)
                self._ended_epochs += ends
                is_empty_batch = built.is_empty
                del built
                clock.leave()
                cursor.hand_out(task.epoch, task.step, is_stream=endless and not ends)  # and then nothing but `yield`
                if not is_empty_batch:
                    yield batch
                clock.enter()
                del batch  # the next batch reuses its memory
                if ends:
                    return
                iteration.check()
                if iteration.is_forked:
                    break
            else:
                break
            # In a forked child, the parent keeps prefetched batches and threads.
            iteration.is_forked = False
            tasks = self._tasks(epoch, place, samples if place else cursor.samples, endless=endless)
            batches = self._batches(iteration, tasks)
        if cursor.epoch == epoch and not self._is_over() and not endless:
            cursor.end(epoch)  # without any batch for this rank
        self._source.finish()
        self._warn()

    def _is_over(self, more: int = 0) -> bool:
        """Whether all epochs are finished after `more` epochs."""
        return self._epochs is not None and self._cursor.finished + more >= self._epochs

    def _tasks(self, epoch: int, place: int, samples: int | None, *, endless: bool) -> Iterator[Task]:
        count = 1 if not endless else None if self._epochs is None else max(self._epochs - self._cursor.finished, 0)
        for number in itertools.islice(itertools.count(epoch), count):
            began, step = time.monotonic_ns(), None
            for step, positions in self._cursor.steps.steps(samples, number, place):
                yield Task(number, step, positions, began)
            if count is None and samples is None and step is None and not place:
                raise ValueError(f"epoch {number:,} has no batch for this rank, so the stream may never end: {self!r}")
            place, samples = 0, self._cursor.samples

    def _batches(self, iteration: LoaderIteration, tasks: Iterator[Task]) -> Batches:
        iteration.batches = self._producer.batches(self._build, tasks, iteration, self._iterations, self._register)
        return iteration.batches

    def _stop(self, reason: str) -> None:
        for iteration in list(self._iterations):
            if iteration.has_begun or self.closed:
                iteration.end(reason, Closed if self.closed else RuntimeError)

    def _warn(self) -> None:
        for note in self._source.notes():
            warnings.warn(note, RuntimeWarning, stacklevel=4)
