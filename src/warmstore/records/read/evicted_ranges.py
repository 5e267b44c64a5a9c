"""The row numbers of evicted chunks. Other rows keep their numbers; positions skip the evicted ones."""

from dataclasses import dataclass

import numpy as np

from warmstore.storage.array_types import Bools, Int64


@dataclass(frozen=True)
class EvictedRanges:
    """Runs of evicted rows [first, last), int64 [k] each, in rising order and not adjacent."""

    first: Int64
    last: Int64

    @classmethod
    def of(cls, first: Int64, last: Int64, more: "EvictedRanges | None" = None) -> "EvictedRanges | None":
        """Add runs in rising order, which may be adjacent or empty, behind those of `more`; None for no rows."""
        if more is not None:
            first, last = np.concatenate((more.first, first)), np.concatenate((more.last, last))
        not_empty = last > first
        first, last = first[not_empty], last[not_empty]
        if not len(first):
            return None
        breaks = np.flatnonzero(first[1:] != last[:-1])
        return cls(first[np.concatenate(([0], breaks + 1))], last[np.append(breaks, len(last) - 1)])

    @property
    def count(self) -> int:
        """The number of evicted rows."""
        return int((self.last - self.first).sum())

    def holds(self, rows: Int64) -> Bools:
        """Which rows are evicted: bool [n]."""
        run = np.searchsorted(self.first, rows, side="right") - 1
        return (run >= 0) & (rows < self.last[run])

    def rows_at(self, positions: Int64) -> Int64:
        """The row at each position, counted over the rows that are not evicted."""
        lengths = self.last - self.first
        jumps = np.concatenate(([0], np.cumsum(lengths)))
        return positions + jumps[np.searchsorted(self.first - jumps[:-1], positions, side="right")]

    def positions_of(self, rows: Int64) -> Int64:
        """The position of each of some rows that are not evicted: the inverse of `rows_at`."""
        evicted = np.concatenate(([0], np.cumsum(self.last - self.first)))
        return rows - evicted[np.searchsorted(self.last, rows, side="right")]

    def below(self, row: int) -> int:
        """The number of rows below `row` that are not evicted."""
        return row - int((np.minimum(self.last, row) - np.minimum(self.first, row)).sum())
