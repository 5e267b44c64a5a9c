"""TierStore: the record store of the samples of one kind in a tier, and which of its rows are in use."""

import contextlib
from pathlib import Path
from typing import Any, final

import numpy as np

from warmstore.errors import StoreExists
from warmstore.loading.samplers.counter_rng import UInt64
from warmstore.pipeline.tiers.sample_schema import SAMPLE, SampleSchema
from warmstore.pipeline.tiers.tier_quota import QuotaFiles
from warmstore.records.keyed_store import KeyedStore, read_keys
from warmstore.records.local_store import LocalStore
from warmstore.records.write.write_options import WriteOptions
from warmstore.storage.quota import ByteQuota

_MOST_ROWS = 1 << 30


@final
class TierStore(KeyedStore):
    """A row's key is the index of its sample and the hash of the sample's inputs. Rows are found by `rows[index]`.

    Args:
        kind: 0 for the store of most samples, 1 for that of the others.
        rows, members, identities: see `SampleStore`.

    records: rows that were taken in. stale: those of samples that have changed or belong to another store now.
    """

    def __init__(
        self, path: Path, quota: ByteQuota, kind: int, rows: np.ndarray[Any, Any], members: Any, identities: UInt64
    ) -> None:
        super().__init__(
            LocalStore.open_folder(path, "a", writing=WriteOptions.of(writer_threads=1), files=QuotaFiles(quota)),
            SAMPLE,
        )
        self.records = self.stale = 0
        self._kind = kind
        self._rows = rows
        self._members = members
        self._identities = identities

    def catch_up(self) -> None:
        total = min(self.store.snapshot.length, _MOST_ROWS)
        if total <= self.records:
            return
        rows = np.arange(self.records, total)
        keys, bad = read_keys(self.store.gatherer, SAMPLE, rows)
        samples, identities = keys.halves.T
        index = np.minimum(samples, len(self._rows) - 1).astype(np.int64)
        current = (samples < len(self._rows)) & (self._identities[index] == identities) & self._members[index]
        if bad is not None:
            current &= ~bad
        self._rows[index[current]] = 2 * rows[current] + self._kind
        self.records = total
        self.stale += len(rows) - int(current.sum())


def create_tier_store(path: Path, schema: SampleSchema, quota: ByteQuota) -> None:
    """Create the store unless another process has created it."""
    with contextlib.suppress(StoreExists):
        LocalStore.create(path, schema.store_fields, files=QuotaFiles(quota)).close(seal=False)
