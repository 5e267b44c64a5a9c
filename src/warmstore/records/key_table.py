"""A hash table in shared memory from 64-bit fingerprints to 8-byte values, made for looking up whole batches.

The table is cut into partitions by the top bits of a fingerprint, each a power of two of buckets, each bucket 16 slots
side by side, compared at once. A partition that fills up doubles by itself into fresh room at the end, so a flush pays
for the keys it brings and never for the table; partitions double at different fillings, so that their growth is spread
over time. Readers take no lock: a slot's value is written before its fingerprint, and a partition's new place is
published when it is complete. Whatever a torn or damaged slot says is checked by the caller against the key itself.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

UInt64 = np.ndarray[Any, np.dtype[np.uint64]]
Int64 = np.ndarray[Any, np.dtype[np.int64]]

PARTITIONS = 4096
SLOTS = 16
BUCKET = 2 * SLOTS  # words: fingerprints, then values
_SHIFT = np.uint64(52)
# A partition doubles when it is 40 % to 80 % full; the spread over a factor of two makes growth even.
_FULL = 0.4 * 2 ** (np.arange(PARTITIONS) / PARTITIONS)


class KeyTable:
    """A view on a table's memory.

    Args:
        directory: int64 [PARTITIONS], 0 for an empty partition, else its first bucket << 8 | log2 of its buckets.
        counts: int64 [PARTITIONS], keys in each partition.
        words: uint64, the buckets' memory from bucket 0 on, which stays empty; may reach beyond what is allocated.
        allocated: how many buckets exist now, and `allocate(n)`, which makes there be n and returns.
    """

    def __init__(
        self,
        directory: Int64,
        counts: Int64,
        words: UInt64,
        allocated: Callable[[], int],
        allocate: Callable[[int], None],
    ) -> None:
        self._directory = directory
        self._counts = counts
        self._words = words
        self._rows = words.reshape(-1, SLOTS)  # even rows are fingerprints, odd ones values
        self._allocated = allocated
        self._allocate = allocate

    def is_sound(self, keys: int) -> bool:
        """Whether every partition lies in memory that exists and overlaps no other, and none counts more than `keys`.

        Inserting trusts this: by a damaged place it would write anywhere, by a damaged count fill the disk.
        """
        directory, counts = self._directory, self._counts
        levels = directory & 0xFF
        if directory.min() < 0 or levels.max() > 40 or counts.min() < 0 or counts.max() > keys:
            return False
        used = directory > 0
        starts, sizes = directory[used] >> 8, np.int64(1) << levels[used]
        order = np.argsort(starts)
        starts, ends = starts[order], (starts + sizes)[order]
        edges = np.append(starts[1:], self._allocated())
        return not len(starts) or bool(starts[0] >= 1 and (ends <= edges).all())

    def lookup(self, fingerprints: UInt64) -> Int64:
        """The value of each fingerprint, or -1."""
        found = np.full(len(fingerprints), -1, np.int64)
        todo: Any = slice(None)
        wanted = fingerprints
        entry = self._directory[(fingerprints >> _SHIFT).view(np.int64)]
        probe = 0
        while True:
            base, mask = entry >> 8, (1 << (entry & 0xFF)) - 1
            bucket = base + ((wanted.view(np.int64) + probe) & mask)
            if len(bucket) and not 0 <= int(bucket.view(np.uint64).max()) < self._allocated():
                bucket = np.where((bucket >= 0) & (bucket < self._allocated()), bucket, 0)
            cells = self._rows[2 * bucket]
            hits = np.flatnonzero(cells == wanted[:, None])
            which, slot = hits >> 4, hits & 15
            values = self._words[bucket[which] * BUCKET + SLOTS + slot].view(np.int64)
            if probe == 0 and len(which) == len(wanted):
                found[which] = values
                return found
            at = np.arange(len(fingerprints))[todo]
            found[at[which]] = values
            # Only behind a full bucket may a key lie in the next one.
            more = cells[:, SLOTS - 1] != 0
            more[which] = False
            probe += 1
            more &= probe <= mask
            if not more.any():
                return found
            todo, wanted, entry = at[more], wanted[more], entry[more]

    def insert(self, fingerprints: UInt64, values: Int64) -> None:
        """Add keys, or give known ones their new value; of equal fingerprints the last one counts."""
        if not len(fingerprints):
            return
        _, last = np.unique(fingerprints[::-1], return_index=True)
        keep = len(fingerprints) - 1 - last
        fingerprints, values = fingerprints[keep], values[keep]
        self._make_room(np.bincount((fingerprints >> _SHIFT).view(np.int64), minlength=PARTITIONS))
        while len(fingerprints):
            added, left = self._place(self._directory, fingerprints, values)
            self._counts += np.bincount((added >> _SHIFT).view(np.int64), minlength=PARTITIONS)
            fingerprints, values = fingerprints[left], values[left]
            if len(fingerprints):  # counts lost in a crash may let a partition overflow
                crowded = np.unique(fingerprints >> _SHIFT).view(np.int64)
                self._grow(crowded, (self._directory[crowded] & 0xFF) + 1)

    def _make_room(self, coming: Int64) -> None:
        expected = self._counts + coming
        levels = np.where(self._directory > 0, self._directory & 0xFF, -1)
        capacity = np.where(levels >= 0, SLOTS << np.maximum(levels, 0), 0)
        small = np.flatnonzero(expected > capacity * _FULL)
        if not len(small):
            return
        needed = np.ceil(np.log2(np.maximum(expected[small] / (SLOTS * _FULL[small]), 1)))
        self._grow(small, np.maximum(needed.astype(np.int64), 0))

    def _grow(self, partitions: Int64, levels: Int64) -> None:
        """Copy partitions into fresh room of 2**level buckets each, then publish their new places."""
        sizes = np.int64(1) << levels
        first = max(self._allocated(), 1)
        starts = first + np.cumsum(sizes) - sizes
        self._allocate(int(first + sizes.sum()))
        directory = self._directory.copy()
        directory[partitions] = starts << 8 | levels
        cells = [
            self._words[(entry >> 8) * BUCKET :][: BUCKET << (entry & 0xFF)].reshape(-1, 2, SLOTS)
            for entry in self._directory[partitions].tolist()
            if entry
        ]
        if cells:
            moved = np.concatenate(cells)
            used = moved[:, 0] != 0
            self._place(directory, moved[:, 0][used], moved[:, 1][used].view(np.int64))
        self._directory[partitions] = directory[partitions]

    def _place(self, directory: Int64, fingerprints: UInt64, values: Int64) -> tuple[UInt64, Int64]:
        """Put distinct fingerprints where they belong; return those that are new, and which found no room."""
        entry = directory[(fingerprints >> _SHIFT).view(np.int64)]
        todo = np.arange(len(fingerprints))
        added = []
        probe = 0
        while len(todo):
            wanted, local = fingerprints[todo], entry[todo]
            mask = (1 << (local & 0xFF)) - 1
            if probe > int(mask.max()):
                break
            bucket = (local >> 8) + ((wanted.view(np.int64) + probe) & mask)
            cells = self._rows[2 * bucket]
            known = np.flatnonzero(cells == wanted[:, None])
            old, slot = known >> 4, known & 15
            self._words[bucket[old] * BUCKET + SLOTS + slot] = values[todo[old]].view(np.uint64)
            fresh = np.ones(len(todo), bool)
            fresh[old] = False
            fresh = np.flatnonzero(fresh)
            used = np.count_nonzero(cells[fresh], axis=1)
            # Keys that meet in one bucket take its free slots in turn.
            order = np.argsort(bucket[fresh], kind="stable")
            sorted_bucket = bucket[fresh][order]
            rank = np.empty(len(fresh), np.int64)
            rank[order] = np.arange(len(fresh)) - np.searchsorted(sorted_bucket, sorted_bucket)
            slot = used + rank
            fits = slot < SLOTS
            place = bucket[fresh][fits] * BUCKET + slot[fits]
            self._words[place + SLOTS] = values[todo[fresh[fits]]].view(np.uint64)
            self._words[place] = wanted[fresh[fits]]
            added.append(wanted[fresh[fits]])
            todo = todo[fresh[~fits]]
            probe += 1
        return np.concatenate(added) if added else fingerprints[:0], todo
