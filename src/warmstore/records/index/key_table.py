"""A hash table in shared memory from keys to rows, made for looking up whole batches.

How it lies there and how it is read and written, the native floor says (`_native/table.c`); here is when it grows. A
partition that fills up doubles by itself, to where others were before they did or to fresh room at the end, so a flush
pays for the keys it brings and never for the table; partitions double at different fillings, so that their growth is
spread over time. Whatever a torn or damaged slot says is checked by the caller against the key itself.
"""

import errno
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from warmstore._native import floor, threads_for
from warmstore.records.index.sample_keys import Keys
from warmstore.records.read.verified_column import Values, VerifiedColumn

UInt64 = np.ndarray[Any, np.dtype[np.uint64]]
Int64 = np.ndarray[Any, np.dtype[np.int64]]

PARTITIONS = 4096
SLOTS = 16
BUCKET = 2 * SLOTS  # words: fingerprints, then rows
# A partition doubles when it is 40 % to 80 % full; the spread over a factor of two makes growth even.
_FULL = 0.4 * 2 ** (np.arange(PARTITIONS) / PARTITIONS)
_NOTHING = np.zeros(0, np.int64)


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

    def lookup(self, keys: Keys, limit: int, direct: Int64 = _NOTHING, direct_count: int = 0) -> tuple[Int64, bool]:
        """The row of each key, int64 [n], or -1; and whether all are from 0 to `limit` - 1.

        Args:
            direct: int64, rows + 1 by small int, of which the first `direct_count` are there; it is asked first.
        """
        rows = np.empty(len(keys), np.int64)
        arguments = direct, direct_count, keys.halves, rows
        known = self._known
        found, is_beyond = floor.lookup(self._directory, self._words, known, *arguments)
        while is_beyond and (known := self._known_after(known)):
            found, is_beyond = floor.lookup(self._directory, self._words, known, *arguments)
        # As unsigned numbers negative ones are huge: one pass tells that all are there.
        return rows, found == len(rows) and (not found or int(rows.view(np.uint64).max()) < limit)

    def fetch(
        self,
        keys: Keys,
        direct: Int64,
        direct_count: int,
        columns: Sequence[VerifiedColumn],
    ) -> list[Values] | None:
        """The rows of some keys out of columns of one snapshot, [n, *shape] each; None where not all are there.

        Keys are compared after the rows were copied: a row that goes meanwhile, and its bytes with it, is none then.

        Args:
            direct, direct_count: as in `lookup`.
            columns: the last is that of the keys, which each row is believed by.
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
        """How many buckets exist now; 0 where that is no more than `known`."""
        self._known = self._allocated()
        return self._known if self._known > known else 0

    def insert(self, keys: Keys, rows: Int64) -> None:
        """Add keys, or give known ones their new row; of equal keys the last one counts."""
        coming = np.zeros(PARTITIONS, np.int64)
        floor.count_partitions(keys.halves, coming)
        self._make_room(coming)
        halves, rows = np.ascontiguousarray(keys.halves), np.ascontiguousarray(rows)
        while len(rows):
            added = floor.insert(self._directory, self._counts, self._words, self._allocated(), halves, rows)
            halves, rows = halves[added:], rows[added:]
            if len(rows):  # counts lost in a crash may let a partition overflow
                coming[:] = 0
                floor.count_partitions(halves[:1], coming)
                crowded = np.flatnonzero(coming)
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
        """Copy partitions into room of 2**level buckets each that nobody has, then publish their new places."""
        starts, end = self._free(np.int64(1) << levels)
        if end > self._allocated():
            self._allocate(end)
        if not floor.grow(self._directory, self._words, self._allocated(), partitions, starts << 8 | levels):
            raise OSError(errno.EIO, "the key index is damaged; remove it and it is built anew")

    def _free(self, sizes: Int64) -> tuple[Int64, int]:
        """Where so many buckets each are free, int64 [n], and where the last of all that are in use then ends.

        Partitions fill up in the order of their numbers, and so lie in it: what they leave makes room for others.
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
