"""Parts: the part, and the position in it, of positions in concatenated parts."""

from collections.abc import Iterable, Iterator
from typing import final

import numpy as np

from warmstore.loading.samplers.counter_rng import Int64


@final
class Parts:
    """Concatenated parts of these lengths. `len()` is the total length."""

    def __init__(self, lengths: Iterable[int]) -> None:
        self.first = np.cumsum([0, *lengths])  # the first position of each part, and the end

    def __len__(self) -> int:
        return int(self.first[-1])

    def part_of(self, positions: Int64) -> Int64:
        """The number of the part of each position: int64 [n]."""
        return np.searchsorted(self.first[1:], positions, side="right")

    def by_part(self, positions: Int64) -> Iterator[tuple[int, Int64, Int64]]:
        """Group positions by part, in the order of the parts.

        Yields:
            The number of a part, int64 [m] ascending indices into `positions`, int64 [m] positions within the part.
        """
        which = self.part_of(positions)
        order = np.argsort(which, kind="stable")
        counts = np.bincount(which)
        start = 0
        for number in np.flatnonzero(counts).tolist():
            places = order[start : start + counts[number]]
            start += len(places)
            yield number, places, positions[places] - self.first[number]
