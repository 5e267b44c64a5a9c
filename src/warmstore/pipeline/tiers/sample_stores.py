"""The sample stores that one process has open, and where samples are cached."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from warmstore.identity.samples.sample_hashes import UInt64
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.pipeline.metering.epoch_meter import TIER_TERMS, EpochMeter
from warmstore.pipeline.metering.part_recorder import PartRecorder
from warmstore.pipeline.stacked_batch import merged
from warmstore.pipeline.step_identities import Description
from warmstore.pipeline.tiers.sample_store import SampleStore, StoreLocation
from warmstore.pipeline.tiers.sample_table import Placements, SampleTable
from warmstore.storage.array_types import Bools
from warmstore.storage.lifecycle import Closeable


@dataclass(frozen=True)
class CacheLayout:
    """Where samples are cached. places: the opened placements. placement: int16 [samples], the number of each.

    keys: uint64 [samples, 2], hashes of each sample's inputs. steps: descriptions of the cached steps.
    """

    places: tuple[StoreLocation, ...]
    placement: Placements
    keys: UInt64
    steps: tuple[Description, ...]


class SampleStores(Closeable):
    """The stores of one process. may_write: see `SampleStore`.

    table: the samples and their rows. by_number: stores by the number of their placement. broken: numbers of those that
    cannot be opened.
    """

    _has_pending = False

    def __init__(
        self, kept: CacheLayout, may_write: Callable[[Int64], Bools], at_end: PartRecorder | None = None
    ) -> None:
        self._at_end = at_end
        self.table = SampleTable(kept.keys, kept.placement)
        self.by_number: dict[int, SampleStore] = {}
        self.broken: list[int] = []
        self._notes: list[str] = []
        for place in kept.places:
            try:
                self.by_number[place.number] = SampleStore(place, self.table, may_write)
            except OSError as error:
                self.broken.append(place.number)
                self._notes.append(f"{place.name}: the store cannot be read, so its samples are computed: {error}")
            except BaseException:
                for store in self.by_number.values():
                    store.abandon()
                raise
        self.closed = False
        self._register()

    @property
    def rows(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """int32 [samples], see `SampleTable`."""
        return self.table.rows

    def at_once(self) -> int:
        """How many samples to read at once, at most."""
        return min((store.at_once for store in self.by_number.values()), default=1)

    def read(self, positions: Int64, meter: EpochMeter) -> dict[int, tuple[SampleStore, Any]]:
        """Store and value of the cached ones of some samples, by index into `positions`; see `SampleStore.read`."""
        meter.lap("batches")
        rows, placed = self.rows[positions].astype(np.int64), self.table.placement[positions]
        found: dict[int, tuple[SampleStore, Any]] = {}
        for number, store in self.by_number.items():
            at = np.flatnonzero((placed == number) & (rows >= 0))
            if len(at):
                found.update(
                    (place, (store, value)) for place, value in zip(at.tolist(), store.read(rows[at]), strict=True)
                )
                meter.lap(TIER_TERMS[store.place.tier])
        return found

    def read_stacked(self, positions: Int64, step: int, meter: EpochMeter) -> Any:
        """Samples stacked as a batch; None unless stores hold them all after `step` steps, in one form."""
        placed = self.table.placement[positions]
        rows = self.rows[positions].astype(np.int64)
        parts = []
        for number in np.unique(placed).tolist() if (placed != placed[0]).any() else [int(placed[0])]:
            store, at = self.by_number[number], np.flatnonzero(placed == number)
            batch = store.read_stacked(rows[at]) if store.place.step == step else None
            if batch is None:
                return None
            meter.lap(TIER_TERMS[store.place.tier])
            parts.append((at, batch))
        return parts[0][1] if len(parts) == 1 else merged(parts, len(positions))

    def refresh(self) -> None:
        """Write pending samples, and read what other processes have added."""
        for store in self.by_number.values():
            store.flush()
            store.look_for_others()
            store.try_again()

    def take_keys(self, keys: UInt64, changed: Int64) -> None:
        """Take over the keys of all samples, of which some have changed: those are computed and added again.

        A call that is interrupted leaves none of them cached, and can be repeated.
        """
        self.table.invalidate(changed)
        self.table.keys = keys
        for store in self.by_number.values():
            for index in changed.tolist():
                store.invalidate(index)

    def flush(self) -> None:
        """Write pending samples at the end of an epoch."""
        for store in self.by_number.values():
            store.flush()
            store.trim()

    def notes(self) -> list[str]:
        """Notes for the user since the last call."""
        notes, self._notes = self._notes, []
        for store in self.by_number.values():
            notes += store.notes
            store.notes = []
        return notes

    def close(self) -> None:
        """Write pending samples and close the stores. Idempotent."""
        if not self.closed:
            self.closed = True
            for store in self.by_number.values():
                store.close()
            self._unregister()
            if self._at_end is not None:
                self._at_end.record()

    def _after_fork(self) -> None:
        self.closed = True
        for store in self.by_number.values():
            store.abandon()
        self.by_number = {}
