"""The hot tier of a cache: rows in RAM or on a device, for this process alone and bounded in bytes.

Direct-mapped cache: slot = row % slots. A slot stores its row number and key, and a hit must match both. On a collision
the newcomer replaces the resident with probability 1/16, unless the resident's CLOCK bit is set: epochs visit every row
once, so both rows are worth the same, and a replacement costs a copy.
"""

import contextlib
import logging
import threading
import weakref
from typing import Any, Protocol

import numpy as np
import torch

from warmstore.features.keyed.hot_columns import InMemory, columns_of
from warmstore.features.keyed.row_values import Values
from warmstore.features.outputs.output_schema import KEY, OutputSchema
from warmstore.records.index.sample_keys import Keys
from warmstore.records.keyed_store import read_keys
from warmstore.records.read.gather import Gatherer
from warmstore.storage.array_types import Int64
from warmstore.storage.humanize import parse_size
from warmstore.storage.memory.memory_limits import available_memory

_log = logging.getLogger("warmstore")


ALL = "all"
_PLACE = 8 + 16 + 1  # bytes of a slot without the row's values: the row number, the key, the CLOCK bit
_ADMITTED = 1 / 16
_SPARE = 1.5  # slots per present row: caches grow
_AVAILABLE = 0.8  # share of the free memory that a whole cache may take
_BLOCK_BYTES = 32 << 20


class StoredRows(Protocol):
    """The reader of rows on the disk: `CacheReader`."""

    schema: OutputSchema

    @property
    def gatherer(self) -> Gatherer:
        """The current gatherer, which row numbers refer to."""

    def stored(self, keys: Keys, rows: Int64) -> tuple[list[Values], Any]:
        """The values by leaf of the rows of some keys; and which are intact and have their key, bool [n], or None."""


