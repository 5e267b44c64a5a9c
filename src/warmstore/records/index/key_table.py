"""A hash table in shared memory from keys to rows, for lookups of whole batches.

The native floor has the layout, the lookup and the insertion (`_native/table.c`). This module decides when the table
grows. A full partition doubles alone, into free buckets that other partitions left, or at the end. So the cost of a
flush depends on its keys and not on the table. Partitions double at different fillings, which spreads their growth over
time. The caller compares the key of each row, so torn or damaged slots cause no wrong values.
"""

import errno
from collections.abc import Callable, Sequence

import numpy as np

from warmstore._native import floor, threads_for
from warmstore.records.index.sample_keys import Keys
from warmstore.records.read.verified_column import Values, VerifiedColumn
from warmstore.storage.array_types import Int64, UInt64

PARTITIONS = 4096
SLOTS = 16
BUCKET = 2 * SLOTS  # words: fingerprints, then rows
# A partition doubles when it is 40 % to 80 % full. The factor of two between them makes growth even.
_FULL = 0.4 * 2 ** (np.arange(PARTITIONS) / PARTITIONS)
_NOTHING = np.zeros(0, np.int64)

Allocate = Callable[[int], None]


class KeyTable:
    """A view on a table's memory.

    Args:
        directory: int64 [PARTITIONS], 0 for an empty partition, else its first bucket << 8 | log2 of its buckets.
        counts: int64 [PARTITIONS], keys in each partition.
        words: uint64, the memory of the buckets; may be longer than the allocated ones. Bucket 0 stays empty.
        allocated: returns the number of buckets.
    """

    def __init__(
        self,
        directory: Int64,
        counts: Int64,
        words: UInt64,
        allocated: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._counts = counts
        self._words = words
        self._allocated = allocated
        self._known = 0  # a known number of buckets; their number never falls

    def is_sound(self, keys: int) -> bool:
        """Whether all partitions are in allocated memory, do not overlap, and count at most `keys` keys each.

        `insert` relies on this: a damaged place would make it write anywhere, a damaged count would fill the disk.
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

    def forget_all(self) -> None:
        """Find nothing any more. The buckets are not used again."""
        self._directory[:] = 0
        self._counts[:] = 0

    @property
    def keys(self) -> int:
        """The number of keys in the table."""
        return int(self._counts.sum())

    def lookup(self, keys: Keys, limit: int, direct: Int64 = _NOTHING, direct_count: int = 0) -> tuple[Int64, bool]:
        """The row of each key, int64 [n], or -1; and whether all rows are in [0, limit).

        Args:
            direct: int64, rows + 1 by small int; the first `direct_count` are valid. It is searched first.
        """
        rows = np.empty(len(keys), np.int64)
        arguments = direct, direct_count, keys.halves, rows
        known = self._known
        found, is_beyond = floor.lookup(self._directory, self._words, known, *arguments)
        while is_beyond and (known := self._known_after(known)):
            found, is_beyond = floor.lookup(self._directory, self._words, known, *arguments)
        # As unsigned numbers negative ones are huge: one pass checks both ends.
        return rows, found == len(rows) and (not found or int(rows.view(np.uint64).max()) < limit)

    def fetch(
        self,
        keys: Keys,
        direct: Int64,
        direct_count: int,
        columns: Sequence[VerifiedColumn],
    ) -> list[Values] | None:
        """The values of keys from columns of one snapshot, [n, *shape] each; None if a key has no row.

        Keys are compared after the rows were copied: a row that is removed meanwhile then has another key.

        Args:
            direct, direct_count: as in `lookup`.
            columns: the last one has the keys of rows.
        """
        count, own = len(keys.halves), columns[-1]
        values, wanted, size = [], [], 0
        for column in columns[:-1]:
            room = column.room(count)
            values.append(room)
            wanted.append((column.bases, column.width, room))
            size += count * column.width
        arguments = (
            direct,
            direct_count,
            keys.halves,
            own.memory,
            own.bases,
            *own.place,
            tuple(wanted),
            threads_for(size),
        )
        known = self._known
        done, is_beyond = floor.fetch(self._directory, self._words, known, *arguments)
        while is_beyond and (known := self._known_after(known)):
            done, is_beyond = floor.fetch(self._directory, self._words, known, *arguments)
        return values if done else None

    def _known_after(self, known: int) -> int:
        """The number of buckets; 0 if it is still `known`."""
        self._known = min(self._allocated(), len(self._words) // BUCKET)  # others may map more than this process
        return self._known if self._known > known else 0

    def insert(self, keys: Keys, rows: Int64, allocate: Allocate) -> None:
        """Add keys, or replace the rows of known ones. Of equal keys the last one counts.

        Args:
            allocate: enlarges the memory to a number of buckets. The table does not keep it: its owner would then be
                part of a cycle, and keep a replaced index mapped until a garbage collection.
        """
        coming = np.zeros(PARTITIONS, np.int64)
        floor.count_partitions(keys.halves, coming)
        self._make_room(coming, allocate)
        halves, rows = np.ascontiguousarray(keys.halves), np.ascontiguousarray(rows)
        while len(rows):
            added = floor.insert(self._directory, self._counts, self._words, self._allocated(), halves, rows)
            halves, rows = halves[added:], rows[added:]
            if len(rows):  # a partition is full, since a crash lost its count
                coming[:] = 0
                floor.count_partitions(halves[:1], coming)
                crowded = np.flatnonzero(coming)
                self._grow(crowded, (self._directory[crowded] & 0xFF) + 1, allocate)

    def _make_room(self, coming: Int64, allocate: Allocate) -> None:
        expected = self._counts + coming
        levels = np.where(self._directory > 0, self._directory & 0xFF, -1)
        capacity = np.where(levels >= 0, SLOTS << np.maximum(levels, 0), 0)
        small = np.flatnonzero(expected > capacity * _FULL)
        if not len(small):
            return
        needed = np.ceil(np.log2(np.maximum(expected[small] / (SLOTS * _FULL[small]), 1)))
        self._grow(small, np.maximum(needed.astype(np.int64), 0), allocate)

    def _grow(self, partitions: Int64, levels: Int64, allocate: Allocate) -> None:
        """Copy partitions into 2**level free buckets each, then publish their new places."""
        starts, end = self._free(np.int64(1) << levels)
        if end > self._allocated():
            allocate(end)
        if not floor.grow(self._directory, self._words, self._allocated(), partitions, starts << 8 | levels):
            raise OSError(errno.EIO, "the key index is damaged; remove it and it is rebuilt")

    def _free(self, sizes: Int64) -> tuple[Int64, int]:
        """Find runs of free buckets. Returns their starts, int64 [n], and the end of all used buckets afterwards.

        Partitions fill up in the order of their numbers, and so they are ordered in memory: the buckets that they leave
        have room for others.
        """
        used = self._directory[self._directory > 0]
        order = np.argsort(used)
        firsts = used[order] >> 8
        ends = firsts + (np.int64(1) << (used[order] & 0xFF))
        edges = np.append(1, ends)
        rooms = firsts - edges[:-1]
        widest = np.flatnonzero(rooms >= sizes.min())
        widest = widest[np.argsort(-rooms[widest], kind="stable")]
        free = [(int(edges[at]), int(edges[at] + rooms[at])) for at in widest.tolist()]
        end, starts = int(edges[-1]), []
        first, last = free.pop(0) if free else (0, 0)
        for size in sizes.tolist():
            while free and last - first < size:
                first, last = free.pop(0)
            if last - first < size:
                starts.append(end)
                end += size
            else:
                starts.append(first)
                first += size
        return np.array(starts, np.int64), end
