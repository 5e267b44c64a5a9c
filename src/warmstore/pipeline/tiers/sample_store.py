"""A sample store: the samples after one step in one tier, as one process finds, reads and adds them.

It consists of two record stores: one with a field per leaf for samples of the common schema, and one for all others,
created with the first of them. Every process reads from the stores which samples they hold.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.errors import UnsupportedType, WarmstoreError
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.pipeline.tiers.flattening import flatten
from warmstore.pipeline.tiers.sample_schema import SAMPLE, SampleSchema
from warmstore.pipeline.tiers.sample_spec import TreeSpec, marked_alike
from warmstore.pipeline.tiers.sample_staging import Staging
from warmstore.pipeline.tiers.sample_table import SampleTable
from warmstore.pipeline.tiers.tier_quota import is_quota_exceeded
from warmstore.pipeline.tiers.tier_store import KINDS, TierStore, create_tier_store
from warmstore.pipeline.tiers.unflattening import Undecodable
from warmstore.records.format.encoded_rows import EncodedRows
from warmstore.records.format.record_batch import batch_size
from warmstore.records.format.value_encoding import compressed
from warmstore.records.write.write_buffer import largest_record
from warmstore.storage.array_types import Bools
from warmstore.storage.lease import UsageLease
from warmstore.storage.memory.address_space import SLOT
from warmstore.storage.quota import ByteQuota

_log = logging.getLogger("warmstore")

FLUSH = 12 << 20
"""Bytes of samples that a process buffers before it writes, at most; less for small budgets."""

_LEAST_FLUSH = 1 << 20
_PARTS = 64
_LEAST_SAMPLE = 1 << 8  # least bytes per sample when buffers are sized, so that none has millions of slots

_AT_ONCE = 4 << 20  # bytes of fixed shape that are read before the remaining steps run
_UNCACHED_AGAIN = 32 << 20
_ENTRY = 64
LAST_WRITE = 3 * 4096
"""Bytes that rounding up to pages adds to a write, at most: chunk, log and the header of a new chunk."""

_MANIFEST = 8 * 4096  # of an empty store


class Missing:
    """Stands for a value that is not cached or cannot be read."""


MISSING = Missing()


@dataclass(frozen=True)
class StoreLocation:
    """Where a sample store is, for any process.

    number: of the placement. step: number of steps before it. name: for messages. folder: of the version. quota: of the
    tier. schema: of most samples; None if they have nothing in common. codec: of their values. direct: drop read
    pages from the page cache. tier: memory or disk.
    """

    number: int
    step: int
    name: str
    folder: Path
    quota: ByteQuota
    schema: SampleSchema | None
    codec: str
    direct: bool
    tier: str


class SampleStore:
    """One process's view of a sample store; not thread-safe.

    Args:
        table: the samples of this process's source, with their rows. Shared by all its sample stores; each writes the
            rows of its own samples.
        may_write: tells which pending samples, int64 [n], may be written, bool [n]: those with unchanged inputs and
            steps.
    """

    def __init__(
        self,
        place: StoreLocation,
        table: SampleTable,
        may_write: Callable[[Int64], Bools],
    ) -> None:
        self.place = place
        self.notes: list[str] = []
        self.writes = True
        self._refuses = False
        self._is_full = False
        self.table = table
        self._may_write = may_write
        self._pending: set[tuple[int, int]] = set()  # keys of those that are staged, or that cannot be stored
        self._read_since = 0
        self._stacks = True  # whether records can be stacked without unflattening, until it is known
        self._lease = UsageLease(place.folder)
        schemas = (place.schema, SampleSchema.of_bytes(place.codec))
        self.schemas: tuple[SampleSchema | None, SampleSchema] = schemas
        self._limit = flush_bytes(place.quota.limit)
        self._staged = [
            None if schema is None else Staging(schema, -(-self._limit // max(schema.width, _LEAST_SAMPLE)))
            for schema in schemas
        ]
        width = 0 if place.schema is None else place.schema.width
        self.at_once = max(1, _AT_ONCE // max(width, 1))  # samples to read at once, at most
        self._stores: list[TierStore | None] = [None, None]
        try:
            self.refresh()
        except BaseException:
            self.abandon()
            raise

    def refresh(self) -> None:
        """Read which samples other processes have added."""
        if self._refuses:
            return
        for kind, schema in enumerate(self.schemas):
            store = self._stores[kind]
            if store is None and schema is not None:
                store = self._stores[kind] = self._open(kind)
            if store is not None:
                store.refresh()

    def read(self, rows: Int64) -> list[Any]:
        """The values at some `rows`, each in its own memory; `MISSING` for those that are damaged or not decodable.

        A `Marked` is a value with parts that were in outside memory.
        """
        values: list[Any] = [MISSING] * len(rows)
        errors = []
        for kind, (store, schema) in enumerate(zip(self._stores, self.schemas, strict=True)):
            at = np.flatnonzero((rows & 1) == kind)
            if not len(at) or store is None or schema is None:
                continue
            try:
                found = schema.decode(store.store.gather(store.positions(rows[at] >> 1), schema.names))
            except (OSError, Undecodable) as error:
                found = self._read_singly(store, schema, rows[at] >> 1)
                errors.append((store, rows[at][[value is MISSING for value in found]] >> 1, error))
            for place, value in zip(at.tolist(), found, strict=True):
                values[place] = value
        if errors:
            self.look_for_others()  # after all is read: the rows of a store that was rewritten have other numbers then
        for damaged, missing, reason in errors:
            self._tell_damage(damaged, missing, reason)
        self._after_reading(len(rows))
        return values

    def read_stacked(self, rows: Int64) -> Any:
        """The same values stacked as a batch; None if that takes unflattening them."""
        store, schema = self._stores[0], self.schemas[0]
        if store is None or schema is None or not self._stacks or (rows & 1).any():
            return None
        try:
            batch = schema.stacked(store.store.gather(store.positions(rows >> 1), schema.names))
        except OSError:
            return None
        self._stacks = batch is not None
        if self._stacks:
            self._after_reading(len(rows))
        return batch

    def wants(self, index: int) -> bool:
        """Whether to add a sample after it is computed."""
        return self.writes and self._key(index) not in self._pending

    def _key(self, index: int) -> tuple[int, int]:
        first, second = self.table.keys[index].tolist()
        return first, second

    def add(self, index: int, value: Any) -> None:
        """Copy a sample's value into the buffer. A later flush writes it."""
        try:
            taken = flatten(value, copy=False)
        except UnsupportedType as error:
            self.leave_out(index, error)
        else:
            self.add_taken(index, *taken)

    def leave_out(self, index: int, error: UnsupportedType) -> None:
        """Do not store a sample: it is computed every time."""
        self._note(f"{self.place.name}: sample {index:,} cannot be kept, so it is computed every time: {error}")
        self._pending.add(self._key(index))

    def refuse(self, reason: object) -> None:
        """Store nothing from now on, and mark all samples as missing."""
        self.writes = False
        self._refuses = True
        self._clear()
        self.table.invalidate(self.table.placement == self.place.number)
        self._note(f"{self.place.name}: nothing is kept here, and samples are computed every time: {reason}")

    def add_taken(self, index: int, structure: TreeSpec, leaves: list[Any]) -> None:
        """Copy a flattened sample into the buffer."""
        alike = self.schemas[0]
        if alike is not None and alike.structure is not None:
            structure, leaves = marked_alike(alike.structure, structure, leaves)
        staging = self._staged[0 if alike is not None and alike.fits(structure, leaves) else 1]
        assert staging is not None
        if staging.is_full or sum(each.nbytes for each in self._staged if each is not None) >= self._limit:
            self.flush()
        key = self._key(index)
        staging.add(index, key, structure, leaves)
        self._pending.add(key)

    def replace(self, index: int, structure: TreeSpec, leaves: list[Any]) -> None:
        """Replace the value of the sample that was added last."""
        self.take_back(index)
        self.add_taken(index, structure, leaves)

    def take_back(self, index: int) -> None:
        """Remove the sample that was added last from the buffer."""
        for staging in self._staged:
            if staging is not None:
                staging.drop(index)
        self._pending.discard(self._key(index))

    def flush(self) -> None:
        """Write the buffered samples, as far as the quota allows."""
        if not any(self._staged):
            return
        staged = np.concatenate([staging.indices for staging in self._staged if staging])
        try:
            if self.writes:
                self.refresh()
            for kind, staging in enumerate(self._staged):
                if not staging or not self.writes:
                    continue
                indices = staging.indices
                # A sample that has changed since it was staged may have been computed from what it is now.
                allowed = self._may_write(indices) & (staging.keys == self.table.keys[indices]).all(axis=1)
                self._pending.difference_update(map(self._key, indices[~allowed].tolist()))
                fresh = (self.table.rows[indices] < 0) & allowed  # another process may have added some
                if fresh.any():
                    self._write(kind, staging.take(fresh))
        except (OSError, WarmstoreError) as error:
            self._stop_writing(error)
        finally:
            # Those that did not fit may be added again; those that could not be written may not.
            done = staged if self._is_full else staged[self.table.rows[staged] >= 0]
            self._pending.difference_update(map(self._key, done.tolist()))
            self._clear()

    def look_for_others(self) -> None:
        """`refresh`, if the disk allows: what this process has found before stays, and the rest is computed."""
        try:
            self.refresh()
        except (OSError, WarmstoreError) as error:
            self._stop_writing(error)

    def _stop_writing(self, error: Exception) -> None:
        if self.writes or self._is_full:
            self._note(
                f"{self.place.name}: nothing more is kept here, and what is missing is computed every time: {error}"
            )
        self.writes = self._is_full = False

    def _clear(self) -> None:
        for staging in self._staged:
            if staging is not None:
                staging.clear()

    def close(self) -> None:
        """Write the buffered samples and close the stores. Idempotent."""
        self.flush()
        for store in self._stores:
            if store is not None:
                try:
                    store.close(seal=False)
                except (OSError, WarmstoreError) as error:  # everything is written, and their files keep their sizes
                    _log.warning("%s: %s", self.place.name, error)
                    store.abandon()
        self._stores = [None, None]
        self._lease.release()

    def abandon(self) -> None:
        """Release the stores without writing: a forked child must not change its parent's files."""
        self._clear()
        for store in self._stores:
            if store is not None:
                store.abandon()
        self._stores = [None, None]
        self._lease.release()

    def _write(self, kind: int, block: dict[str, EncodedRows]) -> None:
        schema = self.schemas[kind]
        assert schema is not None
        fields = schema.store_fields
        block = {name: compressed(fields[name], rows, 1) for name, rows in block.items()}
        while count := block[SAMPLE].count:
            store = self.store_of(kind)
            if store is None:
                return
            if largest_record(block) > SLOT // 2:
                if count == 1:
                    self._note(f"{self.place.name}: samples larger than 512 MiB are not kept")
                    return
                self._write(kind, _part(block, 0, count // 2))
                block = _part(block, count // 2, count)
                continue
            size = batch_size(fields, block) + _ENTRY + LAST_WRITE + schema.head_bytes
            left = self.place.quota.free(size)
            fitting = count if size <= left else count * max(left - LAST_WRITE, 0) // size
            if not fitting:
                self._full()
                return
            try:
                store.commit(_part(block, 0, fitting))
            except OSError as error:
                if not is_quota_exceeded(error):
                    raise
                block = _part(block, 0, count // 2)  # another process took the free bytes
                continue
            block = _part(block, fitting, count)

    def trim(self) -> None:
        """Free what this process's files are extended by beyond their content."""
        for store in self._stores:
            if store is not None:
                store.trim()

    def try_again(self) -> None:
        """Write again after the budget was used up, if another process has freed bytes since."""
        if self._is_full and self.place.quota.free() >= self._width() + LAST_WRITE:
            self.writes, self._is_full = True, False

    def _full(self) -> None:
        self.writes, self._is_full = False, True
        _log.info("%s: the budget of %s bytes is used up", self.place.name, f"{self.place.quota.limit:,}")

    def _open(self, kind: int) -> TierStore | None:
        path = self._path(kind)
        if not path.exists():
            return None
        return TierStore(path, self.place.quota, self.place.number, kind, self.table)

    def store_of(self, kind: int) -> TierStore | None:
        """The store of a kind, created if it is missing; None if the quota has no bytes for it."""
        schema = self.schemas[kind]
        assert schema is not None
        return self._stores[kind] or self._create(kind, schema)

    def _create(self, kind: int, schema: SampleSchema) -> TierStore | None:
        if self.place.quota.free(_MANIFEST) < _MANIFEST:
            self._full()
            return None
        create_tier_store(self._path(kind), schema, self.place.quota)
        self._stores[kind] = self._open(kind)
        return self._stores[kind]

    def _path(self, kind: int) -> Path:
        return self.place.folder / KINDS[kind]

    def _read_singly(self, store: TierStore, schema: SampleSchema, rows: Int64) -> list[Any]:
        """Read values one by one; `MISSING` for damaged, evicted and undecodable ones."""
        values = []
        for position in store.positions(rows).tolist():
            try:
                values += schema.decode(store.store.gather([position], schema.names))
            except (OSError, Undecodable):
                values.append(MISSING)
        return values

    def _tell_damage(self, store: TierStore, rows: Int64, error: Exception) -> None:
        """Tell that the values at some rows could not be read, unless they are evicted."""
        evicted = store.store._snapshot.gaps
        if evicted is None or not evicted.holds(rows).all():
            what = "cannot be restored" if isinstance(error, Undecodable) else "are damaged"
            self._note(f"{self.place.name}: some cached samples {what}; they are computed anew: {error}")

    def invalidate(self, index: int) -> None:
        """Mark a sample as missing, so that it is computed and added again."""
        self.table.rows[index] = -1
        self._pending.discard(self._key(index))

    def _after_reading(self, count: int) -> None:
        if not self.place.direct:
            return
        self._read_since += count
        if self._read_since * self._width() >= _UNCACHED_AGAIN:
            self._read_since = 0
            self.drop_pages()

    def _width(self) -> int:
        return max(1, self.place.quota.used() // max(int((self.table.rows >= 0).sum()), 1))

    def drop_pages(self) -> None:
        """Drop the pages that were read from this process and from the page cache."""
        for path in self._chunks():
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fdatasync(descriptor)  # only clean pages can be dropped
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)

    def _chunks(self) -> Iterator[Path]:
        for store in self._stores:
            if store is not None:
                generation = store.store._session.generation
                generation.batches.chunks.drop_pages()
                yield from sorted(generation.folder.glob("*.arrow"))

    def _note(self, text: str) -> None:
        _log.warning("%s", text)
        self.notes.append(text)


def flush_bytes(limit: int) -> int:
    """Bytes of samples that a process buffers before it writes to a tier of `limit` bytes."""
    return min(FLUSH, max(_LEAST_FLUSH, limit // _PARTS))


def _part(block: dict[str, EncodedRows], first: int, last: int) -> dict[str, EncodedRows]:
    return {name: rows.slice(first, last) for name, rows in block.items()}
