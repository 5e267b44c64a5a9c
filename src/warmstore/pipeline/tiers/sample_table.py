"""SampleTable: where one process finds each cached sample of its source.

A row of a sample store carries the key of its sample: a hash of everything that the sample is made from. So rows are
found for any list of samples, whoever stored them. The join of keys and rows needs no index on the disk.
"""

from typing import Any, final

import numpy as np

from warmstore.identity.samples.sample_hashes import UInt64
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.storage.array_types import Bools

Placements = np.ndarray[Any, np.dtype[np.int16]]


@final
class SampleTable:
    """The cached samples of one source, as one process knows them: 22 bytes per sample.

    keys: uint64 [samples, 2], hashes of each sample's inputs. Not written to: replace the array.
    placement: int16 [samples], the number of the placement where a sample is cached; -1 for none.
    rows: int32 [samples], the row there: 2 * row, plus 1 in the store for other samples; -1 for a missing sample.
    """

    def __init__(self, keys: UInt64, placement: Placements) -> None:
        self.keys = keys
        self.placement = placement
        self.rows = np.full(len(keys), -1, np.int32)

    def found_in(self, number: int, kind: int) -> Int64:
        """The samples with a row in one store of a placement."""
        return np.flatnonzero((self.placement == number) & (self.rows >= 0) & ((self.rows & 1) == kind))

    def take_in(self, number: int, kind: int, keys: UInt64, rows: Int64) -> None:
        """Record rows for the samples that are missing in a placement. Of several rows with one key the last counts.

        Args:
            keys: uint64 [n, 2], of the rows. rows: int64 [n].
        """
        missing = self._missing(number)
        at = match(keys, self.keys[missing])
        self.rows[missing[at >= 0]] = 2 * rows[at[at >= 0]] + kind

    def samples_of(self, number: int, keys: UInt64) -> Int64:
        """The sample that is missing in a placement and has the key, for each of some keys; -1 for none: int64 [n]."""
        missing = self._missing(number)
        at = match(self.keys[missing], keys)
        found = np.full(len(keys), -1, np.int64)
        found[at >= 0] = missing[at[at >= 0]]
        return found

    def _missing(self, number: int) -> Int64:
        return np.flatnonzero((self.placement == number) & (self.rows < 0))

    def invalidate(self, samples: Int64 | Bools) -> None:
        """Mark samples as missing."""
        self.rows[samples] = -1


def match(keys: UInt64, wanted: UInt64) -> Int64:
    """The index of the last of some keys [n, 2] that equals a wanted one; -1 for none: int64 [wanted].

    Zeros are the key of a sample whose inputs are unknown, and equal no other.
    """
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(keys[:, 0], kind="stable")
    at = order[np.searchsorted(keys[:, 0], wanted[:, 0], side="right", sorter=order) - 1]
    return np.where((keys[at] == wanted).all(axis=1) & wanted.any(axis=1), at, -1)
