"""Small arrays that are the same for all samples and in every batch. They are stored once, in a cache's metadata."""

from __future__ import annotations

import base64
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from warmstore.errors import UnsupportedType
from warmstore.records.format.array_interop import is_tensor, on_device, to_numpy, to_torch
from warmstore.records.format.fields import numpy_dtype

if TYPE_CHECKING:
    import torch

_LARGEST = 1 << 20  # bytes; store.json has the array in base64


def constant_array(name: str, dtype: str, value: Any) -> dict[str, Any]:
    """An array or tensor as JSON.

    Args:
        name: the part of the output, for messages.
        dtype: the name of the dtype.

    Raises:
        UnsupportedType: the array has more than 1 MiB.
    """
    array = np.ascontiguousarray(to_numpy(value))
    if array.nbytes > _LARGEST:
        raise UnsupportedType(
            f"{name} has {array.nbytes:,} bytes that are the same for all samples; at most {_LARGEST:,} are stored. "
            "Remove it from the cached module's output"
        )
    return {
        "tensor": is_tensor(value),
        "dtype": dtype,
        "shape": list(value.shape),
        "data": base64.b64encode(array.tobytes()).decode(),
    }


def restored_array(array: dict[str, Any], device: torch.device | None) -> Any:
    """A copy of the array or tensor that `constant_array` encoded. Tensors are on `device`; None is the CPU."""
    values = _decoded(array["data"], array["dtype"]).reshape(array["shape"]).copy()
    if not array["tensor"]:
        return values
    tensor = to_torch(values)
    return tensor if device is None else on_device(tensor, device)


@functools.lru_cache(maxsize=16)
def _decoded(data: str, dtype: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(data), numpy_dtype(dtype))
