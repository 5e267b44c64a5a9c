"""Lengths of samples: checked and copied. Lengths count tokens, or another unit of the caller."""

from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from warmstore.loading.samplers.counter_rng import Int64


def lengths_of(given: ArrayLike) -> Int64:
    """A read-only copy of the lengths, int64 [n].

    Args:
        given: [n] integers, none negative. Floats and bools are refused.

    Raises:
        ValueError: others.
    """
    try:
        found = np.asarray(given)
    except (TypeError, ValueError):
        raise ValueError(f"lengths must be integers, one for each sample; got {given!r:.80}") from None
    if found.ndim != 1:
        raise ValueError(f"lengths must be integers in one dimension, one for each sample; got shape {found.shape}")
    if found.dtype.kind not in "iu" and found.size:
        raise ValueError(f"lengths must be integers, one for each sample; got {found.dtype}: {given!r:.80}")
    if found.size and (int(found.min()) < 0 or int(found.max()) >= 2**62):
        wrong = int(np.flatnonzero((found < 0) | (found >= 2**62))[0])
        raise ValueError(f"lengths must be from 0 to 2**62 - 1; length {wrong:,} is {found[wrong]}")
    lengths = np.array(found, np.int64)
    lengths.setflags(write=False)
    return lengths


def describe_numbers(numbers: np.ndarray[Any, Any]) -> dict[str, Any]:
    """How many numbers there are and a BLAKE2b hash of them, for JSON. Equal on machines of either byte order."""
    little_endian = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
    return {"count": len(numbers), "digest": blake2b(little_endian.data, digest_size=16).hexdigest()}
