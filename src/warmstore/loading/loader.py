"""Loader: batches of samples in an order, for one rank of many, that stop and go on exactly.

A batch is arithmetic until somebody makes it: the order says which positions it has, so worker threads can make any of
them ahead, and where a loader stands is two numbers. What is counted is what was handed out, never what was prepared.
"""

import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from warmstore.errors import Closed
from warmstore.loading.batch_builder import VALID, BatchBuilder, Task
from warmstore.loading.collate import Collation
from warmstore.loading.cursor import EpochCursor
from warmstore.loading.processes import ProcessPrefetcher
from warmstore.loading.samplers.counter_rng import MOST_SEED
from warmstore.loading.samplers.samplers import Sampler, Sequential
from warmstore.loading.shard import Shard, find_rank
from warmstore.loading.sources.mixture import MixtureSource
from warmstore.loading.sources.resolve import source_of
from warmstore.loading.threads import ThreadPrefetcher
from warmstore.loading.transfer import transfer_to
from warmstore.loading.validation import integer
from warmstore.owner import Owner
from warmstore.records.threads import thread_count

_CHEAP = 4 << 20
_MOST_WORKERS = 4
_MOST = 2**16


class Loader(Owner):
    """Batches of samples. One `for` is one epoch, or what is left of it; the next `for` is the next epoch.

    A loader stands at a place: leaving a `for` in the middle, in whatever way, leaves it after the last batch that was
    handed out, and the next `for` goes on there. One `for` runs at a time; a newer one ends the one before.

    Args:
        source: a RecordStore or its path, a field of one (`store["image"]`), a NumPy array, a CPU tensor, a .npy file
            (memory-mapped), ArrayRecord files (bytes), a Hugging Face Dataset, a `Mixture`, a list or anything with
            `__len__` and `__getitem__` or `__getitems__`; or a dict of these, all of one length.
        batch_size: samples in a batch of one rank.
        sampler: where which sample stands; `Sequential()` by default.
        epochs: after so many there are no more batches; None for no end.
        fields: of record stores, which to read; all by default.
        transform: gets each batch as NumPy arrays, collated, and returns what takes its place. In a worker thread where
            there are any.
        random: call it as transform(batch, rng), with a NumPy Generator that is a function of the seed, the epoch and
            the batch's first place in the order: the same after a resume, and with any number of workers.
        seed: of these generators; by default the order's, or 0.
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
            environment variables RANK and WORLD_SIZE.
        drop_last: leave out what does not fill a batch on every rank.
        pad: fill the last batch of every rank with samples from the start of the epoch. Each batch, which must be a
            dict, then has "valid": bool [batch_size].

    A batch has the structure of the source: an array or list for one array, a dict for a store or a dict.

    Raises:
        BadSource: no source, or sources of different lengths.
        BadRank: a rank outside the world.
        ValueError: an option that cannot be.
    """

    def __init__(
        self,
        source: Any,
        batch_size: int,
        sampler: Sampler | None = None,
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
        drop_last: bool = False,
        pad: bool = False,
    ) -> None:
        shard = Shard(batch_size, *find_rank(rank, world_size), drop_last, pad)
        self._epochs = None if epochs is None else integer("epochs", epochs, 0, MOST_SEED)
        self._prefetch = integer("prefetch", prefetch, 1, _MOST)
        self._collation = Collation.of(collate)
        self._source = source_of(source, fields, self._collation)
        sampler = sampler if sampler is not None else Sequential()
        if isinstance(self._source, MixtureSource):
            sampler = self._source.mixed.sampler(self._source.lengths, sampler)
        if random and transform is None:
            raise ValueError("random=True is for a transform, and there is none")
        seed = integer("seed", getattr(sampler, "seed", 0) if seed is None else seed, 0, MOST_SEED)
        extra = {"seed": seed} if random else {}
        self._cursor = EpochCursor(sampler, len(self._source), shard, self._source.identity, extra)
        self._transfer = transfer_to(to)
        self._processes = integer("processes", processes, 0, _MOST)
        self._start_method = start_method
        send = None if self._transfer is None else self._transfer.send
        self._receive = None if self._transfer is None else self._transfer.receive
        self._make = BatchBuilder(self._source, self._collation, pad, transform, random, seed, send)
        self._workers = self._chosen() if workers is None else integer("workers", workers, 0, _MOST)
        self._turn: object = None  # of the `for` that runs now
        self._crew: ThreadPrefetcher | None = None
        self._others: ProcessPrefetcher | None = None
        self._begun = 0
        # Called with the seconds of every epoch that was handed out whole, but for the first.
        self.epoch_over: Callable[[float], None] | None = None
        self._check_structure()
        self.closed = False

    @property
    def epoch(self) -> int:
        """The epoch it stands in, from 0 on."""
        return self._cursor.epoch

    @property
    def workers(self) -> int:
        """Worker threads of a `for`."""
        return self._workers

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch."""
        return self._cursor.shard.count(self._cursor.length)

    def __repr__(self) -> str:
        cursor = self._cursor
        return (
            f"Loader({cursor.samples:,} samples, {cursor.sampler!r:.200}, {cursor.shard}, epoch {cursor.epoch:,}, "
            f"place {cursor.place:,} of {cursor.length:,}, {self._workers} workers)"
        )

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left of this epoch."""
        return self._begin(self._rest_of_epoch())

    def stream(self) -> Iterator[Any]:
        """The batches of this epoch and all that follow, without end or until `epochs` are over.

        Raises:
            ValueError: an epoch has no batch for this rank.
        """
        if not len(self):
            raise ValueError(f"an epoch has no batch for this rank, so a stream would never give one: {self!r}")
        return self._begin(self._all_epochs())

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: a small dict of what JSON can say, between any two batches or before the first.

        It counts batches that were handed out. It holds neither rank nor batch size nor workers, so the state of any
        rank is that of all after the same number of steps, and may be loaded with others of these.
        """
        return self._cursor.state(self._cursor.epoch, self._cursor.place)

    def load_state_dict(self, state: dict[str, Any], *, check_identity: bool = True) -> None:
        """Go on where a state was taken; a `for` that runs is ended.

        Args:
            check_identity: refuse the state of another store than this one, though it is of the same length. False for
                copies that were made anew, as by a conversion on each host.

        Raises:
            BadState: no state, one of other samples or another order; nothing has changed.
        """
        self._cursor.load(state, check_identity=check_identity)
        self._stop()

    def close(self) -> None:
        """End a running `for` and its threads. The sources stay open. Closing twice is fine."""
        if self.closed:
            return
        self.closed = True
        self._stop()
        self._dismiss()
        self._source.release()
        self.disown()

    def _after_fork(self) -> None:
        # Threads and processes are the parent's; in the child a new `for` starts its own.
        others, self._turn, self._crew, self._others = self._others, None, None, None
        if others is not None:
            others.forget()

    # Iterations

    def _begin(self, batches: Iterator[Any]) -> Iterator[Any]:
        if self.closed:
            raise Closed("the loader is closed; make another one")
        self._stop()
        return batches

    def _stop(self) -> None:
        self._turn = None
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.close()

    def _dismiss(self) -> None:
        others, self._others = self._others, None
        if others is not None:
            others.close()

    def _rest_of_epoch(self) -> Iterator[Any]:
        cursor = self._cursor
        if self._epochs is not None and cursor.epoch >= self._epochs:
            return
        epoch, whole, start = cursor.epoch, not cursor.place, time.perf_counter()
        yield from self._batches(((epoch, step, at) for step, at in cursor.steps(epoch, cursor.place)))
        cursor.epoch, cursor.place = epoch + 1, 0
        if self.epoch_over is not None and self._begun and whole:
            self.epoch_over(time.perf_counter() - start)
        self._begun += 1

    def _all_epochs(self) -> Iterator[Any]:
        yield from self._batches(self._tasks())
        self._cursor.epoch, self._cursor.place = self._epochs or 0, 0

    def _tasks(self) -> Iterator[Task]:
        epoch, place = self._cursor.epoch, self._cursor.place
        while self._epochs is None or epoch < self._epochs:
            for step, positions in self._cursor.steps(epoch, place):
                yield epoch, step, positions
            epoch, place = epoch + 1, 0

    def _batches(self, tasks: Iterator[Task]) -> Iterator[Any]:
        if self._processes:
            return self._made_by_processes(tasks)
        return self._made_ahead(tasks) if self._workers else self._made_here(tasks)

    def _made_here(self, tasks: Iterator[Task]) -> Iterator[Any]:
        make = self._make
        return self._handed_out(((task, make(task)) for task in tasks), self._receive)

    def _made_ahead(self, tasks: Iterator[Task]) -> Iterator[Any]:
        crew = self._crew = ThreadPrefetcher(self._workers)
        self.own()
        try:
            yield from self._handed_out(crew.ahead(self._make, tasks, self._prefetch), self._receive)
        finally:
            crew.close()

    def _made_by_processes(self, tasks: Iterator[Task]) -> Iterator[Any]:
        if self._others is None:
            make = replace(self._make, send=None)  # CUDA does not survive a fork
            self._others = ProcessPrefetcher(self._processes, make, self._prefetch, self._start_method)
        self.own()
        send, receive = self._make.send, self._receive
        deliver = None if send is None or receive is None else lambda batch: receive(send(batch))
        try:
            yield from self._handed_out(self._others.ahead(tasks), deliver)
        except Exception:
            self._dismiss()  # one that has died takes the others along
            raise

    def _handed_out(
        self, made: Generator[tuple[Task, Any], None, None], receive: Callable[[Any], Any] | None
    ) -> Iterator[Any]:
        turn = self._turn = object()
        cursor = self._cursor
        with closing(made):
            for task, batch in made:
                if receive is not None:
                    batch = receive(batch)
                self._say()
                cursor.epoch, cursor.place = task[0], task[1].after
                yield batch
                del batch  # its memory serves the next one
                if self._turn is not turn:
                    self._ended()
        self._source.finish()
        self._say()

    def _say(self) -> None:
        for note in self._source.notes():
            warnings.warn(note, RuntimeWarning, stacklevel=4)

    def _ended(self) -> None:
        if self.closed:
            raise Closed("the loader was closed while this `for` was running")
        raise RuntimeError("another `for` over the loader, or load_state_dict, has ended this one; so has a fork")

    def _check_structure(self) -> None:
        """What can be found out before the first batch: one sample of each source is read where it matters."""
        shard = self._cursor.shard
        if not self._cursor.samples or not (
            shard.pad or self._collation.ways or isinstance(self._source, MixtureSource)
        ):
            return
        first = [0]
        if isinstance(self._source, MixtureSource):
            first = [0, *np.cumsum(self._source.lengths)[:-1].tolist()]
        batch = self._source.read(np.array(first))
        self._collation.check_names(batch)
        if shard.pad and (not isinstance(batch, dict) or VALID in batch):
            raise ValueError(
                f"pad=True adds {VALID!r} to batches: they must be dicts without it, as of {{'x': source}}"
            )

    def _chosen(self) -> int:
        width = self._source.sample_bytes
        cheap = width is not None and width * self._cursor.shard.batch_size <= _CHEAP
        ahead = self._transfer is not None and self._transfer.ahead
        if self._processes or (cheap and self._make.transform is None and self._collation.does_nothing and not ahead):
            return 0
        return min(thread_count(), _MOST_WORKERS)
