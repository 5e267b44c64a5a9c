"""Views of fields: one field can be indexed like a NumPy array, several fields like a store."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from warmstore.display.html import html_method
from warmstore.errors import PositionError, SchemaMismatch
from warmstore.records.format.fields import Array, Field, Fields, check_known
from warmstore.records.read.numpy_indexing import apply_index, is_integer, split_index
from warmstore.records.sample_batch import SampleBatch, sendable_value
from warmstore.records.store_html import store_html
from warmstore.records.store_reader import StoreReader
from warmstore.storage.array_types import UInt64


class FieldView:
    """`store["image"]`: indexing gathers that field. Nothing is read before."""

    def __init__(self, store: StoreReader, name: str) -> None:
        check_known(store.path, [name], store.fields)
        self.store = store
        self.name = name

    @property
    def field(self) -> Field:
        """The type of its values."""
        return self.store.fields[self.name]

    def __identity__(self) -> Any:
        return self.name, self.store

    def __sample_hashes__(self) -> UInt64:
        return self.store.__sample_hashes__()

    def __len__(self) -> int:
        return len(self.store)

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, *shape] for an Array, [N] otherwise."""
        field = self.field
        return (len(self), *(field.shape if isinstance(field, Array) else ()))

    @property
    def ndim(self) -> int:
        """Dimensions, the records included."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The field's dtype; object if values have no common shape."""
        field = self.field
        return field.numpy if isinstance(field, Array) else np.dtype(object)

    def __getitem__(self, index: Any) -> Any:
        """The values at an index. Only the records that it needs are read.

        An Array field accepts every index of a NumPy array of its shape (integers, slices, `...`, None, arrays and
        lists of integers of any dimensions, masks, and tuples of these) and gives the same result, masked where values
        are absent. Other fields are sequences: they accept an integer, a slice, `...`, or integers or a mask of one
        dimension, and give a list. One integer gives one value, None if it is absent.

        Raises:
            PositionError: a position outside the field, or not an index.
        """
        if is_integer(index):
            return first_value(self.store.gather([index], [self.name])[self.name])
        if not isinstance(index, slice) and not _is_plain(index):
            if isinstance(self.field, Array):
                return self._indexed(index)
            index = self._records(index)
            if is_integer(index):
                return self[index]
        return self.store.gather(index, [self.name])[self.name]

    def _indexed(self, index: Any) -> Any:
        """The values at an index of an Array field, by NumPy's rules."""
        positions, rest = split_index(index, self.shape)
        values = self.store.gather(positions, [self.name])[self.name]
        whole = len(rest) == 1 and isinstance(rest[0], np.ndarray) and rest[0].ndim == 1
        if whole:
            return values  # indexing would copy it
        return first_value(values) if len(rest) == 1 and _is_zero(rest[0]) else apply_index(values, rest)

    def _records(self, index: Any) -> Any:
        """The records at an index of a field of one dimension."""
        if isinstance(index, tuple) and len(index) < 2:
            index = index[0] if index else slice(None)
        if index is Ellipsis:
            return slice(None)
        if hasattr(index, "__index__") and not isinstance(index, bool) and np.ndim(index) == 0:
            return int(index)
        if index is None or isinstance(index, tuple):
            raise PositionError(
                f"field {self.name!r} holds {self.field.kind}, of one dimension: it takes an integer, a slice, "
                f"integers or a mask; got {index!r:.60}. "
                f"Index the records first: store[{self.name!r}][records], then each value"
            )
        return index

    def __getitems__(self, index: Any) -> SampleBatch:
        """The values at many positions as torch's DataLoader asks for them."""
        return SampleBatch(self.store.gather(index, [self.name])[self.name], len(index), index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """All values in memory; as objects if they have no common shape.

        Raises:
            SchemaMismatch: values are absent, which an array cannot represent.
            ValueError: `copy` is False.
        """
        if copy is False:
            raise ValueError("a field is in a file: reading it into an array copies it")
        values = self[:]
        if isinstance(values, list):
            array = np.empty(len(values), object)
            array[:] = values
            return array.astype(dtype) if dtype is not None else array
        if isinstance(values, np.ma.MaskedArray):
            absent = np.flatnonzero(np.ma.getmaskarray(values).reshape(len(values), -1).all(axis=1))
            raise SchemaMismatch(
                f"field {self.name!r} has records without a value, the first at position {absent[0]}: an array cannot "
                f"represent them. Use store[{self.name!r}][:], which is a masked array, or its .filled(...)"
            )
        return np.asarray(values, dtype)

    def _html(self) -> str:
        return store_html(self.store, [self.name], "FieldView")

    _repr_html_ = html_method(_html)

    def __repr__(self) -> str:
        return f"FieldView({self.name!r}, {self.field}, shape={self.shape})"


class FieldsView:
    """`store[["image", "label"]]`: the records of a store with some of their fields. Nothing is read before."""

    def __init__(self, store: StoreReader, names: Sequence[str]) -> None:
        check_known(store.path, names, store.fields)
        self.store = store
        self.names = list(dict.fromkeys(names))

    @property
    def fields(self) -> Fields:
        """The typed fields, by name."""
        fields = self.store.fields
        return {name: fields[name] for name in self.names}

    def __identity__(self) -> Any:
        return self.names, self.store

    def __sample_hashes__(self) -> UInt64:
        return self.store.__sample_hashes__()

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: Any) -> Any:
        """One record for an integer, a field for a str, fewer fields for a list of str, else what `gather` returns."""
        if isinstance(index, str) or is_names(index):
            check_known(f"the view of {self.store.path}", [index] if isinstance(index, str) else index, self.fields)
            return FieldView(self.store, index) if isinstance(index, str) else FieldsView(self.store, index)
        if is_integer(index):
            return {name: first_value(values) for name, values in self.gather([index]).items()}
        return self.gather(index)

    def __getitems__(self, index: Any) -> SampleBatch:
        """The records at many positions as torch's DataLoader asks for them."""
        return SampleBatch(self.gather(index), len(index), index)

    def gather(self, index: Any, fields: Iterable[str] | None = None) -> dict[str, Any]:
        """`RecordStore.gather` of these fields, or of some of them."""
        if fields is not None:
            fields = fields if isinstance(fields, str) else tuple(fields)
            check_known(f"the view of {self.store.path}", fields, self.fields)
        return self.store.gather(index, self.names if fields is None else fields)

    def _html(self) -> str:
        return store_html(self.store, self.names, "FieldsView")

    _repr_html_ = html_method(_html)

    def __repr__(self) -> str:
        return f"FieldsView({self.names}, {len(self):,} records)"


def is_names(index: Any) -> bool:
    """Whether an index is a list of field names."""
    return isinstance(index, list) and bool(index) and all(isinstance(name, str) for name in index)


def first_value(values: Any) -> Any:
    """The value of the one record that was read; None where it is absent."""
    return None if isinstance(values, np.ma.MaskedArray) else sendable_value(values[0])


def _is_plain(index: Any) -> bool:
    """Whether an index is a one-dimensional array of integers."""
    return isinstance(index, np.ndarray) and index.ndim == 1 and index.dtype.kind in "iu"


def _is_zero(part: Any) -> bool:
    """Whether a part of an index selects the one record that was read."""
    return is_integer(part) or (isinstance(part, np.ndarray) and not part.ndim and part.dtype.kind in "iu")
