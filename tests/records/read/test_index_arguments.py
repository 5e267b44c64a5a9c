"""What a store may be indexed with."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.slow import either

from warmstore.errors import PositionError
from warmstore.records.read.index_arguments import as_positions

MASK = [True, False, False, True, False]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (slice(None), [0, 1, 2, 3, 4]),
        (slice(1, 3), [1, 2]),
        (slice(None, None, -2), [4, 2, 0]),
        (slice(3, 100), [3, 4]),
        (slice(-2, None), [3, 4]),
        (slice(4, 1), []),
        ([], []),
        ((), []),
        (np.zeros(0), []),
        (np.zeros(0, np.int8), []),
        ([3, 1, 3], [3, 1, 3]),
        ((0, 4), [0, 4]),
        ([-1, -5, 0], [4, 0, 0]),
        (np.array([4, 0], np.uint8), [4, 0]),
        (np.array([4, -4], np.int16), [4, 1]),
        (np.array([4, 0], np.uint64), [4, 0]),
        (np.array([4, 0], ">i4"), [4, 0]),
        (np.arange(10)[::2] // 2, [0, 1, 2, 3, 4]),
        ([np.int64(2), 3], [2, 3]),
        (range(2, 4), [2, 3]),
        (MASK, [0, 3]),
        (np.array(MASK), [0, 3]),
        (torch.tensor([1, -1]), [1, 4]),
        (torch.tensor(MASK), [0, 3]),
    ],
    ids=repr,
)
def test_means(index: Any, expected: list[int]) -> None:
    positions = as_positions(index, 5)
    assert positions.dtype == np.int64
    assert positions.tolist() == expected


@pytest.mark.parametrize(
    "index",
    [
        [5],
        [-6],
        [0, 1, 5],
        [1 << 62],
        [-(1 << 63)],
        [1 << 70],
        np.array([(1 << 64) - 1], np.uint64),  # as int64 it would be -1
        np.array([1 << 63], np.uint64),
        [True, False],
        np.zeros(0, bool),
        np.ones((5, 1), bool),
        [[1, 2]],
        [[]],
        np.zeros((2, 0), int),
        slice("a"),
        slice(0, 1, 0),
        [[1], [2, 3]],
        [1.0],
        ["1"],
        "1",
        "name",
        None,
        [None],
        1,
        1.5,
        True,
        {"a": 1},
        ...,
    ],
    ids=repr,
)
def test_refuses(index: Any) -> None:
    with pytest.raises(PositionError):
        as_positions(index, 5)


def test_says_which_position_is_out_of_range() -> None:
    with pytest.raises(PositionError, match="position -9 is outside the 5 records; valid are -5 to 4"):
        as_positions([1, -9, 2], 5)
    with pytest.raises(PositionError, match=f"position {(1 << 64) - 1} is outside"):
        as_positions(np.array([1, (1 << 64) - 1], np.uint64), 5)


def test_no_position_is_valid_in_an_empty_store() -> None:
    assert as_positions(slice(None), 0).tolist() == []
    assert as_positions(np.zeros(0, bool), 0).tolist() == []
    for position in (0, -1):
        with pytest.raises(PositionError, match=f"no position {position}: there are no records"):
            as_positions([position], 0)


INTEGERS = hnp.arrays(hnp.integer_dtypes() | hnp.unsigned_integer_dtypes(), st.integers(1, 6))


@given(
    st.integers(0, 20),
    st.lists(st.integers(-25, 25))
    | st.slices(20)
    | st.builds(slice, st.integers(), st.integers(), st.integers())
    | st.lists(st.booleans(), min_size=1, max_size=20)
    | hnp.arrays(np.bool_, st.integers(0, 20))
    | INTEGERS
    | hnp.arrays(np.int64, hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)),
)
@example(11, np.array([2**64 - 11], np.uint64))
@settings(max_examples=either(250, 500))
def test_is_what_numpy_gives(length: int, index: Any) -> None:
    """One dimension only: several would not be a list of records. NumPy takes 2**64 - 1 for -1; here too large."""
    try:
        expected = np.arange(length)[index]
        if isinstance(index, np.ndarray) and index.dtype == np.uint64 and index.size and index.max() >= length:
            raise IndexError
        # NumPy takes a mask of no bools for any length.
        if np.ndim(expected) != 1 or (
            isinstance(index, np.ndarray) and index.dtype.kind == "b" and len(index) != length
        ):
            raise IndexError
    except (IndexError, ValueError):
        with pytest.raises(PositionError):
            as_positions(index, length)
    else:
        assert as_positions(index, length).tolist() == expected.tolist()
