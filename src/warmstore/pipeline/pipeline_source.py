"""A pipeline as a source of batches: read each sample from its tier, and run the remaining steps.

The process that computes a missing sample adds it to its store. Every process opens the stores on its own; the files
are shared. Threads make samples one after the other where some are cached, and at once where none are.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, final

import numpy as np

from warmstore.errors import BadSource, SampleSkipped, UnsupportedType
from warmstore.loading.collate import stack
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.source import PartialBatch, Source, cause_of, filled
from warmstore.loading.values.ownership import owned
from warmstore.pipeline.cached_samples import CachedSamples
from warmstore.pipeline.chain import Chain
from warmstore.pipeline.encoders.registry import REGISTRY
from warmstore.pipeline.metering.epoch_meter import EpochMeter, MeterReading
from warmstore.pipeline.metering.part_recorder import PartRecorder
from warmstore.pipeline.native_threads import native_threads, native_threads_hold
from warmstore.pipeline.stacked_batch import Reused, StackedBatch, Uneven, repeated
from warmstore.pipeline.steps import Step, singles
from warmstore.pipeline.tiers.sample_store import MISSING, SampleStore
from warmstore.pipeline.tiers.sample_stores import CacheLayout, SampleStores
from warmstore.pipeline.tiers.tier_folders import MemoryTier
from warmstore.pipeline.tiers.unflattening import Marked
from warmstore.pipeline.trials.outside_memory import ReachableObjects
from warmstore.pipeline.trials.trial import LargeParts, Trial, WrittenOutside, reachable
from warmstore.pipeline.trials.write_watch import WriteWatch
from warmstore.storage.lease import UsageLease
from warmstore.tree.columns import map_columns


@final
class PipelineSource(Source):
    """The samples of a pipeline.

    Args:
        chain: the source and the steps.
        seed: of the random steps.
        identity: tells these samples from others of the same number.
        kept: where samples are cached, or None.
        held: tiers and leases that `release` closes; copies in other processes hold none.
    """

    def __init__(
        self,
        chain: Chain,
        seed: int = 0,
        identity: Any = None,
        kept: CacheLayout | None = None,
        held: Sequence[MemoryTier | UsageLease] = (),
    ) -> None:
        self._chain = chain
        self._seed = seed
        self.identity = {"source": identity, "seed": seed} if chain.cacheable < len(chain.steps) else identity
        self.cached = CachedSamples(chain, kept)
        self.held = held
        self.filled_workers: int | None = None  # worker processes of an epoch without missing samples; None for all
        self._meter = EpochMeter()
        self._parts: PartRecorder | None = None
        self._reports: list[MeterReading] = []  # of worker processes
        self._alike = True  # all samples so far
        self._reuses = False  # whether samples of a batch had an object or memory in common
        self._is_checked = False  # whether a batch of the batched steps equals its samples one by one
        places = () if kept is None else kept.places
        # Batched steps after all cached results run on whole batches.
        self._first_batched = max(singles(chain.steps), *(place.step for place in places), 0)
        self._large_parts: dict[int, LargeParts] = {}  # by step

    def __len__(self) -> int:
        layout = self.cached.layout  # a list that has grown has samples without a placement
        return len(self._chain) if layout is None else min(len(self._chain), len(layout.placement))

    @property
    def skipping(self) -> list[str]:
        """The names of the steps that skip samples on which they fail."""
        return self._chain.skipping

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the pipeline, without filters."""
        return self._chain.steps

    @property
    def has_random_steps(self) -> bool:
        """Whether samples differ from epoch to epoch."""
        return self._chain.cacheable < len(self._chain.steps)

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "held": (), "_meter": EpochMeter(), "_reports": []}
        return {"encoders": REGISTRY.registered(), "state": state}

    def __setstate__(self, content: dict[str, Any]) -> None:
        REGISTRY.take_in(content["encoders"])
        vars(self).update(content["state"])

    def read(self, positions: Int64) -> Any:
        return self.read_in(0, positions)

    def read_in(self, epoch: int, positions: Int64) -> Any:
        """The samples in an epoch.

        Raises:
            SampleSkipped: a step skips a sample.
        """
        return self._read(epoch, positions, None)

    def read_partly(self, epoch: int, positions: Int64, *, fills: bool) -> PartialBatch:
        errors: dict[int, Exception] = {}
        batch = self._read(epoch, positions, errors)
        if not errors:
            return PartialBatch(batch, None, errors)
        kept = _others(errors, len(positions))
        if fills and len(kept):
            batch = repeated(batch, len(positions))
            kept = filled(kept, len(positions))
        return PartialBatch(batch, kept, errors)

    def begin_pass(self, began: int) -> None:
        with self.cached.lock:
            self.cached.begin_pass(began)

    def _read(self, epoch: int, positions: Int64, errors: dict[int, Exception] | None) -> Any:
        with self.cached.lock:
            self._meter.begin(len(positions))
            try:
                self.cached.look_again()
                with native_threads(self._chain.settings.threads), self._chain.identities.calling():
                    while True:
                        try:
                            return self._batch(epoch, positions, errors)
                        except Uneven:
                            self._alike = False
                        except Reused:
                            self._reuses = True
            finally:
                self._meter.end()
                if self._parts is not None:
                    self._parts.count(len(positions), self._meter.batch_computed)

    def _batch(
        self, epoch: int, positions: Int64, errors: dict[int, Exception] | None, *, one_by_one: bool = False
    ) -> Any:
        """Make samples in order: one that writes to outside memory may change those after it.

        Args:
            errors: becomes those of skipped samples, by index into `positions`; None raises them.
            one_by_one: run batched steps on each sample alone, too.

        Returns:
            The samples that are not skipped, as a batch; None if there are none.
        """
        if errors is not None:
            errors.clear()  # of an earlier attempt
        last = len(self._chain.steps) if one_by_one or not self._alike else self._first_batched
        batch = StackedBatch(len(positions), alike=self._alike, finds_reuse=not self._reuses)
        stores = self.cached.opened() if self.cached.is_current() else None
        missing = np.arange(len(positions)) if stores is None else np.flatnonzero(stores.rows[positions] < 0)
        if stores is not None and not len(missing):
            self._meter.lap("batches")
            whole = stores.read_stacked(positions, last, self._meter)
            if whole is not None:
                if last == len(self._chain.steps):
                    return whole
                return self._run_batched(epoch, positions, np.arange(len(positions)), whole, errors)
        # Uncached samples need no identity.
        with self._chain.identities.states.making([] if self.cached.layout is None else positions[missing]):
            self.cached.see_changes()
            self._make(epoch, positions, missing, stores, batch, last, errors)
        kept = _others(errors, len(positions))
        if errors and len(kept):
            batch.keep(kept)
        made = batch.stacked() if len(kept) else None
        if last < len(self._chain.steps) and len(kept):
            if batch.is_as_one_by_one(made):
                return self._run_batched(epoch, positions, kept, made, errors)
            made = self._run_rows(epoch, positions, kept, batch.row, errors)
        return _owned(made)  # a step may return an object of the source

    def _run_batched(
        self, epoch: int, positions: Int64, kept: Int64, columns: Any, errors: dict[int, Exception] | None
    ) -> Any:
        """Run the batched steps on a batch; on the first one of several samples, compare with the samples one by one.

        Args:
            kept: the indices of the rows of `columns` among the positions. errors: see `_batch`.

        Raises:
            SchemaMismatch: a step gives a whole batch other rows than its samples alone.
        """
        indices = positions[kept]
        run = partial(self._chain.run_batched, indices=indices, epoch=epoch, seed=self._seed)
        check = not self._is_checked and len(indices) > 1
        one_by_one = map_columns(copy, columns) if check else None
        self._meter.lap("batches")
        try:
            made = run(columns, first=self._first_batched)
            self._meter.lap("steps")
        except Exception as error:
            # This names the sample that raises, unless its step skips or substitutes it.
            made = self._batch(epoch, positions, errors, one_by_one=True)
            if not isinstance(error, MemoryError) and self._chain.tolerates_errors(self._first_batched):
                return made
            error.add_note("warmstore: the samples of this batch raise no error one by one")
            raise
        if check:
            self._chain.check_batched(one_by_one, made, indices, epoch, self._seed, self._first_batched)
            self._is_checked = True
        return made

    def _run_rows(
        self,
        epoch: int,
        positions: Int64,
        kept: Int64,
        row: Callable[[int], Any],
        errors: dict[int, Exception] | None,
    ) -> Any:
        """Run the batched steps on the samples of a batch one by one; see `_run_batched`."""
        made = []
        for at, place in enumerate(kept.tolist()):
            index = int(positions[place])
            try:
                made.append(self._chain.run(row(at), index, epoch=epoch, seed=self._seed, first=self._first_batched))
            except SampleSkipped as error:
                _note(errors, place, error)
        return stack(made) if made else None

    def _make(
        self,
        epoch: int,
        positions: Int64,
        missing: Int64,
        stores: SampleStores | None,
        batch: StackedBatch,
        last: int,
        errors: dict[int, Exception] | None,
    ) -> None:
        """Make the samples of a batch from cached values or raw ones, as they are after `last` steps."""
        self._meter.lap("batches")
        self._meter.compute(len(missing))
        source, many = self._chain.source, self._chain.reads_many
        together = missing.tolist() if many else []
        raws, raw_index = (
            self._chain.raw_values(positions[together].tolist()),
            {place: at for at, place in enumerate(together)},
        )
        self._meter.lap("source reads")
        beside = None if stores is None else reachable(raws)
        size = len(positions) if stores is None else stores.at_once()
        for part in np.split(np.arange(len(positions)), range(size, len(positions), size)):
            found = {} if stores is None else stores.read(positions[part], self._meter)
            for at, place in enumerate(part.tolist()):
                index = int(positions[place])
                try:
                    made = [self._go_on(epoch, index, *found.pop(at), last) if at in found else MISSING]
                    if made[0] is MISSING:
                        if place in raw_index:
                            raw = [raws[raw_index[place]]]
                        else:
                            raw = self._chain.raw_values([index]) if many else [source[index]]
                        self._meter.lap("source reads")
                        made = [self._compute(epoch, index, raw, beside, last)]
                        del raw  # it may refer to the sample
                except SampleSkipped as error:
                    _note(errors, place, error)
                else:
                    self._meter.lap("steps")
                    batch.put(place, (_owned(made) if self._reuses else made)[0])

    def processes(self, most: int) -> int:
        few = self.filled_workers
        with self.cached.lock:
            wanted = most if few is None or self.cached.misses_samples() else min(few, most)
            if wanted:
                self.cached.close()  # every worker opens its own
            return wanted

    def finish(self) -> None:
        with self.cached.lock:
            self.cached.flush()

    def report(self) -> MeterReading:
        with self.cached.lock:
            reading = self._meter.take()
            return reading if self._parts is None else replace(reading, recorded=self._parts.take())

    def record_parts(self, parts: PartRecorder) -> None:
        """Record what is read before an epoch ends."""
        self._parts = self.cached.at_end = parts

    def take_report(self, report: MeterReading) -> None:
        self._reports.append(report)

    def readings(self) -> list[MeterReading]:
        """What all processes have measured since the last call."""
        reports, self._reports = self._reports, []
        return [*reports, self.report()]

    def notes(self) -> list[str]:
        with self.cached.lock:
            return self.cached.notes()

    def release(self) -> None:
        with self.cached.lock:
            self.cached.close()
        held, self.held = self.held, ()
        for resource in held:
            resource.release() if isinstance(resource, UsageLease) else resource.close()

    def trials(self, indices: Int64, *, stored_only: bool) -> Iterator[Trial | SampleSkipped]:
        """Compute samples, store those that their store lacks, and undo their writes to outside memory. For one thread.

        Args:
            stored_only: leave out the samples that no store takes.

        Yields:
            The trial of each sample after the store's step, or after all steps; or the error that skips the sample.
        """
        is_current = self.cached.layout is not None and self.cached.opened() is not None and self.cached.is_current()
        identities = self._chain.identities
        with native_threads(self._chain.settings.threads), identities.calling(), identities.states.making(indices):
            self.cached.see_changes()
            raws = self._chain.raw_values(indices.tolist()) if self._chain.reads_many else None
            beside = None if raws is None else reachable(raws)
            for at, index in enumerate(indices.tolist()):
                store = self.cached.store_of(index) if is_current else None
                is_stored = store is not None and store.wants(index)
                if stored_only and not is_stored:
                    continue
                large = LargeParts() if store is None else self._large_parts_of(store)
                raw = self._chain.raw_values([index]) if raws is None else [raws[at]]
                trial = Trial(self._chain, index, raw, large, beside, traceless=True)
                try:
                    if store is not None and is_stored:
                        self._keep(trial, index, store, lambda value: value)
                    else:
                        trial.run(len(self._chain.steps))
                    yield trial
                except SampleSkipped as error:
                    yield error
                finally:
                    trial.watch.restore()  # training starts as if without this

    def fill(self, positions: Int64) -> int:
        """Compute those of some samples that are missing, while their store takes any; return how many were.

        Skipped ones do not count. The last ones may not fit into the budget: their size is unknown before.
        """
        with self.cached.lock:
            stores = self.cached.opened()
            self.cached.look_again()
            missing = positions[stores.rows[positions] < 0]
            if not self.cached.is_current():
                return 0
            # The epoch that reads a skipped sample tries again, and counts it.
            return sum(not isinstance(trial, SampleSkipped) for trial in self.trials(missing, stored_only=True))

    def _go_on(self, epoch: int, index: int, store: SampleStore, value: Any, last: int) -> Any:
        """Run the steps up to `last` on a cached value; `MISSING` if the sample must be recomputed."""
        watch = None
        if isinstance(value, Marked):
            if store.place.step < last:
                watch = WriteWatch([])
                watch.add(0, value.parts)
            value = value.value
        if value is not MISSING:
            value = self._chain.run(value, index, epoch=epoch, seed=self._seed, first=store.place.step, last=last)
        if value is MISSING or (watch is not None and watch.written()):
            store.invalidate(index)  # the write must reach the outside memory, too
            return MISSING
        return value

    def _compute(self, epoch: int, index: int, raw: list[Any], beside: ReachableObjects | None, last: int) -> Any:
        """Compute a sample after `last` steps from its raw value, and add it to its store if it has one.

        Args:
            raw, beside: see `Trial`.
        """
        store = self.cached.store_to_fill(index)
        run = partial(self._chain.run, index=index, epoch=epoch, seed=self._seed, last=last)
        if store is None or not store.wants(index):
            return run(raw[0])
        trial = Trial(self._chain, index, raw, self._large_parts_of(store), beside)
        return self._keep(trial, index, store, partial(run, first=store.place.step))

    def _large_parts_of(self, store: SampleStore) -> LargeParts:
        return self._large_parts.setdefault(store.place.step, LargeParts())

    def _keep(self, trial: Trial, index: int, store: SampleStore, go_on: Callable[[Any], Any]) -> Any:
        """Store a sample after the store's step, unless it must not be cached; return `go_on` of it."""
        trial.run(store.place.step)
        if trial.substituted or not native_threads_hold():
            return go_on(trial.value)
        if not trial.watch:
            store.add(index, trial.value)
            return go_on(trial.value)
        try:
            store.add_taken(index, *trial.take())
        except UnsupportedType as error:
            store.leave_out(index, error)
            return go_on(trial.value)
        try:
            value = go_on(trial.value)
            other = trial.settle()
        except WrittenOutside as error:
            self.cached.refuse(error)
            return value
        except BaseException:
            store.take_back(index)  # nobody has looked whether the steps have written to outside memory
            raise
        if other is not None:
            store.replace(index, *other)
        return value


def _owned(batch: Any) -> Any:
    """A batch, or a list of one value, with copies of what others refer to, as far as it can be copied."""
    try:
        return owned(batch)
    except BadSource:
        return batch  # locks and sockets cannot be copied


def _note(errors: dict[int, Exception] | None, place: int, error: SampleSkipped) -> None:
    """Record that a sample of a batch is skipped, or raise the error without `errors`."""
    try:
        if errors is None:
            raise error
        errors[place] = cause_of(error)
    finally:
        del error  # else it would keep this frame, and those of the callers


def _others(errors: dict[int, Exception] | None, count: int) -> Int64:
    """The indices of the samples of a batch that are not skipped, ascending."""
    return np.setdiff1d(np.arange(count), list(errors)) if errors else np.arange(count)


def uncached_source(chain: Chain, seed: int = 0) -> PipelineSource:
    """A source without caches, identified as it is now."""
    chain.identities.refresh(patches=True)
    return PipelineSource(chain, seed, chain.identities.states.look().name)
