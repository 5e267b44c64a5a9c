"""How large the raw value of each sample is, where that can be told without reading it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.pipeline.plan.cost_model import bucket_of


def sizes_of(source: Any) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Bytes of each sample's files and byte strings, int64 [n]; None where a source does not say.

    Lists and tuples say: of paths, bytes and arrays, and of tuples and dicts with these in them. Other sources would
    have to be read whole.
    """
    if not isinstance(source, list | tuple) or not any(map(_size, source[:3])):
        return None
    return np.fromiter(map(_size, source), np.int64, len(source))


def buckets_of(source: Any, edges: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int8]] | None:
    """The bucket of each sample, int8 [n]; None where all are in one."""
    sizes = sizes_of(source) if edges else None
    return None if sizes is None else bucket_of(sizes, edges)


def _size(value: Any) -> int:
    if isinstance(value, str | os.PathLike):
        try:
            return Path(value).stat().st_size
        except (OSError, ValueError):  # a text, and no path
            return 0
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return int(getattr(value, "nbytes", 0))
