"""The processes of a soak: writers, editors, readers and a courier, each of many small operations drawn with a seed.

All of them read, judge what they read by the model, and use one feature cache that evicts. An error that is not one of
the expected ones ends a process, and with it the soak.
"""

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.faults.soak_model import (
    CACHED_WIDTH,
    PHASES,
    Sizes,
    Table,
    Wrong,
    appended,
    are_alive,
    columns_of,
    deleted,
    judge,
    judge_all,
    judge_cached,
    updated,
    values_of,
)

import warmstore as ws
from warmstore.errors import PositionError
from warmstore.storage.array_types import Int64

CACHE_SIZE = 8_000_000
"""Bytes of the cache: room for half of its samples."""
_BATCH = 8
_OWN_IDS = 1_000_000


@dataclass(frozen=True)
class Place:
    """Where a soak has its files."""

    folder: Path
    sizes: Sizes
    seed: int

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def caches(self) -> Path:
        return self.folder / "caches"

    @property
    def remote(self) -> Path:
        return self.folder / "remote"

    def table(self) -> Table:
        return Table(self.folder / "table", self.sizes.slots)

    def cache(self, name: str = "caches") -> ws.FeatureCache:
        return ws.FeatureCache(self.folder / name, "c", max_size=CACHE_SIZE, flush_every=256)


class Worker:
    """One thread of operations. `weights`: how often each is done."""

    def __init__(self, place: Place, number: int, store: ws.RecordStore, cache: ws.FeatureCache) -> None:
        self.place, self.store, self.cache = place, store, cache
        self.table = place.table()
        self.random = np.random.default_rng([place.seed, number])
        self.known: Int64 = np.zeros(place.sizes.slots, np.int64)  # acknowledged before the last refresh
        self.weights: dict[Callable[[], None], float] = {
            self.read_batch: 60,
            self.read_row: 10,
            self.refresh: 10,
            self.scan: 2,
            self.look_up: 15,
        }

    def work(self, number: int) -> None:
        """Do operations until the soak is stopped, or its parent was killed. In its rests, do nothing."""
        table, parent = self.table, os.getppid()

        def is_over() -> bool:
            return table.stopped or os.getppid() != parent

        for operation in self._drawn():
            while (phase := table.phase) % len(PHASES) and not is_over():
                self._rest(number, phase)
            if is_over():
                return
            operation()
            table.counts[number] += 1

    def _rest(self, number: int, phase: int) -> None:
        """Do what a phase is for if that was not done yet, and wait a little."""
        if self.table.seen[number] != phase:
            {"commit": self.commit, "refresh": self.refresh_all}[PHASES[phase % len(PHASES)]]()
            self.table.seen[number] = phase
        time.sleep(0.05)

    def _drawn(self) -> Iterator[Callable[[], None]]:
        operations, weights = list(self.weights), np.array(list(self.weights.values()))
        while True:
            for at in self.random.choice(len(operations), 1024, p=weights / weights.sum()).tolist():
                yield operations[at]

    def close(self) -> None:
        """Nothing of its own."""

    def commit(self) -> None:
        """Commit what is pending."""
        self.cache.flush()

    def refresh_all(self) -> None:
        """Let go of what was replaced."""
        self.refresh()
        self.look_up()

    def refresh(self) -> None:
        known = self.table.acked.copy()
        self.store.refresh()
        self.known = known

    def read_batch(self) -> None:
        length = len(self.store)
        if length:
            positions = self.random.integers(0, length, _BATCH)
            try:
                columns = self.store.gather(positions)
            except PositionError:  # another thread has refreshed, and the store is shorter now
                return
            judge(columns, self.known, self.table.begun)

    def read_row(self) -> None:
        try:
            row = self.store[int(self.random.integers(0, max(len(self.store), 1)))]
        except PositionError:
            return
        judge({name: [value] for name, value in row.items()}, self.known, self.table.begun)

    def scan(self) -> None:
        self.refresh()
        columns = self.store.gather(slice(None), ["slot", "state"])
        judge_all(columns, self._seen(), self.table.begun)

    def _seen(self) -> Int64:
        return self.known

    def look_up(self) -> None:
        """Look ids up, most of them of a few that are asked for often, and put what is missing."""
        ids = self.random.integers(0, self.place.sizes.ids, 16)
        ids[:10] //= 16
        ids = np.unique(ids)
        found, missing = self.cache.get_batch(ids)
        judge_cached(ids, found, missing)
        if len(missing):
            self.cache.put_batch(ids[missing], cached_values(ids[missing]))


def cached_values(ids: Int64) -> Int64:
    return values_of(ids, np.ones_like(ids), CACHED_WIDTH)


def fill(cache: ws.FeatureCache, count: int) -> None:
    """Put all samples, of which half are evicted at once."""
    for first in range(0, count, 1000):
        ids = np.arange(first, first + 1000)
        cache.put_batch(ids, cached_values(ids))


