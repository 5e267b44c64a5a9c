"""Conversion of the indices that users give (slices, arrays, masks) to an int64 array of positions."""

from typing import Any

import numpy as np

from warmstore.errors import PositionError, UnsupportedType
from warmstore.records.format.array_interop import to_numpy
from warmstore.storage.array_types import Int64

_INT64 = np.dtype(np.int64)
_STRIDES = (8,)


def sorted_unique(positions: Int64) -> Int64:
    """The distinct positions in rising order. (`numpy.unique` uses a hash table first and takes four times as long.)"""
    ordered = np.sort(positions)
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))] if len(ordered) else ordered


def is_positions(index: Any) -> bool:
    """Whether an index is a contiguous int64 [n] array. Its numbers are not checked."""
    return type(index) is np.ndarray and index.strides == _STRIDES and index.dtype == _INT64


def unmasked(index: Any) -> Any:
    """An index whose values all count. A masked element of a boolean mask is False: it selects nothing, as in SQL.

    Raises:
        PositionError: a masked position.
    """
    if not isinstance(index, np.ma.MaskedArray):
        return index
    if index.dtype.kind == "b":
        return index.filled(False)
    if np.ma.is_masked(index):
        where = np.flatnonzero(np.ma.getmaskarray(index))[0]
        raise PositionError(f"element {where} of the positions is masked: leave it out, with positions.compressed()")
    return index.data


def as_positions(index: Any, length: int) -> Int64:
    """Positions in [0, length) for a slice, a boolean mask, or integers. Negative integers count from the end.

    Masked elements of a mask are False.

    Raises:
        PositionError: out of range, or not an index.
    """
    if isinstance(index, slice):
        try:
            return np.arange(*index.indices(length), dtype=np.int64)
        except (TypeError, ValueError) as error:
            raise PositionError(f"{index} is not a slice of records: {error}") from None
    try:
        array = to_numpy(unmasked(index))
    except (TypeError, ValueError, UnsupportedType) as error:
        raise PositionError(f"positions must be integers, a slice or a mask; got {index!r:.80}: {error}") from None
    if array.dtype.kind == "b":
        if array.shape != (length,):
            raise PositionError(f"a mask needs one bool for each of the {length:,} records; got shape {array.shape}")
        return np.flatnonzero(array)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise PositionError(
            f"positions must be integers, a slice or a mask; got {array.dtype} of shape {array.shape}: {index!r:.80}"
        )
    if not array.size:
        return np.zeros(0, np.int64)
    # An integer beyond int64 would become negative, and count from the end.
    bounded = np.minimum(array, np.uint64(np.iinfo(np.int64).max)) if array.dtype == np.uint64 else array
    positions = np.ascontiguousarray(bounded, np.int64)
    # As unsigned numbers negative ones are huge: one pass checks both ends.
    if int(positions.view(np.uint64).max()) >= length:
        positions = np.where(positions < 0, positions + length, positions)
        if int(positions.view(np.uint64).max()) >= length:
            raise outside(array[(positions < 0) | (positions >= length)][0], length)
    return positions


def outside(position: Any, length: int) -> PositionError:
    """The error for a position outside the records."""
    if not length:
        return PositionError(f"there is no position {position!s}: there are no records")
    return PositionError(
        f"position {position!s} is outside the {length:,} records; valid are {-length:,} to {length - 1:,}"
    )
