"""Parts one after the other, as one row of positions: which part a position is in, and where in it."""

from collections.abc import Iterable, Iterator
from typing import final

import numpy as np

from warmstore.loading.samplers.counter_rng import Int64


@final
class Parts:
    """Parts of these lengths, any number of them, empty ones too. `len()` is that of all together."""

    def __init__(self, lengths: Iterable[int]) -> None:
        self.first = np.cumsum([0, *lengths])  # of each part, and the end

    def __len__(self) -> int:
        return int(self.first[-1])

    def part_of(self, positions: Int64) -> Int64:
        """The number of the part that each position is in: int64 [n]."""
        return np.searchsorted(self.first[1:], positions, side="right")

    def by_part(self, positions: Int64) -> Iterator[tuple[int, Int64, Int64]]:
        """For each part that is asked for, in rising order: its number, which of `positions` are in it, and where.

        Yields:
            number, int64 [m] rising places in `positions`, int64 [m] positions counted from the start of the part.
        """
        which = self.part_of(positions)
        order = np.argsort(which, kind="stable")
        counts = np.bincount(which)
        start = 0
        for number in np.flatnonzero(counts).tolist():
            places = order[start : start + counts[number]]
            start += len(places)
            yield number, places, positions[places] - self.first[number]
