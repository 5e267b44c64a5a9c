"""Edits of a store: how updates and deletes change the map from positions to rows.

Rows on the disk never move. `order` maps each position to a row; before the first edit it is the identity, and not
stored. An edit's positions are in the file `numbers`; in formats 1 to 3 they follow its batch in the chunk, with a hash
of their own.
"""

import numpy as np
import xxhash

from warmstore.records.read.index_arguments import sorted_unique
from warmstore.storage.array_types import Int64


def trailer_size(count: int) -> int:
    """Bytes of the trailer with `count` positions: int64 each, then their xxh3-64 with the seed of their batch."""
    return 8 * count + 8


def positions_in(trailer: memoryview, seed: int) -> Int64 | None:
    """The positions in a trailer; None if it is damaged."""
    data = bytes(trailer[:-8])
    if xxhash.xxh3_64_intdigest(data, seed) != int.from_bytes(trailer[-8:], "little"):
        return None
    return np.frombuffer(data, "<i8").astype(np.int64)


class PositionMap:
    """The map from positions to rows, updated from one snapshot to the next.

    Snapshots share a published map, so its entries never change: appended rows go behind it, and any other edit copies
    it first.

    Args:
        order: int64 [n], published; None for the identity over `rows`.
    """

    def __init__(self, order: Int64 | None, rows: int) -> None:
        self._length = rows if order is None else len(order)
        self._order: Int64 = np.arange(rows, dtype=np.int64) if order is None else order
        self._published = order is not None

    def append(self, first: int, last: int) -> None:
        """Append rows [first, last)."""
        length = self._length + last - first
        if length > len(self._order):
            self._copy(2 * length)
        self._order[self._length : length] = np.arange(first, last)
        self._length = length

    def update(self, positions: Int64, rows: Int64) -> None:
        """Put rows, int64 [n], at positions, int64 [n]. Of equal positions the last one counts."""
        self._own()
        self._order[positions] = rows

    def delete(self, positions: Int64) -> None:
        """Remove positions. Remaining rows from the end, the last one first, fill the holes in rising order."""
        self._own()
        removed = sorted_unique(positions)
        length = self._length - len(removed)
        inside = int(np.searchsorted(removed, length))
        kept = np.ones(self._length - length, bool)
        kept[removed[inside:] - length] = False
        self._order[removed[:inside]] = self._order[length + np.flatnonzero(kept)[::-1]]
        self._length = length

    def publish(self) -> Int64:
        """The current map, int64 [n], which is not changed afterwards."""
        self._published = True
        return self._order[: self._length]

    def _own(self) -> None:
        if self._published:
            self._copy(len(self._order))

    def _copy(self, capacity: int) -> None:
        copy = np.empty(capacity, np.int64)
        copy[: self._length] = self._order[: self._length]
        self._order = copy
        self._published = False
