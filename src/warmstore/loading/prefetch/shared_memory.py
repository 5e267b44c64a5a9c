"""Arrays in memory that a worker process hands over as they are: made there, a batch is not copied to be sent."""

import sys
from typing import Any

import numpy as np

from warmstore.loading.prefetch.shared_segments import taken
from warmstore.storage.memory.buffer_pool import LARGE, take

SHARED = 1 << 14
"""Bytes of an array from which it had better be shared than sent through a pipe."""


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array to be filled; in one of torch's worker processes one in shared memory, where torch has its dtype."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    if nbytes >= SHARED and torch_has(dtype) and in_worker():
        kept = taken(nbytes)
        if kept is not None:
            in_segment: np.ndarray[Any, Any] = kept.view(dtype).reshape(shape)
            return in_segment
        torch: Any = sys.modules["torch"]
        of_dtype = torch.from_numpy(np.empty(0, dtype))
        made: np.ndarray[Any, Any] = of_dtype.new(torch.UntypedStorage._new_shared(nbytes)).view(shape).numpy()
        return made
    if nbytes >= LARGE:
        pooled: np.ndarray[Any, Any] = take(nbytes).view(dtype).reshape(shape)
        return pooled
    return np.empty(shape, dtype)


def tensor_of(array: np.ndarray[Any, Any]) -> Any:
    """The tensor in shared memory that an array of `empty` is a view of; None for any other array."""
    torch, base = sys.modules.get("torch"), array.base
    if torch is None or not isinstance(base, torch.Tensor) or not base.is_shared():
        return None
    same = base.data_ptr() == array.ctypes.data and tuple(base.shape) == array.shape and array.flags.c_contiguous
    return base if same else None


def torch_has(dtype: np.dtype[Any]) -> bool:
    """Whether torch takes arrays of a dtype."""
    return dtype.kind in "biufc" and dtype.num < 256 and dtype.isnative


def in_worker() -> bool:
    """Whether this is one of the worker processes of torch's DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