class HotTier:
    """Keeps rows of one cache in memory after they were read. Safe to use from several threads.

    Args:
        size: the most bytes of the tier, bookkeeping included; or "all" to load the whole cache if it fits, and nothing
            otherwise.
        device: the device of leaves of fixed shape. Other leaves are in RAM.

    Raises:
        ValueError: the device cannot be used.
    """

    def __init__(self, size: int | str, device: torch.device | str) -> None:
        self._device = torch.device(device)
        try:
            torch.empty(1, device=self._device).cpu()
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise ValueError(f"hot_device is {str(device)!r}, which cannot be used here: {error}") from None
        self._limit = None if size == ALL else parse_size(size)
        self._sharers = 1
        self._table: _Table | None = None
        self._off = False
        self._refused = 0  # rows of a cache that did not fit
        self._lock = threading.Lock()
        self.hits = 0

    @property
    def nbytes(self) -> int:
        """Current bytes of the tier."""
        table = self._table
        return 0 if table is None else table.nbytes

    def share(self, sharers: int) -> None:
        """Drop all rows, and use at most 1/`sharers` of the bytes from now on."""
        with self._lock:
            self._sharers, self._table = sharers, None

    def close(self) -> None:
        """Free the memory, and stay empty."""
        self._off, self._table = True, None

    def after_fork(self) -> None:
        """Switch off in a forked child: each child would need the memory again, and devices do not survive a fork."""
        self._inherited = self._table  # not freed in the child, which cannot call the device
        self._off, self._table, self._lock = True, None, threading.Lock()

    def read(self, source: StoredRows, keys: Keys, rows: Int64) -> tuple[list[Values], Any]:
        """Like `source.stored`, which is called for rows that are not in the tier.

        Args:
            rows: int64 [n], below `source.gatherer.snapshot.rows`.
        """
        gatherer = source.gatherer
        if self._limit is None:
            self._load_all(source, gatherer)
        table = self._table
        hot, values = _NOWHERE if table is None or not table.belongs_to(gatherer) else table.read(keys, rows)
        if hot is None:
            self.hits += len(rows)
            return values, None
        if table is None or not values:
            values, good = source.stored(keys, rows)
            self._keep(source, gatherer, keys, rows, values, good)
            return values, good
        cold = np.flatnonzero(~hot)
        self.hits += len(rows) - len(cold)
        cold_values, cold_good = source.stored(keys.take(cold), rows[cold])
        self._keep(source, gatherer, keys.take(cold), rows[cold], cold_values, cold_good)
        good = None
        if cold_good is not None:
            good = np.ones(len(rows), bool)
            good[cold] = cold_good
        parts = zip(table.columns, values, cold_values, strict=True)
        return [column.overlaid(hot_rows, cold, cold_rows) for column, hot_rows, cold_rows in parts], good

    def _keep(
        self, source: StoredRows, gatherer: Gatherer, keys: Keys, rows: Int64, values: list[Values], good: Any
    ) -> None:
        # If another thread holds the lock, the rows are not kept: they can be read again.
        if self._off or not self._lock.acquire(blocking=False):
            return
        try:
            which = np.arange(len(rows)) if good is None else np.flatnonzero(good)
            table = self._room(source, gatherer, values) if len(which) else None
            if table is not None:
                table.insert(keys, rows, values, which)
        finally:
            self._lock.release()

    def _room(self, source: StoredRows, gatherer: Gatherer, sample: list[Values]) -> "_Table | None":
        """The table for a gatherer's rows. A table that is too small is replaced by a new one."""
        table, total = self._table, gatherer.snapshot.rows
        if table is not None and table.belongs_to(gatherer) and (total <= table.places or table.full_size):
            return table
        if self._limit is None:
            return None
        self._table = None  # freed before the next table is allocated: both may exceed the limit
        columns = columns_of(source.schema, self._device)
        slot_bytes, limit = _slot_bytes(columns, sample), self._limit // self._sharers
        wanted, most = int(total * _SPARE) + 1024, limit // slot_bytes
        if not most:
            if not self._refused:
                _log.warning(
                    "hot_size=%d is too small for rows of %d bytes: no row is kept in memory", limit, slot_bytes
                )
            self._refused = total
            return None
        self._table = _Table(gatherer, columns, min(wanted, most), limit, full_size=wanted >= most)
        return self._table

    def _load_all(self, source: StoredRows, gatherer: Gatherer) -> None:
        """Load all rows unless they are loaded already or do not fit."""
        table, snapshot = self._table, gatherer.snapshot
        if table is not None and table.belongs_to(gatherer) and snapshot.rows <= table.places:
            return
        if self._off or snapshot.rows <= self._refused or not self._lock.acquire(blocking=False):
            return
        try:
            self._table = table = None  # freed before the next table is allocated: both may exceed the limit
            rows = snapshot.rows_at(np.arange(snapshot.length))
            columns = columns_of(source.schema, self._device)
            sample = source.stored(read_keys(gatherer, KEY, rows[:256])[0], rows[:256])[0]
            slot_bytes = _slot_bytes(columns, sample)
            available = int(_AVAILABLE * _free_bytes(self._device)) // self._sharers
            slots = min(int(snapshot.rows * _SPARE) + 1024, available // slot_bytes)
            fits = False
            if slots >= snapshot.rows:
                with contextlib.suppress(MemoryError, torch.OutOfMemoryError):
                    table = _Table(gatherer, columns, slots, available, full_size=False)
                    fits = _fill(table, source, gatherer, rows, max(_BLOCK_BYTES // slot_bytes, 1))
            if fits:
                self._table = table
            else:
                _log.warning(
                    "hot_size='all': %d rows of about %d bytes do not fit into the %d MB that are free on %s; they are "
                    "read from the disk. Pass a size as hot_size to keep a part of them",
                    *(snapshot.rows, slot_bytes, available >> 20, self._device),
                )
                self._refused = int(_SPARE * snapshot.rows)
        finally:
            self._lock.release()


_NOWHERE: tuple[Any, list[Values]] = np.zeros(0, bool), []


class _Table:
    """Slots for rows. Writers hold the tier's lock. Readers detect concurrent writes by a sequence number.

    Args:
        limit: the most bytes of the table.
        full_size: whether the table has all slots that the limit allows, so that rows compete for them.
    """

    def __init__(
        self, gatherer: Gatherer, columns: list[InMemory], places: int, limit: int, *, full_size: bool
    ) -> None:
        self.places = places
        self.full_size = full_size
        self.columns = columns
        self._gatherer = weakref.ref(gatherer)
        self._limit = limit
        self._rows = np.full(places, -1, np.int64)
        self._keys = np.zeros(places, "V16")
        self._seen = np.zeros(places, bool)
        self._random = np.random.default_rng(0)
        self._writes = 0
        self._hand = 0
        for column in columns:
            column.make(places)
        self._fixed = _PLACE * places + sum(column.nbytes for column in columns)

    @property
    def nbytes(self) -> int:
        return self._fixed + sum(column.held for column in self.columns)

    def belongs_to(self, gatherer: Gatherer) -> bool:
        return self._gatherer() is gatherer

    def read(self, keys: Keys, rows: Int64) -> tuple[Any, list[Values]]:
        """Which rows are present, bool [n], or None for all; and the values, which are undefined for absent rows."""
        writes = self._writes
        at = rows % self.places
        resident, resident_keys = self._rows[at], self._keys[at]
        hot = None
        if resident.tobytes() != rows.tobytes() or resident_keys.tobytes() != keys.halves.tobytes():
            hot = (resident == rows) & (resident_keys.view(np.uint64).reshape(-1, 2) == keys.halves).all(axis=1)
            if not hot.any():
                return hot, []
        values = [column.gather(at) for column in self.columns]
        if self._writes != writes or writes & 1:
            return np.zeros(len(rows), bool), []  # the values may mix two rows
        if self.full_size:
            self._seen[at if hot is None else at[hot]] = True
        return hot, values

    def insert(self, keys: Keys, rows: Int64, values: list[Values], which: Int64) -> bool:
        """Insert the rows that get a slot. False if a row exceeded the limit."""
        at, first = np.unique(rows[which] % self.places, return_index=True)
        which = which[first]
        resident, new = self._rows[at], rows[which]
        taken = (resident >= 0) & (resident != new)
        may_replace = self._random.random(len(at)) < _ADMITTED
        admitted = (resident != new) & (~taken | (may_replace & ~self._seen[at]))
        self._seen[at[taken & may_replace]] = False
        at, which, may_replace = at[admitted], which[admitted], may_replace[admitted]
        columns = list(zip(self.columns, values, strict=True))
        sizes = np.sum([column.sizes(column_rows[which]) for column, column_rows in columns], axis=0)
        # An odd number: a write is in progress, and readers discard what they read. It is even afterwards in any case.
        self._writes |= 1
        try:
            self._empty(at)
            fits = self._make_room(sizes, may_replace) if sizes.any() else np.ones(len(at), bool)
            at, which = at[fits], which[fits]
            for column, column_rows in columns:
                column.put(at, column_rows[which])
            self._keys[at] = keys.halves[which].view("V16")[:, 0]
            self._rows[at] = rows[which]
        except BaseException:
            self._empty(at)
            raise
        finally:
            self._writes += 1
        return bool(fits.all())

    def _empty(self, at: Int64) -> None:
        self._rows[at] = -1
        self._seen[at] = False
        for column in self.columns:
            column.forget(at)

    def _make_room(self, sizes: Int64, may_replace: Any) -> Any:
        """Which rows, of these sizes in bytes, fit: bool [n]. Rows that may replace evict residents in turn."""
        fits = np.zeros(len(sizes), bool)
        room = self._limit - self.nbytes
        for number, (size, replaces) in enumerate(zip(sizes.tolist(), may_replace.tolist(), strict=True)):
            steps = 0
            while size > room and replaces and steps < 64:
                steps += 1
                place, self._hand = self._hand, (self._hand + 1) % self.places
                if self._seen[place]:
                    self._seen[place] = False
                elif self._rows[place] >= 0:
                    before = self.nbytes
                    self._empty(np.array([place]))
                    room += before - self.nbytes
            fits[number] = size <= room
            room -= size if size <= room else 0
        return fits


def _fill(table: _Table, source: StoredRows, gatherer: Gatherer, rows: Int64, step: int) -> bool:
    """Insert rows in blocks of `step` rows. Returns whether they fit."""
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        keys, _ = read_keys(gatherer, KEY, part)
        values, good = source.stored(keys, part)
        if not table.insert(keys, part, values, np.arange(len(part)) if good is None else np.flatnonzero(good)):
            return False
    return True


def _slot_bytes(columns: list[InMemory], sample: list[Values]) -> int:
    """Bytes of a row and its bookkeeping. Sizes that vary are estimated from a sample."""
    return _PLACE + sum(column.expected(rows) for column, rows in zip(columns, sample, strict=True))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return available_memory()
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return 1 << 62  # unknown; an allocation that is too large raises, which `_load_all` handles
