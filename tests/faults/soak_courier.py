"""The courier of a soak: it pushes the store and the cache, and judges clones, copies and pulled samples."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tests.faults.soak_model import Wrong, judge, judge_cached
from tests.faults.soak_roles import Place, Worker

import warmstore as ws
from warmstore.errors import NotAStore
from warmstore.replicate.remote_copy import Remote
from warmstore.replicate.upkeep import LEAST_KEEP, gc
from warmstore.storage.array_types import Int64
from warmstore.storage.disk_usage import entries_below

COPY_SIZE = 2_000_000


class Courier(Worker):
    """Sends and fetches. What it fetches may be old, but never older than what it has fetched before."""

    def __init__(self, place: Place, number: int) -> None:
        super().__init__(place, number, ws.RecordStore.open(place.store), place.cache())
        self.other = place.cache("other")
        self.url = (place.remote / "store").as_uri()
        self.cache_url = (place.remote / "caches").as_uri()
        self.copy: ws.RecordStore | None = None
        self.fetched: Int64 = np.zeros(place.sizes.slots, np.int64)  # states that were fetched, by slot
        self.weights |= {
            self.push: 3,
            self.pull: 2,
            self.read_copy: 30,
            self.refresh_copy: 3,
            self.open_copy: 0.3,
            self.push_cache: 1,
            self.pull_cache: 1,
            self.look_up_other: 10,
            self.collect: 0.3,
        }

    def close(self) -> None:
        self.other.close()
        if self.copy is not None:
            self.copy.close()

    def commit(self) -> None:
        self.other.flush()
        super().commit()

    def refresh_all(self) -> None:
        """Send all that there is, fetch it, and remove the rest."""
        super().refresh_all()
        self.push()
        self.pull()
        self.push_cache()
        self.pull_cache()
        self.other.rebalance(progress=False)
        self.collect()
        self.refresh_copy()

    def push(self) -> None:
        self.store.push(self.url, progress=False)

    def pull(self) -> None:
        with contextlib.suppress(NotAStore), self._cloned() as store:  # nothing was pushed yet
            self._judge_fetched(store)

    def _cloned(self) -> ws.RecordStore:
        return ws.RecordStore.clone(self.url, self.place.folder / "clone", progress=False)

    def _judge_fetched(self, store: ws.RecordStore) -> None:
        columns = store.gather(slice(None))
        judge(columns, self.fetched, self.table.begun)
        slots = columns["slot"]
        if len(np.unique(slots)) < len(slots):
            raise Wrong("slots were fetched more than once")
        self.fetched[slots] = columns["state"]

    def open_copy(self) -> None:
        if self.copy is not None:
            self.copy.close()
            self.copy = None
        with contextlib.suppress(NotAStore):
            folder = self.place.folder / "copies"
            self.copy = ws.RecordStore.open(self.url, cache_dir=folder, cache_size=COPY_SIZE)

    def refresh_copy(self) -> None:
        if self.copy is not None:
            self.copy.refresh()
            self._judge_fetched(self.copy)

    def read_copy(self) -> None:
        if self.copy is not None and len(self.copy):
            columns = self.copy.gather(self.random.integers(0, len(self.copy), 8))
            judge(columns, np.zeros_like(self.known), self.table.begun)

    def push_cache(self) -> None:
        self.cache.push(self.cache_url, progress=False)

    def pull_cache(self) -> None:
        self.other.pull(self.cache_url, progress=False)

    def look_up_other(self) -> None:
        ids = np.unique(self.random.integers(0, self.place.sizes.ids // 16, 16))
        judge_cached(ids, *self.other.get_batch(ids))

    def collect(self) -> None:
        """Let two days pass at the remote, and remove what nothing names any more."""
        for url, folder in ((self.url, "store"), (f"{self.cache_url}/c", "caches")):
            if (self.place.remote / folder).is_dir():
                for path, _ in _files(self.place.remote / folder):
                    past = time.time() - 2 * LEAST_KEEP
                    os.utime(path, (past, past))
                gc(Remote(url), keep=LEAST_KEEP)


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    return ((path, status) for path, status in entries_below(folder) if not Path(path).is_dir())
