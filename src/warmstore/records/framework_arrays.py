"""Batches with every array, at any depth, as a torch tensor or a JAX array.

Other values (text, bytes, numbers, JSON values) are unchanged.
"""

import copy
import functools
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, final

import numpy as np

from warmstore.errors import SchemaMismatch, UnsupportedType
from warmstore.extras import imported
from warmstore.records.field_views import is_names
from warmstore.records.format.array_interop import is_tensor, to_torch
from warmstore.records.format.fields import Fields
from warmstore.records.sample_batch import SampleBatch
from warmstore.storage.array_types import UInt64

FORMATS = ("numpy", "torch", "jax")


class IndexedRecords(Protocol):
    """A `RecordStore`, or some fields of one."""

    @property
    def fields(self) -> Fields:
        """The typed fields, by name."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...

    def gather(self, index: Any, fields: Iterable[str] | None = None) -> dict[str, Any]:
        """The values at many positions, by field."""

    def __sample_hashes__(self) -> UInt64: ...


@final
class Formatted:
    """A store whose values come as tensors or JAX arrays: `RecordStore.with_format`. It does not close the store.

    store: a `RecordStore`, or some fields of one.
    """

    def __init__(self, store: IndexedRecords, format: str) -> None:
        if format not in FORMATS:
            raise ValueError(f"format is {format!r}; it must be one of {', '.join(FORMATS)}")
        self.store = store
        self.format = format
        self._convert = _converter(format)

    @property
    def fields(self) -> Fields:
        """The typed fields of every record, by name."""
        return self.store.fields

    def __identity__(self) -> Any:
        return self.format, self.store

    def __sample_hashes__(self) -> UInt64:
        return self.store.__sample_hashes__()

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: Any) -> Any:
        """One record for an integer, a field's values for its name, otherwise a gather, as for the store.

        A list of names gives the store with these fields only, in this format.
        """
        if isinstance(index, str):
            return self._convert(self.store[index][:], index)
        if is_names(index):
            return Formatted(self.store[index], self.format)
        return self._convert(self.store[index])

    def __getitems__(self, index: Any) -> SampleBatch:
        """The records at many positions as torch's DataLoader asks for them."""
        return SampleBatch(self.gather(index), len(index), index)

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    def gather(self, index: Any, fields: Iterable[str] | None = None) -> dict[str, Any]:
        """`RecordStore.gather` in this format."""
        found: dict[str, Any] = self._convert(self.store.gather(index, fields))
        return found

    def with_format(self, format: str) -> "Formatted":
        """The same store in another format."""
        return Formatted(self.store, format)

    def __reduce__(self) -> Any:
        return Formatted, (self.store, self.format)

    def __repr__(self) -> str:
        return f"{self.store!r} as {self.format}"


def _converter(format: str) -> Callable[..., Any]:
    """A function that converts a batch to a format. The optional name of a field is for messages."""
    if format == "numpy":
        return lambda batch, name="": batch
    library = imported(format)
    if format == "torch":
        return functools.partial(mapped, tensor_of)
    return functools.partial(mapped, functools.partial(jax_array_of, library))


def mapped(function: Callable[[Any, str], Any], batch: Any, name: str = "") -> Any:
    """A batch with every array and tensor replaced by `function(array, name)`."""
    if isinstance(batch, np.character):
        return batch.item()  # text and bytes are not arrays, though NumPy gives them a dtype
    if isinstance(batch, np.generic):
        batch = np.asarray(batch)
    if isinstance(batch, np.ndarray) or is_tensor(batch) or (hasattr(batch, "device") and hasattr(batch, "dtype")):
        return function(batch, name)
    if isinstance(batch, dict):
        return {key: mapped(function, value, f"{name}.{key}" if name else str(key)) for key, value in batch.items()}
    if isinstance(batch, UserDict):  # what tokenizers of Hugging Face return
        made = copy.copy(batch)
        made.data = mapped(function, batch.data, name)
        return made
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(function, value, name) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(mapped(function, value, name) for value in batch)
    return batch


def tensor_of(value: Any, name: str) -> Any:
    """An array as a tensor over the same memory. Read-only memory is copied, since torch has no read-only tensors.

    Raises:
        SchemaMismatch: some records have no value.
        UnsupportedType: torch has no such dtype, or not in this byte order.
    """
    if is_tensor(value):
        return value
    _check_array(value, name)
    if value.dtype.kind in "OUSV" and value.dtype.num < 256:
        raise UnsupportedType(f"{name or 'the batch'} is an array of {value.dtype}; torch has no such tensors")
    return to_torch(value if value.flags.writeable else value.copy())


def jax_array_of(jax: Any, value: Any, name: str, where: Any = None) -> Any:
    """An array or tensor as a JAX array, on a device or with a sharding if one is given.

    Raises:
        SchemaMismatch: some records have no value.
        UnsupportedType: JAX has no such dtype, or not without x64 or in this byte order.
    """
    value = host_array_of(jax, value, name)
    try:
        return jax.device_put(value, where)
    except TypeError as error:
        raise UnsupportedType(f"{name or 'the batch'} is {value.dtype}, which JAX does not support: {error}") from None


def host_array_of(jax: Any, value: Any, name: str) -> Any:
    """An array or tensor as a NumPy array that JAX accepts without a conversion.

    Raises:
        SchemaMismatch: some records have no value.
        UnsupportedType: JAX has no such dtype without x64 or in this byte order.
    """
    if is_tensor(value):
        value = value.numpy()
    _check_array(value, name)
    dtype = value.dtype
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise UnsupportedType(
            f"{name or 'the batch'} is {dtype}, which JAX would make {jax.dtypes.canonicalize_dtype(dtype)}: "
            "jax_enable_x64 is off. Convert it in a transform, or call jax.config.update('jax_enable_x64', True)"
        )
    return value


def _check_array(value: Any, name: str) -> None:
    if isinstance(value, np.ma.MaskedArray):
        raise SchemaMismatch(
            f"{name or 'the batch'} has records without a value, which only NumPy's masked arrays can represent; "
            "fill them in a transform: batch[...].filled(0)"
        )
    if value.dtype.kind in "iufc" and not value.dtype.isnative:
        raise UnsupportedType(
            f"{name or 'the batch'} is an array of {value.dtype.str}, and neither torch nor JAX has other byte orders. "
            "Convert it in a transform, with values.astype(values.dtype.newbyteorder('='))"
        )
