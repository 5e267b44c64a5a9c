"""Ranges of positions that lie in one chunk each, so that many tasks read a store and each opens few files."""

import itertools
from typing import Any

import numpy as np

from warmstore.records.read.snapshot import Snapshot
from warmstore.storage.array_types import Int64


def chunk_ranges(snapshot: Snapshot, parts: int | None) -> list[range]:
    """See `RecordStore.chunk_ranges`."""
    length = snapshot.length
    cuts = _chunk_ends(snapshot)
    if parts is not None:
        if parts < 1:
            raise ValueError(f"parts is {parts!r}; it must be at least 1")
        cuts = _near(np.arange(1, parts) * (length / parts), cuts, length / parts / 4)
    cuts = np.unique(cuts[(cuts > 0) & (cuts < length)])
    bounds = [0, *cuts.tolist(), length]
    return [range(first, last) for first, last in itertools.pairwise(bounds) if last > first]


def _chunk_ends(snapshot: Snapshot) -> Int64:
    """The positions after the last row of each run of rows in one chunk, int64 [n]."""
    rows: Int64 = snapshot.first_row[1:][snapshot.chunk[1:] != snapshot.chunk[:-1]]
    if snapshot.gaps is None:
        return rows  # edits leave most positions at their rows
    return np.array([snapshot.gaps.below(row) for row in rows.tolist()], np.int64)


def _near(wanted: np.ndarray[Any, np.dtype[np.floating[Any]]], cuts: Int64, most: float) -> Int64:
    """Move each wanted cut to the nearest of `cuts`, float64 [n] to int64 [n], if it is at most `most` away."""
    rounded: Int64 = wanted.round().astype(np.int64)
    if not len(cuts):
        return rounded
    right = np.minimum(np.searchsorted(cuts, wanted), len(cuts) - 1)
    left = np.maximum(right - 1, 0)
    nearest = np.where(wanted - cuts[left] <= np.abs(cuts[right] - wanted), cuts[left], cuts[right])
    rounded[:] = np.where(np.abs(nearest - wanted) <= most, nearest, rounded)
    return rounded