class Editing(Worker):
    """Changes slots that are alive: `slots` are those that this worker edits."""

    slots: Int64

    def update(self) -> None:
        self._edit(updated)

    def delete(self) -> None:
        self._edit(deleted)

    def _edit(self, change: Callable[[Int64], Int64]) -> None:
        acked = self.table.acked[self.slots]
        chosen = self.slots[are_alive(acked) & (acked == self.table.begun[self.slots])]
        if not len(chosen):
            return
        chosen = self.random.choice(chosen, min(len(chosen), int(self.random.integers(1, _BATCH))), replace=False)
        states = change(self.table.acked[chosen])
        self.table.begun[chosen] = states
        while True:
            self.refresh()
            slots = self.store.gather(slice(None), ["slot"])["slot"]
            places = np.full(self.place.sizes.slots, -1, np.int64)
            places[slots] = np.arange(len(slots))
            positions = places[chosen]
            if positions.min() < 0:
                raise Wrong(f"acknowledged rows are lost: slots {chosen[positions < 0].tolist()}")
            try:
                if change is deleted:
                    self.store.delete(positions)
                else:
                    self.store.update(positions, columns_of(chosen, states))
                break
            except PositionError:  # another process has edited the store since the refresh
                continue
        self.acknowledge(chosen, states)

    def acknowledge(self, slots: Int64, states: Int64) -> None:
        self.table.acked[slots] = states


class Writer(Editing):
    """Appends rows, and edits some of its own ones."""

    def __init__(self, place: Place, number: int) -> None:
        super().__init__(place, number, ws.RecordStore.open(place.store, "a", chunk_size="1MB"), place.cache())
        self.own = place.sizes.owned_by_writer(number)
        self.slots = self.own[self.own % 3 == 0]
        self.pending: list[int] = []
        self.ids = np.arange(_BATCH) + _OWN_IDS + number * _BATCH
        self.weights |= {
            self.append: 100,
            self.flush: 8,
            self.update: 1.5,
            self.delete: 1,
            self.seal: 0.1,
            self.keep_and_delete: 0.05,
        }

    def close(self) -> None:
        self.flush()

    def commit(self) -> None:
        self.flush()
        super().commit()

    def append(self) -> None:
        acked = self.table.acked[self.own]
        free = self.own[~are_alive(acked) & (acked == self.table.begun[self.own])]
        if len(free):
            slot = free[int(self.random.integers(len(free)))]
            state = appended(self.table.begun[slot : slot + 1])
            self.table.begun[slot] = state[0]
            self.store.extend(columns_of(np.array([slot]), state))
            self.pending.append(int(slot))
        else:
            self.read_row()

    def flush(self) -> None:
        self.store.flush()
        self._committed()

    def seal(self) -> None:
        self.store.seal()
        self._committed()

    def acknowledge(self, slots: Int64, states: Int64) -> None:
        self._committed()  # an edit commits what is pending
        super().acknowledge(slots, states)

    def _committed(self) -> None:
        pending = np.array(self.pending, np.int64)
        self.table.acked[pending] = self.table.begun[pending]
        self.pending.clear()

    def keep_and_delete(self) -> None:
        """Cache samples that nobody else has, and delete them again: then they are missing."""
        self.cache.put_batch(self.ids, cached_values(self.ids))
        self.cache.flush()
        found, missing = self.cache.get_batch(self.ids)
        judge_cached(self.ids, found, missing)
        for each in np.delete(self.ids, missing).tolist():
            try:
                del self.cache[each]
            except KeyError:  # evicted meanwhile
                continue
        if len(self.cache.get_batch(self.ids)[1]) < len(self.ids):
            raise Wrong("deleted samples were found")


class Editor(Editing):
    """Edits the rows of all writers, and rebalances."""

    def __init__(self, place: Place, number: int, slots: Int64) -> None:
        super().__init__(place, number, ws.RecordStore.open(place.store, "a", chunk_size="1MB"), place.cache())
        self.slots = slots
        self.weights |= {
            self.update: 8,
            self.delete: 8,
            self.rebalance: 0.3,
            self.rebalance_cache: 0.2,
        }

    def rebalance(self) -> None:
        self.store.rebalance(progress=False)

    def rebalance_cache(self) -> None:
        self.cache.rebalance(progress=False)


class Reader(Worker):
    """Reads in a thread of a process whose threads share a store and a cache."""

    def __init__(self, place: Place, number: int, store: ws.RecordStore, cache: ws.FeatureCache) -> None:
        super().__init__(place, number, store, cache)
        self.weights |= {self.open: 0.3, self.open_cache: 0.2}

    def open(self) -> None:
        known = self.table.acked.copy()
        with ws.RecordStore.open(self.place.store) as store:
            columns = store.gather(slice(None))
        judge_all(columns, known, self.table.begun)

    def open_cache(self) -> None:
        ids = self.random.integers(0, self.place.sizes.ids // 16, 16)
        with self.place.cache() as cache:
            judge_cached(ids, *cache.get_batch(ids))


def run_reader(place: Place, numbers: list[int]) -> None:
    """Some threads that share a store and a cache."""
    store, cache = ws.RecordStore.open(place.store), place.cache()
    failures: list[str] = []

    def work(number: int) -> None:
        worker = Reader(place, number, store, cache)
        try:
            worker.work(number)
        except BaseException:
            failures.append(traceback.format_exc()[-3000:])
            worker.table.stop()

    threads = [threading.Thread(target=work, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    cache.close()
    if failures:
        raise AssertionError("\n".join(failures))


def run_worker(make: Callable[[Place, int], Worker], place: Place, numbers: list[int]) -> None:
    """One worker with a store and a cache of its own."""
    worker = make(place, numbers[0])
    worker.work(numbers[0])
    worker.close()
    worker.store.close()
    worker.cache.close()
