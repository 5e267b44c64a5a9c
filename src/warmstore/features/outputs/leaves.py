"""Leaves: the per-sample parts of a batch of outputs, which become fields of the cache's store."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from warmstore.errors import SchemaMismatch, UnsupportedType
from warmstore.features.outputs.pickled_leaves import unpickled
from warmstore.records.format.array_interop import is_tensor, on_device, to_numpy, to_torch
from warmstore.records.format.fields import Array, Bytes, Field, Json, Ragged, dtype_name
from warmstore.records.format.value_encoding import to_json

Copy = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
"""Copies an array into contiguous memory that nothing else writes to."""


@dataclass(frozen=True)
class Leaf:
    """One per-sample part of a batch of outputs.

    path: the path in the output, such as "hidden/0"; "output" for an output that is a single tensor. values: an array
    or tensor [n, ...] with the samples in dimension 0, whatever their dimension in the output; or a list of n arrays,
    n JSON values, or n pickled objects as bytes.
    """

    path: str
    values: Any

    @property
    def stacked(self) -> bool:
        return not isinstance(self.values, list)

    @property
    def dtype(self) -> str:
        """The name of the dtype of stacked values.

        Raises:
            UnsupportedType: see `stored_dtype`.
        """
        return stored_dtype(self.path, self.values)

    def to_host(self, copy: Copy) -> Leaf:
        """The same values, as NumPy arrays that `copy` returned.

        Raises:
            UnsupportedType: JSON values that would not come back the same, such as texts with lone surrogates.
        """
        if self.stacked:
            return Leaf(self.path, copy(to_numpy(self.values)))
        if self.values and is_array(self.values[0]):
            return Leaf(self.path, [copy(to_numpy(value)) for value in self.values])
        return self if self.is_pickled else Leaf(self.path, to_json(self.path, self.values)[1])

    def take(self, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Leaf:
        """The values of some samples."""
        if isinstance(self.values, list):
            return Leaf(self.path, [self.values[row] for row in rows.tolist()])
        which = on_device(to_torch(rows), self.values.device) if is_tensor(self.values) else rows
        return Leaf(self.path, self.values[which])

    def field(self) -> Field:
        """The field of this leaf."""
        if self.stacked:
            return Array(self.dtype, tuple(self.values.shape[1:]))
        if self.values and is_array(self.values[0]):
            return ragged_of(stored_dtype(self.path, self.values[0]), self.values[0].ndim)
        return Bytes() if self.is_pickled else Json()

    @property
    def is_pickled(self) -> bool:
        return not self.stacked and bool(self.values) and isinstance(self.values[0], bytes)

    def restored(self) -> Any:
        """The values of the output, unpickled."""
        return unpickled(self.path, self.values, allow_pickle=True) if self.is_pickled else self.values


def ragged_of(dtype: str, ndim: int) -> Field:
    """A field of arrays whose shapes vary. Scalars have only one shape."""
    return Ragged(dtype, ndim) if ndim else Array(dtype)


def nbytes_of(values: Any) -> int:
    """Bytes of a leaf's values, estimated if they are no arrays."""
    if isinstance(values, list):
        return sum(len(value) if isinstance(value, bytes) else getattr(value, "nbytes", 64) for value in values)
    return int(values.nbytes)


def is_array(value: Any) -> bool:
    """Whether a value is a tensor or a NumPy array."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def is_dense(tensor: Any) -> bool:
    """Whether a tensor has a value at every position: it is not sparse, nested, masked, quantised, or on `meta`."""
    is_masked = isinstance(tensor, getattr(sys.modules.get("torch.masked"), "MaskedTensor", ()))
    is_other = is_masked or tensor.is_quantized or tensor.is_nested or tensor.is_meta
    return not is_other and str(tensor.layout) == "torch.strided"


def check_array(path: str, value: Any) -> None:
    """Refuse an array or tensor that has not a value at every position.

    Raises:
        SchemaMismatch: a masked array.
        UnsupportedType: a tensor of another layout.
    """
    if isinstance(value, np.ma.MaskedArray):
        if np.ma.is_masked(value):
            raise SchemaMismatch(
                f"{path} is a masked array, and a cache stores no masks. Fill it with values.filled(...), or return "
                "the mask as another output"
            )
    elif is_tensor(value) and not is_dense(value):
        kind, advice = _kind(value)
        raise UnsupportedType(
            f"{path} is a {kind} {value.dtype} {type(value).__name__}; only dense ones can be cached. {advice}"
        )


def _kind(tensor: Any) -> tuple[str, str]:
    """What a tensor is that is not dense, and what to return in its place."""
    if tensor.is_meta:
        return "meta", "Load the module's weights first"
    if tensor.is_nested:
        return "nested", "Return a list of one tensor per sample, or to_padded_tensor(0)"
    if tensor.is_quantized:
        return "quantised", "Return its dequantize(), or its int_repr()"
    if str(tensor.layout) != "torch.strided":
        return str(tensor.layout), "Return its to_dense()"
    return "masked", "Return its get_data() and get_mask()"


def stored_dtype(path: str, value: Any) -> str:
    """The name of the dtype of an array or tensor.

    Raises:
        UnsupportedType: an array of another byte order, or of texts, objects or records.
    """
    if isinstance(value, np.ndarray):
        if not value.dtype.isnative:
            raise UnsupportedType(
                f"{path} is an array of {value.dtype.str}; only native byte order can be cached. Convert it with "
                "values.astype(values.dtype.newbyteorder('='))"
            )
        if value.dtype.kind in "OSTU" or value.dtype.names:
            raise UnsupportedType(
                f"{path} is an array of {value.dtype}; arrays of numbers, bools and times can be cached. Return texts "
                "as a list, values.tolist(), and records as a dict of their fields"
            )
        return dtype_name(value.dtype)
    return str(value.dtype).removeprefix("torch.")
