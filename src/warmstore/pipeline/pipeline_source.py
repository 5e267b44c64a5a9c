"""A pipeline as a source of batches: each sample from where it is kept, through the steps that are left.

Whoever computes a sample that is to be kept puts it on its shelf. Every process opens the shelves for itself; what the
processes share is the stores.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from warmstore.errors import BadSource, UnsupportedType
from warmstore.loading.samplers.counter_rng import Int64, UInt64
from warmstore.loading.sources.source import Source
from warmstore.loading.values.ownership import owned
from warmstore.pipeline.native_threads import native_threads
from warmstore.pipeline.outside_memory import ReachableObjects
from warmstore.pipeline.stacked_batch import StackedBatch, Uneven
from warmstore.pipeline.step_identities import Description
from warmstore.pipeline.tiers.sample_store import MISSING, SampleStore, StoreLocation
from warmstore.pipeline.tiers.sample_values import Marked
from warmstore.pipeline.tiers.tier_folders import MemoryTier
from warmstore.pipeline.trial import LargeParts, Trial, WrittenOutside, raw_values, reachable
from warmstore.pipeline.write_watch import WriteWatch
from warmstore.records.format.encoded_rows import Bools
from warmstore.storage.lease import UsageLease
from warmstore.storage.lifecycle import Closeable

if TYPE_CHECKING:
    from warmstore.pipeline.pipeline import Pipeline


@dataclass(frozen=True)
class CacheLayout:
    """What is kept where. places: by number of their placement. assignment: int16 [samples], the placement of each.

    identities: uint64 [samples], hashes of what each sample is made from. steps: descriptions of those whose results
    are kept.
    """

    places: tuple[StoreLocation, ...]
    assignment: np.ndarray[Any, np.dtype[np.int16]]
    identities: UInt64
    steps: tuple[Description, ...]


@final
class PipelineSource(Source):
    """The samples of a pipeline.

    Args:
        pipe: whose they are.
        seed: of the random steps.
        identity: what tells the samples from others of the same number.
        kept: what is kept where, or None.
        held: what this process closes at `release`; other processes do not.
    """

    def __init__(
        self,
        pipe: "Pipeline",
        seed: int = 0,
        identity: Any = None,
        kept: CacheLayout | None = None,
        held: Sequence[MemoryTier | UsageLease] = (),
    ) -> None:
        self._pipe = pipe
        self._seed = seed
        self.identity = {"source": identity, "seed": seed} if pipe.cacheable < len(pipe.steps) else identity
        self._kept = kept
        self.held = held
        self._shelves: SampleStores | None = None
        self._notes: list[str] = []
        self._epoch = -1
        self._looked = -1  # the epoch in which the steps were looked at
        self._changes = -1  # of samples, which were seen
        self._alike = True  # so far
        self._changed = ""  # what tells the steps from those whose results are kept
        self._large_parts: dict[int, LargeParts] = {}  # by the step of a shelf

    def __len__(self) -> int:
        return len(self._pipe)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_shelves": None, "held": (), "_notes": []}

    def read(self, positions: Int64) -> Any:
        return self.read_in(0, positions)

    def read_in(self, epoch: int, positions: Int64) -> Any:
        self._look_again(epoch)
        with native_threads(self._pipe.threads), self._pipe.identities.calling():
            if self._alike:
                try:
                    return self._batch(epoch, positions)
                except Uneven:
                    self._alike = False
            return self._batch(epoch, positions)

    def _batch(self, epoch: int, positions: Int64) -> Any:
        """Make samples one after the other: one that changes memory from outside may change those after it."""
        batch = StackedBatch(len(positions), alike=self._alike)
        shelves = self._opened(epoch) if self._is_current() else None
        missing = np.arange(len(positions)) if shelves is None else np.flatnonzero(shelves.rows[positions] < 0)
        if shelves is not None and not len(missing):
            whole = shelves.read_stacked(positions, len(self._pipe.steps))
            if whole is not None:
                return whole
        # Nobody asks what uncached samples are made from.
        with self._pipe.identities.states.making([] if self._kept is None else positions[missing]):
            self._see_samples()
            self._make(epoch, positions, missing, shelves, batch)
        made = batch.stacked()
        try:
            return owned(made)  # a step may hand on what the source holds
        except BadSource:
            return made  # locks, sockets: what nobody copies, a step gives as itself

    def _make(
        self, epoch: int, positions: Int64, missing: Int64, shelves: "SampleStores | None", batch: StackedBatch
    ) -> None:
        """Make the samples of a batch, from where they are kept or from what the source holds."""
        raws, number = self._raw(positions[missing]), {place: at for at, place in enumerate(missing.tolist())}
        beside = None if shelves is None else reachable(raws)
        size = len(positions) if shelves is None else shelves.at_once()
        for few in np.split(np.arange(len(positions)), range(size, len(positions), size)):
            found = {} if shelves is None else shelves.read(positions[few])
            for at, place in enumerate(few.tolist()):
                index = int(positions[place])
                value = self._go_on(epoch, index, *found.pop(at)) if at in found else MISSING
                if value is MISSING:
                    raw = [raws[number[place]]] if place in number else self._raw(positions[place : place + 1])
                    value = self._compute(epoch, index, raw, beside)
                batch.put(place, value)

    def _look_again(self, epoch: int) -> None:
        """Look at files, arrays and samples again, once an epoch: before steps run, for what changes then is theirs."""
        if self._kept is not None and epoch != self._looked:
            self._looked = epoch
            self._pipe.identities.refresh(patches=True)
            self._pipe.identities.states.look_again()

    def _is_current(self) -> bool:
        """Whether the steps are those whose results are kept, as far as a quick look shows."""
        if self._kept is None:
            return False
        changed = self._pipe.identities.changed(self._kept.steps)
        if changed and changed != self._changed:
            self.tell(f"{changed}, so samples are computed. Make a new loader to keep them as they are now")
        self._changed = changed
        self._see_samples()
        return not changed

    def _see_samples(self) -> None:
        """Lose the kept samples that are made from something else now."""
        states = self._pipe.identities.states
        if self._kept is None or states.changes == self._changes:
            return
        self._changes = states.changes
        now, known = states.samples.each, self._kept.identities
        changed = np.flatnonzero(now != known) if len(now) == len(known) else np.arange(0)
        known[changed] = now[changed]
        if self._shelves is not None:
            for index in changed.tolist():
                self._shelves.invalidate(index)

    def _may_write(self, indices: Int64) -> Bools:
        """Which samples may be written: their steps are what they were, and so is what they are made from."""
        identities = self._pipe.identities
        nothing = np.zeros(len(indices), np.bool_)
        if identities.may_have_been_edited():
            return nothing  # at the next epoch it is known
        identities.called()
        identities.refresh()
        if self._kept is None or not self._is_current():
            return nothing
        return identities.states.are_unchanged(indices, self._kept.identities)

    def finish(self) -> None:
        if self._shelves is not None:
            self._shelves.flush()

    def notes(self) -> list[str]:
        notes, self._notes = self._notes, []
        if self._shelves is not None:
            notes += self._shelves.notes()
        return notes

    def release(self) -> None:
        self.close_shelves()
        held, self.held = self.held, ()
        for one in held:
            one.release() if isinstance(one, UsageLease) else one.close()

    def open_shelves(self) -> "SampleStores | None":
        """This process's view of what is kept."""
        if self._kept is None:
            return None
        shelves = self._shelves
        if shelves is None or shelves.closed:
            shelves = self._shelves = SampleStores(self._kept, self._may_write)
        return shelves

    def close_shelves(self) -> None:
        """Write what waits, and let go of the stores in this process."""
        shelves, self._shelves = self._shelves, None
        if shelves is not None:
            shelves.close()

    def tell(self, note: str) -> None:
        """Have the user told."""
        self._notes.append(note)

    def wanted(self, shelves: "SampleStores") -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which samples are to be kept: bool [samples]."""
        assert self._kept is not None
        return np.isin(self._kept.assignment, list(shelves.by_number))

    def fill(self, positions: Int64) -> int:
        """Compute what is to be kept of some samples, and keep it; say how many there were to compute."""
        shelves = self._opened(0)
        self._look_again(0)
        missing = positions[shelves.rows[positions] < 0]
        if not self._is_current():
            return 0
        identities = self._pipe.identities
        with native_threads(self._pipe.threads), identities.calling(), identities.states.making(missing):
            self._see_samples()
            raws = self._raw(missing)
            beside = reachable(raws)
            for number, index in enumerate(missing.tolist()):
                shelf = self._shelf_of(index)
                if shelf is not None and shelf.wants(index):
                    trial = Trial(
                        self._pipe, index, [raws[number]], self._large_parts_of(shelf), beside, traceless=True
                    )
                    try:
                        self._keep(trial, index, shelf, lambda value: value)
                    finally:
                        trial.watch.restore()  # training begins where it would have without
        return len(missing)

    def _opened(self, epoch: int) -> "SampleStores":
        shelves = self.open_shelves()
        assert shelves is not None
        if epoch != self._epoch:
            self._epoch = epoch
            shelves.refresh()
        return shelves

    def _raw(self, positions: Int64) -> list[Any]:
        return raw_values(self._pipe.source, positions.tolist())

    def _go_on(self, epoch: int, index: int, shelf: SampleStore, value: Any) -> Any:
        """Send a kept sample through the steps that are left; `MISSING` if it is to be made anew."""
        watch = None
        if isinstance(value, Marked):
            if shelf.place.step < len(self._pipe.steps):
                watch = WriteWatch([])
                watch.add(0, value.parts)
            value = value.value
        if value is not MISSING:
            value = self._pipe.run(value, index, epoch=epoch, seed=self._seed, first=shelf.place.step)
        if value is MISSING or (watch is not None and watch.written()):
            shelf.invalidate(index)  # what was written has to be written outside, too
            return MISSING
        return value

    def _compute(self, epoch: int, index: int, raw: list[Any], beside: ReachableObjects | None) -> Any:
        """Make a sample from its raw value on, and put it on its shelf if it is to be kept.

        Args:
            raw: a list with the raw value, to be taken over; beside: see `Trial`.
        """
        shelf = None if self._changed else self._shelf_of(index)
        run = partial(self._pipe.run, index=index, epoch=epoch, seed=self._seed)
        if shelf is None or not shelf.wants(index):
            return run(raw[0])
        trial = Trial(self._pipe, index, raw, self._large_parts_of(shelf), beside)
        return self._keep(trial, index, shelf, partial(run, first=shelf.place.step))

    def _large_parts_of(self, shelf: SampleStore) -> LargeParts:
        return self._large_parts.setdefault(shelf.place.step, LargeParts())

    def _keep(self, trial: Trial, index: int, shelf: SampleStore, go_on: Callable[[Any], Any]) -> Any:
        """Keep a sample as its shelf wants it, unless it had better not be; give what `go_on` makes of it."""
        trial.run(shelf.place.step)
        if not trial.watch:
            shelf.add(index, trial.value)
            return go_on(trial.value)
        try:
            shelf.add_taken(index, *trial.take())
        except UnsupportedType as error:
            shelf.leave_out(index, error)
            return go_on(trial.value)
        value = go_on(trial.value)
        try:
            other = trial.settle()
        except WrittenOutside as error:
            self._refuse(error)
        else:
            if other is not None:
                shelf.replace(index, *other)
        return value

    def _refuse(self, error: WrittenOutside) -> None:
        """Keep nothing from the stage on whose memory was written."""
        assert self._shelves is not None
        for shelf in self._shelves.by_number.values():
            if shelf.place.step >= error.stage:
                shelf.refuse(error)

    def _shelf_of(self, index: int) -> SampleStore | None:
        """Where a sample is kept or is to be."""
        if self._shelves is None or self._kept is None:
            return None
        return self._shelves.by_number.get(int(self._kept.assignment[index]))


class SampleStores(Closeable):
    """One process's shelves. may_write: which samples may be written, of those that wait.

    by_number: of their placement; broken: those that cannot be opened. rows: int32 [samples], where each is; see
    `SampleStore`.
    """

    def __init__(self, kept: CacheLayout, may_write: Callable[[Int64], Bools]) -> None:
        self.rows = np.full(len(kept.assignment), -1, np.int32)
        self.by_number: dict[int, SampleStore] = {}
        self.broken: list[int] = []
        self._notes: list[str] = []
        self._assignment = kept.assignment
        for place in kept.places:
            try:
                self.by_number[place.number] = SampleStore(
                    place, self.rows, kept.assignment == place.number, kept.identities, may_write
                )
            except OSError as error:
                self.broken.append(place.number)
                self._notes.append(f"{place.name}: what is kept cannot be read, so it is computed: {error}")
            except BaseException:
                for shelf in self.by_number.values():
                    shelf.abandon()
                raise
        self.closed = False
        self.register()

    def at_once(self) -> int:
        """How many samples had better be read at once, at most."""
        return min((shelf.at_once for shelf in self.by_number.values()), default=1)

    def read(self, positions: Int64) -> dict[int, tuple[SampleStore, Any]]:
        """Those of some samples that are kept, by place in `positions`: store and value; see `SampleStore.read`."""
        rows, placed = self.rows[positions].astype(np.int64), self._assignment[positions]
        found: dict[int, tuple[SampleStore, Any]] = {}
        for number, shelf in self.by_number.items():
            at = np.flatnonzero((placed == number) & (rows >= 0))
            if len(at):
                found.update(
                    (place, (shelf, value)) for place, value in zip(at.tolist(), shelf.read(rows[at]), strict=True)
                )
        return found

    def read_stacked(self, positions: Int64, step: int) -> Any:
        """The values of samples stacked as a batch; None where they are not all on one shelf, after so many steps."""
        numbers = np.unique(self._assignment[positions])
        shelf = self.by_number[int(numbers[0])]
        if len(numbers) > 1 or shelf.place.step != step:
            return None
        return shelf.read_stacked(self.rows[positions].astype(np.int64))

    def refresh(self) -> None:
        """See what others have added."""
        for shelf in self.by_number.values():
            shelf.flush()
            shelf.refresh()

    def invalidate(self, index: int) -> None:
        """Forget a sample, so that it is computed and added again."""
        self.rows[index] = -1
        for shelf in self.by_number.values():
            shelf.invalidate(index)

    def flush(self) -> None:
        """Write what waits."""
        for shelf in self.by_number.values():
            shelf.flush()

    def notes(self) -> list[str]:
        """What the user should be told, since the last call."""
        notes, self._notes = self._notes, []
        for shelf in self.by_number.values():
            notes += shelf.notes
            shelf.notes = []
        return notes

    def close(self) -> None:
        """Write what waits, and let go. Twice is fine."""
        if not self.closed:
            self.closed = True
            for shelf in self.by_number.values():
                shelf.close()
            self.unregister()

    def _after_fork(self) -> None:
        self.closed = True
        for shelf in self.by_number.values():
            shelf.abandon()
        self.by_number = {}
