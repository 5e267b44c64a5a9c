"""Record stores and their fields as sources."""

import itertools
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from warmstore.errors import Closed
from warmstore.loading.collate import LIST, Collation
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.source import Source
from warmstore.records.field_views import FieldView
from warmstore.records.format.fields import Array, Bytes, Field, Ragged, check_known
from warmstore.records.format.value_encoding import Packed
from warmstore.records.store_reader import StoreReader


@final
class StoreSource(Source):
    """The records of a store, as a dict of their fields.

    Args:
        fields: the fields to read, all by default.
        collation: fields that are collated afterwards are read packed.
        copy: arrays of ragged fields own their memory; False returns read-only views of the files.

    Raises:
        KeyError: a field that the store does not have.
        Closed: the store is closed.
    """

    def __init__(
        self, store: StoreReader, fields: Sequence[str] | None, collation: Collation, *, copy: bool = True
    ) -> None:
        known = store.fields
        self._names = list(known if fields is None else fields)
        check_known(store.path, self._names, known)
        if store.closed:
            raise Closed(f"the store {store.path} is closed; open it again with RecordStore.open, or pass its path")
        self._store = store
        chosen = {name: known[name] for name in self._names}
        packed = [name for name, field in chosen.items() if _wants_packed(field, collation.under(name))]
        ragged = [name for name, field in chosen.items() if isinstance(field, Ragged)]
        # Ragged fields are read packed, and split into arrays over the packed memory.
        self._split = [name for name in ragged if name not in packed] if copy else []
        self._packed = [*packed, *self._split]
        self.sample_bytes = _bytes_of(list(chosen.values()))

    @property
    def identity(self) -> dict[str, Any]:
        """The store, and its edits that may move records: deletes and new generations."""
        manifest = self._store._manifest
        deletes = self._store._snapshot.deletes
        return {"kind": "store", "store": manifest.id, "generation": manifest.generation, "deletes": deletes}

    def __len__(self) -> int:
        return len(self._store)

    def read(self, positions: Int64) -> dict[str, Any]:
        columns = self._store.gather(positions, self._names, packed=self._packed)
        for name in self._split:
            columns[name] = split(columns[name])
        return columns


@final
class FieldSource(Source):
    """One field of a store; the arguments are those of `StoreSource`."""

    def __init__(self, view: FieldView, collation: Collation, *, copy: bool = True) -> None:
        self._records = StoreSource(view.store, [view.name], Collation({view.name: collation}), copy=copy)
        self.sample_bytes = self._records.sample_bytes

    @property
    def identity(self) -> Any:
        """The identity of the store."""
        return self._records.identity

    def __len__(self) -> int:
        return len(self._records)

    def read(self, positions: Int64) -> Any:
        (column,) = self._records.read(positions).values()
        return column


def split(packed: Packed) -> list[np.ndarray[Any, Any] | None]:
    """The values of a `Packed` as writable arrays over its memory, None where absent."""
    data = packed.values if packed.values.flags.writeable else packed.values.copy()
    edges, shapes = packed.offsets, packed.shapes
    if shapes is not None and len(shapes) and (shapes[:, 1:] == shapes[0, 1:]).all():
        lengths = shapes[:, 0]  # all values are equal in their other dimensions
        data, shapes = data.reshape(int(lengths.sum()), *shapes[0, 1:].tolist()), None
        edges = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    values: list[Any] = [data[first:last] for first, last in itertools.pairwise(edges.tolist())]
    if shapes is not None:
        values = [value.reshape(shape) for value, shape in zip(values, shapes.tolist(), strict=True)]
    if packed.absent is not None:
        for at in np.flatnonzero(packed.absent).tolist():
            values[at] = None
    return values


def _wants_packed(field: Field, collation: Collation) -> bool:
    """Whether a field is collated after reading, and so faster to read as one array."""
    if isinstance(field, Array) or collation.rest == LIST:
        return False
    return collation.asked or isinstance(field, Ragged | Bytes)


def _bytes_of(fields: Sequence[Field]) -> int | None:
    widths = [field.width if isinstance(field, Array) and field.codec == "raw" else None for field in fields]
    return None if None in widths else sum(widths)  # type: ignore[arg-type]
