"""Lengths of samples that a user hands in, in tokens or whatever else is counted: checked, copied and hashed once."""

from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from warmstore.loading.samplers.counter_rng import Int64


def lengths_of(given: ArrayLike) -> Int64:
    """The lengths as an int64 [n] of our own, read-only.

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


def describe_lengths(lengths: Int64) -> dict[str, Any]:
    """The number of lengths and a BLAKE2b hash of them, as JSON keeps it."""
    return {
        "count": len(lengths),
        "digest": blake2b(lengths.astype("<i8", copy=False).data, digest_size=16).hexdigest(),
    }
