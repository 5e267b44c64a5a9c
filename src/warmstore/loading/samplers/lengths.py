"""Lengths of samples, in tokens or another unit of the caller: checked, copied and described."""

from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.validation import check_whole


def lengths_of(given: ArrayLike) -> Int64:
    """A read-only copy of the lengths, int64 [n].

    Args:
        given: [n] integers from 0 to 2**62 - 1.

    Raises:
        ValueError: other values, floats, bools and masked ones included.
    """
    check_whole("length", given)
    try:
        array = np.asarray(given)
    except (TypeError, ValueError):
        raise ValueError(f"lengths must be integers, one for each sample; got {given!r:.80}") from None
    if array.ndim != 1:
        raise ValueError(f"lengths must be integers in one dimension, one for each sample; got shape {array.shape}")
    if array.dtype.kind not in "iu" and array.size:
        raise ValueError(f"lengths must be integers, one for each sample; got {array.dtype}: {given!r:.80}")
    if array.size and (int(array.min()) < 0 or int(array.max()) >= 2**62):
        invalid = int(np.flatnonzero((array < 0) | (array >= 2**62))[0])
        raise ValueError(f"lengths must be from 0 to 2**62 - 1; length {invalid:,} is {array[invalid]}")
    lengths = np.array(array, np.int64)
    lengths.setflags(write=False)
    return lengths


def describe_numbers(numbers: np.ndarray[Any, Any]) -> dict[str, Any]:
    """The number of numbers and a BLAKE2b hash of them, for JSON. Equal on machines of either byte order."""
    little_endian = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
    return {"count": len(numbers), "digest": blake2b(little_endian.data, digest_size=16).hexdigest()}
