"""A NumPy index of an array of records, split into the records to read and an index into the records that were read.

Only the part for axis 0 is replaced, by one of the same kind that selects the same records among those that were read.
The other parts are unchanged, and NumPy applies the whole index, so its rules hold.
"""

import operator
from typing import Any

import numpy as np

from warmstore.errors import PositionError, UnsupportedType
from warmstore.records.format.array_interop import is_jax_array, is_tensor, to_numpy
from warmstore.records.read.index_arguments import as_positions, outside, unmasked
from warmstore.storage.array_types import Int64

_ADVICE = "an index is made of integers, slices, '...', None, and arrays or lists of integers or bools"


def is_integer(index: Any) -> bool:
    """Whether an index is one integer (a bool is a mask)."""
    return isinstance(index, int | np.integer) and not isinstance(index, bool)


def split_index(index: Any, shape: tuple[int, ...]) -> tuple[Int64, tuple[Any, ...]]:
    """The records that an index needs, and the index that selects the result from them.

    Args:
        index: any index that NumPy accepts for an array of this shape.
        shape: (N, *inner): N records.

    Returns:
        positions: int64 [k], in [0, N). rest: `whole[index]` equals `whole[positions][rest]`.

    Raises:
        PositionError: out of range on axis 0, too many dimensions, or not an index.
    """
    parts = [_part(part) for part in (index if isinstance(index, tuple) else (index,))]
    dims = [_dims(part) for part in parts]
    if sum(part is Ellipsis for part in parts) > 1:
        raise PositionError(f"an index can have one '...'; got {index!r:.80}")
    if sum(dims) > len(shape):
        raise PositionError(f"the index {index!r:.80} has {sum(dims)} dimensions; the field has {len(shape)}: {shape}")
    at = 0
    while at < len(parts) and not dims[at] and not (parts[at] is Ellipsis and sum(dims) < len(shape)):
        at += 1
    if at == len(parts) or parts[at] is Ellipsis:
        return as_positions(slice(None), shape[0]), tuple(parts)
    positions, replaced = _records(parts[at], shape)
    return positions, (*parts[:at], replaced, *parts[at + 1 :])


def apply_index(values: np.ndarray[Any, Any], rest: tuple[Any, ...]) -> Any:
    """Apply an index to the records that were read for it.

    Raises:
        PositionError: NumPy refuses the index.
    """
    try:
        return values[rest]
    except (IndexError, TypeError, ValueError) as error:
        raise PositionError(f"the index does not fit a field of shape [n, *{values.shape[1:]}]: {error}") from None


def _part(part: Any) -> Any:
    """One part of an index as int, slice, Ellipsis, None, bool, or an array of intp or bools."""
    if part is None or part is Ellipsis or isinstance(part, slice | bool):
        return part
    arrays = isinstance(part, np.ndarray | np.generic) or is_tensor(part) or is_jax_array(part)
    if not arrays and hasattr(part, "__index__"):
        return operator.index(part)
    try:
        array = to_numpy(unmasked(part))
    except (TypeError, ValueError, UnsupportedType) as error:
        raise PositionError(f"{part!r:.80} is not an index: {error}. {_ADVICE}") from None
    if not arrays and not array.size:
        array = array.astype(np.intp)  # [] has no type
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind not in "iu":
        raise PositionError(f"{part!r:.80} is {array.dtype}, which is not an index: {_ADVICE}")
    return array


def _dims(part: Any) -> int:
    """The number of dimensions that a part of an index takes."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    return part.ndim if isinstance(part, np.ndarray) and part.dtype.kind == "b" else 1


def _records(part: Any, shape: tuple[int, ...]) -> tuple[Int64, Any]:
    """The records that the part for axis 0 selects, and the part that selects the same from those records."""
    if isinstance(part, slice):
        return as_positions(part, shape[0]), slice(None)
    if not isinstance(part, np.ndarray):
        if not -shape[0] <= part < shape[0]:
            raise outside(part, shape[0])
        return np.array([part % shape[0]]), 0
    if part.dtype.kind == "b":
        if part.shape != shape[: part.ndim]:
            raise PositionError(f"a mask of shape {part.shape} does not fit a field of shape {shape}")
        positions = np.flatnonzero(part.any(axis=tuple(range(1, part.ndim))))
        return positions, part[positions]
    positions = as_positions(part.reshape(-1), shape[0])
    return positions, np.arange(len(positions)).reshape(part.shape)
