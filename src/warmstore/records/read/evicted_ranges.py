"""Gaps: the row numbers that went with evicted chunks. Rows keep their numbers; positions step over the gaps."""

from dataclasses import dataclass
from typing import Any

import numpy as np

Int64 = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class EvictedRanges:
    """Runs of rows [first, last), int64 [k] each, in rising order, with rows in between."""

    first: Int64
    last: Int64

    @classmethod
    def of(cls, first: Int64, last: Int64, more: "EvictedRanges | None" = None) -> "EvictedRanges | None":
        """Runs in rising order, behind those of `more`, of which some may touch or be empty; None for no rows."""
        if more is not None:
            first, last = np.concatenate((more.first, first)), np.concatenate((more.last, last))
        some = last > first
        first, last = first[some], last[some]
        if not len(first):
            return None
        breaks = np.flatnonzero(first[1:] != last[:-1])
        return cls(first[np.concatenate(([0], breaks + 1))], last[np.append(breaks, len(last) - 1)])

    @property
    def count(self) -> int:
        """Rows in the gaps."""
        return int((self.last - self.first).sum())

    def holds(self, rows: Int64) -> Bools:
        """Which rows are in a gap: bool [n]."""
        run = np.searchsorted(self.first, rows, side="right") - 1
        return (run >= 0) & (rows < self.last[run])

    def rows_at(self, positions: Int64) -> Int64:
        """The row at each position, counted over the rows that are in no gap."""
        lengths = self.last - self.first
        jumps = np.concatenate(([0], np.cumsum(lengths)))
        return positions + jumps[np.searchsorted(self.first - jumps[:-1], positions, side="right")]

    def below(self, row: int) -> int:
        """How many rows below `row` are in no gap."""
        return row - int((np.minimum(self.last, row) - np.minimum(self.first, row)).sum())
