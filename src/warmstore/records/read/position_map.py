"""Edits of a store: what an update or a delete says about positions, and how it changes their order.

Rows on the disk never move. `order` says which row stands at each position; while nothing was edited it is the identity
and does not exist. An edit's positions stand in the file `numbers`; in formats 1 to 3 they lie behind its batch in the
chunk, with a hash of their own.
"""

from typing import Any

import numpy as np
import xxhash

from warmstore.records.read.positions import sorted_unique

Int64 = np.ndarray[Any, np.dtype[np.int64]]


def trailer_size(count: int) -> int:
    """Bytes of the trailer of so many positions: int64 each, then the xxh3-64 of them with the seed of their batch."""
    return 8 * count + 8


def positions_in(trailer: memoryview, seed: int) -> Int64 | None:
    """The positions that a trailer says; None when it is damaged."""
    data = bytes(trailer[:-8])
    if xxhash.xxh3_64_intdigest(data, seed) != int.from_bytes(trailer[-8:], "little"):
        return None
    return np.frombuffer(data, "<i8").astype(np.int64)


class PositionMap:
    """Positions to rows, kept up to date from one snapshot to the next.

    What was published is seen by snapshots and does not change any more: rows are appended behind it, and any other
    edit begins with a copy.

    Args:
        order: int64 [n], published; None for the identity over `rows`.
    """

    def __init__(self, order: Int64 | None, rows: int) -> None:
        self._length = rows if order is None else len(order)
        self._order: Int64 = np.arange(rows, dtype=np.int64) if order is None else order
        self._published = order is not None

    def append(self, first: int, last: int) -> None:
        """Rows [first, last) stand at the end."""
        length = self._length + last - first
        if length > len(self._order):
            self._copy(2 * length)
        self._order[self._length : length] = np.arange(first, last)
        self._length = length

    def update(self, positions: Int64, rows: Int64) -> None:
        """Rows, int64 [n], replace those at the positions, int64 [n]; of equal positions the last counts."""
        self._own()
        self._order[positions] = rows

    def delete(self, positions: Int64) -> None:
        """Take positions away: surviving rows of the end, the last one first, fill the holes in rising order."""
        self._own()
        gone = sorted_unique(positions)
        length = self._length - len(gone)
        inside = int(np.searchsorted(gone, length))
        kept = np.ones(self._length - length, bool)
        kept[gone[inside:] - length] = False
        self._order[gone[:inside]] = self._order[length + np.flatnonzero(kept)[::-1]]
        self._length = length

    def publish(self) -> Int64:
        """The order now, int64 [n], which stays as it is."""
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
