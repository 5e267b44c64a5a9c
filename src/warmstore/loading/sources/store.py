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
        fields: which to read, all by default. collation: which of them are put together afterwards.
        copy: arrays of ragged fields own their memory; False gives read-only views of the files.

    Raises:
        KeyError: a field that the store does not have. Closed: the store is.
    """

    def __init__(
        self, store: StoreReader, fields: Sequence[str] | None, collation: Collation, *, copy: bool = True
    ) -> None:
        known = store.fields
        names = list(known if fields is None else fields)
        check_known(store.path, names, known)
        self._columns = _Columns(store, names, {name: collation.under(name) for name in names}, copy)
        self.sample_bytes = _bytes_of([known[name] for name in names])

    @property
    def identity(self) -> Any:
        """The store, and what may have moved its records since."""
        return self._columns.identity

    def __len__(self) -> int:
        return len(self._columns.store)

    def read(self, positions: Int64) -> dict[str, Any]:
        return self._columns.read(positions)


@final
class FieldSource(Source):
    """One field of a store; the arguments are those of `StoreSource`."""

    def __init__(self, view: FieldView, collation: Collation, *, copy: bool = True) -> None:
        self._columns = _Columns(view.store, [view.name], {view.name: collation}, copy)
        self.sample_bytes = _bytes_of([view.field])

    @property
    def identity(self) -> Any:
        """The store, and what may have moved its records since."""
        return self._columns.identity

    def __len__(self) -> int:
        return len(self._columns.store)

    def read(self, positions: Int64) -> Any:
        (found,) = self._columns.read(positions).values()
        return found


class _Columns:
    """Fields of a store, each read as it is wanted. split: read packed, and handed out as arrays over that memory."""

    def __init__(self, store: StoreReader, names: list[str], collations: dict[str, Collation], copy: bool) -> None:
        if store.closed:
            raise Closed(f"the store {store.path} is closed; open it again with RecordStore.open, or pass its path")
        self.store = store
        self._names = names
        packed = [name for name in names if _wants_packed(store.fields[name], collations[name])]
        ragged = [name for name in names if isinstance(store.fields[name], Ragged)]
        self._split = [name for name in ragged if name not in packed] if copy else []
        self._packed = [*packed, *self._split]
        self._listed = [name for name in names if name not in self._packed]

    @property
    def identity(self) -> dict[str, Any]:
        """Deletes move records to other positions, and a new generation may; updates and appends leave them there."""
        manifest = self.store.manifest
        return {
            "kind": "store",
            "store": manifest.id,
            "generation": manifest.generation,
            "deletes": self.store.snapshot.deletes,
        }

    def read(self, positions: Int64) -> dict[str, Any]:
        if not self._packed:
            return self.store.gather(positions, self._names)
        found = self.store.gather(positions, self._packed, packed=True)
        for name in self._split:
            found[name] = split(found[name])
        if self._listed:
            found.update(self.store.gather(positions, self._listed))
        return {name: found[name] for name in self._names}


def split(packed: Packed) -> list[np.ndarray[Any, Any] | None]:
    """The values of a `Packed` as writable arrays over its memory, None where absent."""
    data = packed.values if packed.values.flags.writeable else packed.values.copy()
    edges, shapes = packed.offsets, packed.shapes
    if shapes is not None and len(shapes) and (shapes[:, 1:] == shapes[0, 1:]).all():
        lengths = shapes[:, 0]  # of the values that differ in nothing else
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
    """Whether a field is put together after it was read, and so better read as one array."""
    if isinstance(field, Array) or collation.rest == LIST:
        return False
    return collation.asked or isinstance(field, Ragged | Bytes)


def _bytes_of(fields: Sequence[Field]) -> int | None:
    widths = [field.width if isinstance(field, Array) and field.codec == "raw" else None for field in fields]
    return None if None in widths else sum(widths)  # type: ignore[arg-type]
