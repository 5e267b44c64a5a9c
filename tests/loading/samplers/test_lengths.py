"""Lengths are checked and copied at the door."""

from typing import Any

import numpy as np
import pytest

from warmstore.loading.samplers.lengths import describe_numbers, lengths_of


@pytest.mark.parametrize("given", [[3, 0, 2], (3, 0, 2), np.uint8([3, 0, 2]), np.array([3, 0, 2], ">i4")])
def test_lengths_are_copied_and_equal_ones_are_described_alike(given: Any) -> None:
    found = lengths_of(given)
    assert found.dtype == np.int64
    assert found.tolist() == [3, 0, 2]
    assert describe_numbers(found) == {"count": 3, "digest": "40f847f669dbac3fba83135fb531eb67"}
    assert describe_numbers(found) != describe_numbers(lengths_of([3, 2, 0]))
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 5


def test_they_are_no_longer_the_users() -> None:
    mine = np.arange(3)
    found = lengths_of(mine)
    mine[:] = 9
    assert found.tolist() == [0, 1, 2]
    assert lengths_of([]).tolist() == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, -2], "length 1 is -2"),
        ([2**62], "length 0 is 4611686018427387904"),
        (np.array([1, 2**64 - 1], np.uint64), "length 1 is 18446744073709551615"),
        ([1.0, 2.0], r"got float64: \[1.0, 2.0\]"),
        ([True], "got bool"),
        (["a"], "got <U1"),
        ([10**30], "got object"),
        (None, r"shape \(\)"),
        (5, r"shape \(\)"),
        ([[1, 2]], r"shape \(1, 2\)"),
        ([[1], [1, 2]], r"got \[\[1\], \[1, 2\]\]"),
    ],
)
def test_refuses(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"lengths must be .*{message}"):
        lengths_of(given)


def test_lengths_that_are_masked_are_refused() -> None:
    masked = np.ma.MaskedArray([1, 0, 2], [False, True, False])
    with pytest.raises(ValueError, match="length 1 is masked, and every sample needs one"):
        lengths_of(masked)
    assert lengths_of(masked[[0, 2]]).tolist() == [1, 2]
