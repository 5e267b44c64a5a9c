"""A hash table in shared memory from 64-bit fingerprints to 8-byte values, made for looking up whole batches.

The table is cut into partitions by the top bits of a fingerprint, each a power of two of buckets by the bits below,
each bucket 16 slots side by side, compared at once. So memory is in the order of fingerprints, and inserts visit it in
order. A partition that fills up doubles by itself into fresh room at the end, so a flush pays for the keys it brings
and never for the table; partitions double at different fillings, so that their growth is spread over time. Readers
take no lock: a slot's value is written before its fingerprint, and a partition's new place is published when it is
complete. Whatever a torn or damaged slot says is checked by the caller against the key itself.
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
_ONES = np.uint64(0x0101010101010101)
_AT_ONCE = 1 << 14  # keys whose buckets stay in the processor's caches from reading to writing
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
        self._known = 0  # buckets that were seen to exist; there are never fewer

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

    @property
    def keys(self) -> int:
        """How many keys are in the table."""
        return int(self._counts.sum())

    def lookup(self, fingerprints: UInt64) -> Int64:
        """The value of each fingerprint, or -1."""
        found = np.full(len(fingerprints), -1, np.int64)
        todo: Any = slice(None)
        wanted = fingerprints
        base, mask, home = _parts(fingerprints, self._directory[partitions_of(fingerprints)])
        probe = 0
        while True:
            bucket = base + ((home + probe) & mask)
            if len(bucket) and int(bucket.view(np.uint64).max()) >= self._known:
                self._known = self._allocated()
                bucket = np.where((bucket >= 0) & (bucket < self._known), bucket, 0)
            cells = self._rows.take(2 * bucket, axis=0)
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
            todo, wanted, base, mask, home = at[more], wanted[more], base[more], mask[more], home[more]

    def insert(self, fingerprints: UInt64, values: Int64) -> None:
        """Add keys, or give known ones their new value; of equal fingerprints the last one counts."""
        if not len(fingerprints):
            return
        # In the order of the table's memory, which a random one would visit at half the speed.
        order = _sorting(fingerprints)
        ordered = fingerprints[order]
        if _alike(ordered):
            _, last = np.unique(fingerprints[::-1], return_index=True)
            order = len(fingerprints) - 1 - last
            ordered = fingerprints[order]
        fingerprints, values = ordered, values[order]
        self._make_room(np.bincount(partitions_of(fingerprints), minlength=PARTITIONS))
        while len(fingerprints):
            added, left = self._place(self._directory, fingerprints, values)
            self._counts += added
            fingerprints, values = fingerprints[left], values[left]
            if len(fingerprints):  # counts lost in a crash may let a partition overflow
                crowded = np.unique(partitions_of(fingerprints))
                self._grow(crowded, (self._directory[crowded] & 0xFF) + 1)

    def entries(self, first: int, most: int) -> tuple[int, UInt64, Int64]:
        """What lies in the partitions from `first` on, one at least and otherwise about `most` keys of them.

        Returns:
            The partition after the last, and fingerprints and values, [n] each.
        """
        last = first + 1 + int(np.searchsorted(np.cumsum(self._counts[first + 1 :]), most, side="right"))
        return last, *self._contents(np.arange(first, last))

    def clear(self, partitions: Int64) -> None:
        """Forget the keys in these partitions."""
        self._directory[partitions] = 0
        self._counts[partitions] = 0

    def _contents(self, partitions: Int64) -> tuple[UInt64, Int64]:
        cells = [
            self._words[(entry >> 8) * BUCKET :][: BUCKET << (entry & 0xFF)].reshape(-1, 2, SLOTS)
            for entry in self._directory[partitions].tolist()
            if entry
        ]
        every = np.concatenate([np.zeros((0, 2, SLOTS), np.uint64), *cells])
        used = every[:, 0] != 0
        return every[:, 0][used], every[:, 1][used].view(np.int64)

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
        fingerprints, values = self._contents(partitions)
        if len(fingerprints):
            order = _sorting(fingerprints)
            fingerprints, values = fingerprints[order], values[order]
            left = self._place_in_empty(directory, fingerprints, values)
            self._place(directory, fingerprints[left], values[left])
        self._directory[partitions] = directory[partitions]

    def _place_in_empty(self, directory: Int64, fingerprints: UInt64, values: Int64) -> Int64:
        """Put sorted fingerprints into the first slots of their empty buckets; return which found no room."""
        base, mask, home = _parts(fingerprints, directory[partitions_of(fingerprints)])
        bucket = base + (home & mask)
        slot = _ranks(bucket)
        fits = np.flatnonzero(slot < SLOTS)
        place = bucket[fits] * BUCKET + slot[fits]
        self._words[place + SLOTS] = values[fits].view(np.uint64)
        self._words[place] = fingerprints[fits]
        return np.flatnonzero(slot >= SLOTS)

    def _place(self, directory: Int64, fingerprints: UInt64, values: Int64) -> tuple[Int64, Int64]:
        """Put sorted fingerprints where they belong; return how many are new per partition, and which found no room."""
        added = np.zeros(PARTITIONS, np.int64)
        left = [np.zeros(0, np.int64)]
        for first in range(0, len(fingerprints), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            new, todo = self._place_part(directory, fingerprints[part], values[part])
            added += np.bincount(partitions_of(new), minlength=PARTITIONS)
            left.append(todo + first)
        return added, np.concatenate(left)

    def _place_part(self, directory: Int64, wanted: UInt64, values: Int64) -> tuple[UInt64, Int64]:
        todo = np.arange(len(wanted))
        base, mask, home = _parts(wanted, directory[partitions_of(wanted)])
        added = [wanted[:0]]
        probe = 0
        while len(todo) and probe <= int(mask.max()):
            bucket = base + ((home + probe) & mask)
            cells = self._rows.take(2 * bucket, axis=0)
            known = np.flatnonzero(cells == wanted[:, None])
            halves = (cells != 0).view(np.uint64)  # of each row, a byte a slot; the product's highest byte is their sum
            used = ((halves[:, 0] + halves[:, 1]) * _ONES >> np.uint64(56)).view(np.int64)
            if len(known):
                old, slot = known >> 4, known & 15
                self._words[bucket[old] * BUCKET + SLOTS + slot] = values[old].view(np.uint64)
                fresh = np.ones(len(todo), bool)
                fresh[old] = False
                todo, base, mask, home, bucket, used = (one[fresh] for one in (todo, base, mask, home, bucket, used))
                wanted, values = wanted[fresh], values[fresh]
            # Keys that meet in one bucket take its free slots in turn.
            slot = used + _ranks(bucket)
            fits = slot < SLOTS
            place = (bucket * BUCKET + slot)[fits]
            self._words[place + SLOTS] = values[fits].view(np.uint64)
            self._words[place] = wanted[fits]
            added.append(wanted[fits])
            todo, base, mask, home = (one[~fits] for one in (todo, base, mask, home))
            wanted, values = wanted[~fits], values[~fits]
            probe += 1
        return np.concatenate(added), todo


def partitions_of(fingerprints: UInt64) -> Int64:
    """The partition that each fingerprint belongs to."""
    return (fingerprints >> _SHIFT).view(np.int64)


def _parts(fingerprints: UInt64, entry: Int64) -> tuple[Int64, Int64, Int64]:
    """Of the partitions with these directory entries: first bucket, buckets less one, and where a fingerprint belongs.

    That is by its bits below the partition's, so that memory is in the order of the fingerprints, but for those in the
    neighbour of a full bucket. Higher bits stay, and are masked away with the number of the probe.
    """
    level = entry & 0xFF
    return entry >> 8, (1 << level) - 1, fingerprints.view(np.int64) >> (52 - level)


def _sorting(fingerprints: UInt64) -> Int64:
    """What sorts fingerprints, by all bits that are not needed for their numbers: `argsort` in a third of the time."""
    low = np.uint64(_low(len(fingerprints)))
    numbered = fingerprints & ~low
    numbered |= np.arange(len(fingerprints), dtype=np.uint64)
    numbered.sort()
    numbered &= low
    return numbered.view(np.int64)


def _alike(ordered: UInt64) -> bool:
    """Whether some sorted fingerprints may be equal, by the bits they were sorted by."""
    return bool(((ordered[1:] ^ ordered[:-1]) <= np.uint64(_low(len(ordered)))).any())


def _low(count: int) -> int:
    return (1 << (count - 1).bit_length()) - 1


def _ranks(buckets: Int64) -> Int64:
    """How many before each are equal to it, where equal ones stand side by side."""
    at = np.arange(len(buckets))
    if len(buckets):
        first = np.where(buckets[1:] != buckets[:-1], at[1:], 0)
        at[1:] -= np.maximum.accumulate(first)
    return at
