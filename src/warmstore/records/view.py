"""One field of a store as something that looks like a NumPy array."""

from typing import TYPE_CHECKING, Any

import numpy as np

from warmstore.records.fields import Array
from warmstore.records.samples import Samples

if TYPE_CHECKING:
    from warmstore.records.store import RecordStore


class FieldView:
    """`store["image"]`: every index is a gather of that field. Nothing is read before."""

    def __init__(self, store: "RecordStore", name: str) -> None:
        self.store = store
        self.name = name
        self.field = store.fields[name]

    def __identity__(self) -> Any:
        return self.name, self.store

    def __len__(self) -> int:
        return len(self.store)

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, *shape] for an Array, [N] otherwise."""
        return (len(self), *(self.field.shape if isinstance(self.field, Array) else ()))

    @property
    def ndim(self) -> int:
        """Dimensions, the records included."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The field's dtype; object where values are no arrays of one shape."""
        return self.field.numpy if isinstance(self.field, Array) else np.dtype(object)

    def __getitem__(self, index: Any) -> Any:
        """One value for an integer; else what `gather` gives for the field. A tuple indexes into the values too."""
        if isinstance(index, tuple):
            first, *rest = index or (slice(None),)
            values = self[first]
            inside = rest if isinstance(first, int | np.integer) else [slice(None), *rest]
            return values[tuple(inside)] if rest else values
        if index is Ellipsis:
            index = slice(None)
        if isinstance(index, int | np.integer) and not isinstance(index, bool | np.bool_):
            values = self.store.gather([index], [self.name])[self.name]
            return None if isinstance(values, np.ma.MaskedArray) else values[0]
        return self.store.gather(index, [self.name])[self.name]

    def __getitems__(self, index: Any) -> Samples:
        """The values at many positions as torch's DataLoader asks for them."""
        return Samples(self[index], len(index), index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """All values in memory."""
        if copy is False:
            raise ValueError("a field lies in a file: reading it into an array copies it")
        values = self[:]
        if isinstance(values, list):
            array = np.empty(len(values), object)
            array[:] = values
            return array.astype(dtype) if dtype is not None else array
        return np.asarray(values, dtype)

    def __repr__(self) -> str:
        return f"FieldView({self.name!r}, {self.field}, shape={self.shape})"
