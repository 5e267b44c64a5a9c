"""Gaps against the plain list of rows that are left."""

import numpy as np
import pytest

from warmstore.records.read.evicted_ranges import EvictedRanges


@pytest.mark.parametrize("seed", range(20))
def test_gaps_are_what_a_mask_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batches = rng.integers(0, 4, 30)
    first = np.concatenate(([0], np.cumsum(batches)[:-1]))
    gone = rng.random(30) < 0.5
    half = 15
    gaps = EvictedRanges.of(first[:half][gone[:half]], (first + batches)[:half][gone[:half]])
    gaps = EvictedRanges.of(first[half:][gone[half:]], (first + batches)[half:][gone[half:]], gaps)
    mask = np.repeat(gone, batches)
    rows = np.arange(len(mask))
    assert gaps is not None
    assert gaps.count == mask.sum()
    assert (gaps.holds(rows) == mask).all()
    assert gaps.rows_at(np.arange((~mask).sum())).tolist() == rows[~mask].tolist()
    assert [gaps.below(row) for row in range(len(mask) + 1)] == [0, *np.cumsum(~mask).tolist()]
    assert (gaps.first[1:] > gaps.last[:-1]).all()  # one run where two touch


def test_no_rows_are_no_gaps() -> None:
    assert EvictedRanges.of(np.array([3]), np.array([3])) is None
