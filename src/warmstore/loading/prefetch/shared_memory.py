"""Arrays in shared memory, which a worker process sends without a copy."""

from typing import Any

import numpy as np

from warmstore.loading.prefetch.shared_segments import taken
from warmstore.storage.memory.buffer_pool import LARGE, take

SHARED = 1 << 14
"""Bytes from which an array is faster to share than to send through a pipe."""


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An uninitialised array, in the worker processes of a loader in shared memory if torch has the dtype."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    if nbytes >= SHARED and torch_has(dtype) and (kept := taken(nbytes)) is not None:
        in_segment: np.ndarray[Any, Any] = kept.view(dtype).reshape(shape)
        return in_segment
    if nbytes >= LARGE:
        pooled: np.ndarray[Any, Any] = take(nbytes).view(dtype).reshape(shape)
        return pooled
    return np.empty(shape, dtype)


def torch_has(dtype: np.dtype[Any]) -> bool:
    """Whether torch has a dtype."""
    return dtype.kind in "biufc" and dtype.char not in "gG" and dtype.num < 256 and dtype.isnative  # g: long double
