"""A pipeline as a source of batches: each sample from where it is kept, through the steps that are left.

Whoever computes a sample that is to be kept puts it on its shelf. Every process opens the shelves for itself; what the
processes share is the stores.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from warmstore.errors import BadSource
from warmstore.loading.draws import Int64, UInt64
from warmstore.loading.source import Source
from warmstore.owner import Owner
from warmstore.pipeline.batch import Batch, Uneven
from warmstore.pipeline.identities import Description
from warmstore.pipeline.native_threads import native_threads
from warmstore.pipeline.room import Hold
from warmstore.pipeline.shelf import LOST, Place, Shelf
from warmstore.pipeline.tiers import MemoryTier

if TYPE_CHECKING:
    from warmstore.pipeline.pipeline import Pipeline


@dataclass(frozen=True)
class Kept:
    """What is kept where. places: by number of their placement. assignment: int16 [samples], the placement of each.

    identities: uint64 [samples], hashes of what each sample is made from. steps: descriptions of those
    whose results are kept.
    """

    places: tuple[Place, ...]
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
        kept: Kept | None = None,
        held: Sequence[MemoryTier | Hold] = (),
    ) -> None:
        self._pipe = pipe
        self._seed = seed
        self.identity = {"source": identity, "seed": seed} if pipe.cacheable < len(pipe.steps) else identity
        self._kept = kept
        self.held = held
        self._shelves: Shelves | None = None
        self._notes: list[str] = []
        self._epoch = -1
        self._looked = -1  # the epoch in which the steps were looked at
        self._alike = True  # so far
        self._changed = ""  # what tells the steps from those whose results are kept

    def __len__(self) -> int:
        return len(self._pipe)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_shelves": None, "held": (), "_notes": []}

    def read(self, positions: Int64) -> Any:
        return self.read_in(0, positions)

    def read_in(self, epoch: int, positions: Int64) -> Any:
        with native_threads(self._pipe.threads), self._pipe.identities.calling():
            if self._alike:
                try:
                    return self._batch(epoch, positions)
                except Uneven:
                    self._alike = False
            return self._batch(epoch, positions)

    def _batch(self, epoch: int, positions: Int64) -> Any:
        batch = Batch(len(positions), alike=self._alike)
        if self._kept is None or not self._is_current(epoch):
            self._compute(epoch, positions, np.arange(len(positions)), batch)
            return batch.stacked()
        shelves = self._opened(epoch)
        placed = self._kept.assignment[positions]
        rows = shelves.rows[positions].astype(np.int64)
        for number, shelf in shelves.by_number.items():
            at = np.flatnonzero((placed == number) & (rows >= 0))
            if len(at) == len(positions) and shelf.place.step == len(self._pipe.steps):
                whole = shelf.read_stacked(rows)
                if whole is not None:
                    return whole
            for few in np.split(at, range(shelf.at_once, len(at), shelf.at_once)):
                self._go_on(epoch, positions, few, shelf, rows[few], batch)
        self._compute(epoch, positions, batch.missing(), batch)
        return batch.stacked()

    def _is_current(self, epoch: int) -> bool:
        """Whether the steps are those whose results are kept.

        In the first batch of an epoch files and arrays are looked at again, later what has moved is.
        """
        if self._kept is None:
            return False
        if epoch != self._looked:
            self._looked = epoch
            self._pipe.identities.refresh()
        changed = self._pipe.identities.changed(self._kept.steps)
        if changed and changed != self._changed:
            self.tell(f"{changed}, so samples are computed. Make a new loader to keep them as they are now")
        self._changed = changed
        return not changed

    def _may_write(self) -> bool:
        """Whether what waits was made by the steps as they were identified: files and arrays are looked at, too."""
        self._pipe.identities.called()
        self._looked = -1
        return self._is_current(self._epoch)

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
            one.close()

    def open_shelves(self) -> "Shelves | None":
        """This process's view of what is kept."""
        if self._kept is None:
            return None
        shelves = self._shelves
        if shelves is None or shelves.closed:
            shelves = self._shelves = Shelves(self._kept, self._may_write)
        return shelves

    def close_shelves(self) -> None:
        """Write what waits, and let go of the stores in this process."""
        shelves, self._shelves = self._shelves, None
        if shelves is not None:
            shelves.close()

    def tell(self, note: str) -> None:
        """Have the user told."""
        self._notes.append(note)

    def wanted(self, shelves: "Shelves") -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which samples are to be kept: bool [samples]."""
        assert self._kept is not None
        return np.isin(self._kept.assignment, list(shelves.by_number))

    def fill(self, positions: Int64) -> int:
        """Compute what is to be kept of some samples, and keep it; say how many there were to compute."""
        shelves = self._opened(0)
        missing = positions[shelves.rows[positions] < 0]
        if not self._is_current(0):
            return 0
        with native_threads(self._pipe.threads), self._pipe.identities.calling():
            for index, raw in zip(missing.tolist(), self._raw(missing), strict=True):
                shelf = self._shelf_of(index)
                if shelf is not None:
                    shelf.add(index, self._pipe.run(raw, index, last=shelf.place.step))
        return len(missing)

    def _opened(self, epoch: int) -> "Shelves":
        shelves = self.open_shelves()
        assert shelves is not None
        if epoch != self._epoch:
            self._epoch = epoch
            shelves.look()
        return shelves

    def _go_on(self, epoch: int, positions: Int64, at: Int64, shelf: Shelf, rows: Int64, batch: Batch) -> None:
        """Send kept samples through the steps that are left."""
        first = shelf.place.step
        for place, value in zip(at.tolist(), shelf.read(rows), strict=True):
            index = int(positions[place])
            if value is LOST:
                shelf.lose(index)
            else:
                batch.put(place, self._pipe.run(value, index, epoch=epoch, seed=self._seed, first=first))

    def _compute(self, epoch: int, positions: Int64, at: Int64, batch: Batch) -> None:
        """Make the samples at some places from their raw values on, those that are to be kept put on their shelves."""
        run, seed = self._pipe.run, self._seed
        for place, value in zip(at.tolist(), self._raw(positions[at]), strict=True):
            index = int(positions[place])
            shelf, first = self._shelf_of(index), 0
            if shelf is not None:
                first = shelf.place.step
                value = run(value, index, last=first)
                shelf.add(index, value)
            batch.put(place, run(value, index, epoch=epoch, seed=seed, first=first))

    def _shelf_of(self, index: int) -> Shelf | None:
        """Where a sample is to be kept and is not yet."""
        if self._shelves is None or self._kept is None or self._changed:
            return None
        shelf = self._shelves.by_number.get(int(self._kept.assignment[index]))
        return shelf if shelf is not None and shelf.wants(index) else None

    def _raw(self, positions: Int64) -> Sequence[Any]:
        source = self._pipe.source
        many = getattr(source, "__getitems__", None)
        if many is not None:
            found = many(positions.tolist())
            if isinstance(found, Mapping) or len(found) != len(positions):
                raise BadSource(
                    f"__getitems__ of {type(source).__name__} gave a {type(found).__name__} of {len(found):,} for "
                    f"{len(positions):,} positions; it must give a list with a sample for each"
                )
            return list(found)
        return [source[index] for index in positions.tolist()]


class Shelves(Owner):
    """One process's shelves. may_write: asked before what waits is written.

    by_number: of their placement; broken: those that cannot be opened. rows: int32 [samples], where each is; see
    `Shelf`.
    """

    def __init__(self, kept: Kept, may_write: Callable[[], bool]) -> None:
        self.rows = np.full(len(kept.assignment), -1, np.int32)
        self.by_number: dict[int, Shelf] = {}
        self.broken: list[int] = []
        self._notes: list[str] = []
        for place in kept.places:
            try:
                self.by_number[place.number] = Shelf(
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
        self.own()

    def look(self) -> None:
        """See what others have added."""
        for shelf in self.by_number.values():
            shelf.flush()
            shelf.look()

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
            self.disown()

    def _after_fork(self) -> None:
        self.closed = True
        for shelf in self.by_number.values():
            shelf.abandon()
        self.by_number = {}
