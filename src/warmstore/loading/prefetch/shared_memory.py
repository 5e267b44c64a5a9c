"""Arrays in shared memory, which a worker process sends without a copy."""

import sys
from typing import Any

import numpy as np

from warmstore.loading.prefetch.shared_segments import taken
from warmstore.storage.memory.buffer_pool import LARGE, take

SHARED = 1 << 14
"""Bytes from which an array is faster to share than to send through a pipe."""


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An uninitialised array, in torch's worker processes in shared memory if torch has the dtype."""
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
    """The tensor in shared memory behind an array of `empty`; None for any other array."""
    torch, base = sys.modules.get("torch"), array.base
    if torch is None or not isinstance(base, torch.Tensor) or not base.is_shared():
        return None
    is_whole = base.data_ptr() == array.ctypes.data and tuple(base.shape) == array.shape and array.flags.c_contiguous
    return base if is_whole else None


def torch_has(dtype: np.dtype[Any]) -> bool:
    """Whether torch has a dtype."""
    return dtype.kind in "biufc" and dtype.num < 256 and dtype.isnative


def in_worker() -> bool:
    """Whether this is a worker process of torch's DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
