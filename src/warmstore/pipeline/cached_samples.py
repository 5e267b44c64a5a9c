"""The cached samples of a pipeline, as one process finds and adds them: those whose inputs and steps are unchanged."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from warmstore.identity.samples.sample_hashes import UInt64
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.pipeline.chain import Chain
from warmstore.pipeline.metering.part_recorder import PartRecorder
from warmstore.pipeline.tiers.sample_store import SampleStore
from warmstore.pipeline.tiers.sample_stores import CacheLayout, SampleStores
from warmstore.pipeline.trials.trial import WrittenOutside
from warmstore.storage.array_types import Bools
from warmstore.storage.locks import reentrant_lock, renewed_in_children

_FEW = 0.01
"""Share of the cached samples that may be missing in an epoch that counts as one without missing samples."""


class CachedSamples:
    """The samples in a pipeline's stores. Not thread-safe: hold `lock`.

    Args:
        chain: the source and the steps.
        layout: where samples are cached; None if they are not.

    Attributes:
        lock: held while samples are looked up, read, computed and added; the thread that holds it may take it again. It
            has no effect if nothing is cached.
        layout: as above, with the keys of the samples at the last check.
        stores: this process's stores, None while they are closed. Copies in other processes open their own.
    """

    lock: AbstractContextManager[object]

    def __init__(self, chain: Chain, layout: CacheLayout | None) -> None:
        self.layout = layout
        self.stores: SampleStores | None = None
        self._identities = chain.identities
        self._notes: list[str] = []
        self.at_end: PartRecorder | None = None  # records what this process has read when its stores are closed
        self._begin_anew()
        self._seen: UInt64 | None = None  # the hashes of all samples that `layout` has
        self._changed = ""  # how the steps differ from the cached ones

    def _begin_anew(self) -> None:
        """Take over nothing of other processes: those of another machine have another clock."""
        self._began = 0  # the latest pass, by when it began
        self._refreshed = self._checked = -1  # those in which the stores were refreshed, and steps and samples checked
        renewed_in_children(self, "lock", nullcontext if self.layout is None else reentrant_lock)

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "stores": None, "_seen": None, "_notes": []}
        del state["lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin_anew()

    def open(self) -> SampleStores | None:
        """This process's stores; None if nothing is cached."""
        if self.layout is None:
            return None
        stores = self.stores
        if stores is None or stores.closed:
            stores = self.stores = SampleStores(self.layout, self._may_write, self.at_end)
        return stores

    def begin_pass(self, began: int) -> None:
        """See `Source.begin_pass`."""
        self._began = max(self._began, began)

    def opened(self) -> SampleStores:
        """`open`, with what other processes have added before the first call in this pass. Some samples are cached."""
        stores = self.open()
        assert stores is not None
        if self._refreshed < self._began:
            stores.refresh()
            self._refreshed = self._began  # an interrupted refresh is repeated
        return stores

    def close(self) -> None:
        """Write pending samples and close this process's stores. They open again when they are needed."""
        stores, self.stores = self.stores, None
        if stores is not None:
            stores.close()

    def flush(self) -> None:
        """Write pending samples, at the end of an epoch."""
        if self.stores is not None:
            self.stores.flush()

    def store_to_fill(self, index: int) -> SampleStore | None:
        """The store that takes a computed sample; None if it has none, or if the steps were changed."""
        return None if self._changed else self.store_of(index)

    def store_of(self, index: int) -> SampleStore | None:
        """The store of a sample; None if it has none."""
        if self.stores is None or self.layout is None:
            return None
        return self.stores.by_number.get(int(self.layout.placement[index]))

    def wanted(self, stores: SampleStores) -> Bools:
        """Which samples have a store: bool [samples]."""
        assert self.layout is not None
        return np.isin(self.layout.placement, list(stores.by_number))

    def missing(self, stores: SampleStores) -> Bools:
        """Which samples their store lacks: bool [samples]."""
        return self.wanted(stores) & (stores.rows < 0)

    def untried(self) -> Int64:
        """A missing sample, int64 [0 or 1]: none if all are cached, or if samples were made in this process already."""
        stores = None if self._identities.were_called else self.open()
        return np.empty(0, np.int64) if stores is None else np.flatnonzero(stores.rows < 0)[:1]

    def misses_samples(self) -> bool:
        """Whether more than a few of the cached samples are to be computed, as far as the stores say."""
        stores = self.open()
        if stores is None:
            return True
        few = _FEW * max(int(self.wanted(stores).sum()), 1)
        if self.missing(stores).sum() > few:
            stores.refresh()
        return bool(self.missing(stores).sum() > few)

    def look_again(self) -> None:
        """Check files, arrays and samples once a pass. Steps run later, so that their own changes do not count."""
        if self.layout is not None and self._checked < self._began:
            self._identities.refresh(patches=True)
            self._identities.states.look_again()
            self._checked = self._began  # an interrupted check is repeated

    def is_current(self) -> bool:
        """Whether the steps equal the cached ones, by a quick check."""
        if self.layout is None:
            return False
        changed = self._identities.changed(self.layout.steps)
        if changed and changed != self._changed:
            self.tell(f"{changed}, so samples are computed; make a new loader to cache the new ones")
        self._changed = changed
        self.see_changes()
        return not changed

    def see_changes(self) -> None:
        """Invalidate cached samples whose inputs have changed."""
        if self.layout is None:
            return
        now, known = self._identities.states.samples.each, self.layout.keys
        if now is self._seen:
            return
        keys = now
        if len(now) != len(known):  # another loader of the pipeline has looked at a list that has grown or shrunk
            keys = np.zeros_like(known)
            keys[: len(now)] = now[: len(known)]
        if self.stores is not None:
            self.stores.take_keys(keys, np.flatnonzero((keys != known).any(axis=1)))
        self.layout = replace(self.layout, keys=keys)
        self._seen = now  # last, so that an interrupted call is repeated

    def _may_write(self, indices: Int64) -> Bools:
        """Which samples may be written, bool [n]: those with unchanged steps and inputs."""
        identities = self._identities
        nothing = np.zeros(len(indices), np.bool_)
        if identities.may_have_been_edited():
            return nothing  # the check of the next epoch decides
        identities.called()
        identities.refresh()
        if self.layout is None or not self.is_current():
            return nothing
        return identities.states.are_unchanged(indices, self.layout.keys)

    def refuse(self, error: WrittenOutside) -> None:
        """Cache nothing from the stage on whose memory was written."""
        assert self.stores is not None
        for store in self.stores.by_number.values():
            if store.place.step >= error.stage:
                store.refuse(error)

    def tell(self, note: str) -> None:
        """Queue a note for the user."""
        self._notes.append(note)

    def notes(self) -> list[str]:
        """Notes for the user since the last call."""
        notes, self._notes = self._notes, []
        if self.stores is not None:
            notes += self.stores.notes()
        return notes
