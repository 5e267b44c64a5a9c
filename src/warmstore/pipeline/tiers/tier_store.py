"""TierStore: the record store of the samples of one kind in a tier, and which of its rows are in use."""

import contextlib
from pathlib import Path
from typing import final

import numpy as np

from warmstore.errors import StoreExists
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.pipeline.tiers.chunk_leases import ChunkLeases, chunk_name
from warmstore.pipeline.tiers.sample_schema import SAMPLE, SampleSchema
from warmstore.pipeline.tiers.sample_table import SampleTable
from warmstore.pipeline.tiers.tier_about import read_about
from warmstore.pipeline.tiers.tier_quota import QuotaFiles
from warmstore.records.keyed_store import KeyedStore, read_keys
from warmstore.records.local_store import LocalStore
from warmstore.records.read.evicted_ranges import EvictedRanges
from warmstore.records.write.write_options import WriteOptions
from warmstore.storage.memory.address_space import SLOT
from warmstore.storage.quota import ByteQuota

KINDS = ("alike", "others")
"""The two stores of a version: of samples of the common schema, and of all others."""

_CHUNKS = 32  # into which a budget is cut: evicting one frees a small part of it
_LEAST_CHUNK = 1 << 18
_MOST_ROWS = 1 << 30
_AT_ONCE = 1 << 20  # rows whose keys are read at once


@final
class TierStore(KeyedStore):
    """A row's key is that of its sample, and `SampleTable` has the rows of this process's samples.

    Args:
        number: of the placement. kind: of the store; see `KINDS`.
    """

    def __init__(self, path: Path, quota: ByteQuota, number: int, kind: int, table: SampleTable) -> None:
        super().__init__(
            LocalStore._open_folder(path, "a", writing=_writing(quota), files=QuotaFiles(quota)),
            SAMPLE,
        )
        self._number = number
        self._kind = kind
        self._table = table
        self._known = 0  # rows whose keys were read
        self._evicted: EvictedRanges | None = None
        self._generation = self.store._manifest.generation
        self._leases = ChunkLeases(path)

    def catch_up(self) -> None:
        snapshot = self.store._snapshot
        total = min(snapshot.rows, _MOST_ROWS)
        evicted = snapshot.gaps
        generation = self.store._manifest.generation
        if total < self._known or generation != self._generation:  # the store was cut or rewritten: rows are renumbered
            self._table.invalidate(self._found())
            self._known, self._evicted, self._generation = 0, None, generation
        if total <= self._known and evicted is self._evicted:
            return
        if evicted is not None and evicted is not self._evicted:
            found = self._found()
            self._table.invalidate(found[evicted.holds(self._table.rows[found].astype(np.int64) >> 1)])
        self._evicted = evicted
        for first in range(self._known, total, _AT_ONCE):
            rows = np.arange(first, min(first + _AT_ONCE, total))
            if evicted is not None:
                rows = rows[~evicted.holds(rows)]
            if len(rows):
                keys, bad = read_keys(self.store._gatherer, SAMPLE, rows)
                good = slice(None) if bad is None else ~bad
                self._table.take_in(self._number, self._kind, keys.halves[good], rows[good])
        self._known = max(total, self._known)
        self._leases.hold(self._needed_chunks())

    def trim(self) -> None:
        """Free what this process's chunk was extended by, for other writers."""
        self.store._session.generation.trim()

    def positions(self, rows: Int64) -> Int64:
        """The positions of rows that are not evicted."""
        evicted = self.store._snapshot.gaps
        return rows if evicted is None else evicted.positions_of(rows)

    def close(self, *, seal: bool = True) -> None:
        super().close(seal=seal)
        self._leases.release()

    def abandon(self) -> None:
        super().abandon()
        self._leases.release()

    def _found(self) -> Int64:
        return self._table.found_in(self._number, self._kind)

    def _needed_chunks(self) -> list[str]:
        """The chunks of which this process needs at least half of the rows."""
        snapshot = self.store._snapshot
        if not snapshot.batches:
            return []
        chunks = snapshot.chunk[: snapshot.batches]
        ends = np.append(snapshot.first_row[1 : snapshot.batches], snapshot.rows)
        rows = np.bincount(chunks, ends - snapshot.first_row[: snapshot.batches])
        needed = np.bincount(
            chunks[snapshot.batch_of(self._table.rows[self._found()].astype(np.int64) >> 1)], minlength=len(rows)
        )
        folder = self.store._session.generation.folder.name
        return [chunk_name(folder, chunk) for chunk in np.flatnonzero((needed > 0) & (2 * needed >= rows)).tolist()]


def create_tier_store(path: Path, schema: SampleSchema, quota: ByteQuota) -> None:
    """Create the store unless another process has created it. Its metadata describe the version, for other hosts.

    Nothing is created where the description of the version was removed or damaged meanwhile.
    """
    about = read_about(path.parent)
    if about is None:
        return
    steps = [{**step, "facts": {}} for step in about["steps"]]
    metadata = {"kind": path.name, "steps": steps, "schema": about["schema"]}
    with contextlib.suppress(StoreExists):
        LocalStore.create(path, schema.store_fields, metadata=metadata, files=QuotaFiles(quota)).close(seal=False)


def _writing(quota: ByteQuota) -> WriteOptions:
    return WriteOptions.of(chunk_bytes(quota.limit), writer_threads=1)


def chunk_bytes(limit: int) -> int:
    """Bytes of a chunk in a tier of `limit` bytes."""
    return max(_LEAST_CHUNK, min(SLOT, limit // _CHUNKS))
