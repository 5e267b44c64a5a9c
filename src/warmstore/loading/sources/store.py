"""Record stores and their fields as sources."""

from collections.abc import Sequence
from typing import Any, final

from warmstore.loading.collate import LIST, Collation
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.sources.source import Source
from warmstore.records.fields import Array, Bytes, Field, Ragged
from warmstore.records.store import RecordStore
from warmstore.records.view import FieldView


@final
class StoreSource(Source):
    """The records of a store, as a dict of their fields."""

    def __init__(self, store: RecordStore, fields: Sequence[str] | None, collation: Collation) -> None:
        known = store.fields
        names = list(known if fields is None else fields)
        for name in names:
            if name not in known:
                raise KeyError(f"{store.path} has no field {name!r}; it has {list(known)}")
        self._store = store
        self._names = names
        self._packed = [name for name in names if _wants_packed(known[name], collation.under(name))]
        self._listed = [name for name in names if name not in self._packed]
        self.identity = store.manifest.id
        self.sample_bytes = _bytes_of([known[name] for name in names])

    def __len__(self) -> int:
        return len(self._store)

    def read(self, positions: Int64) -> dict[str, Any]:
        if not self._packed:
            return self._store.gather(positions, self._names)
        found = self._store.gather(positions, self._packed, packed=True)
        if self._listed:
            found.update(self._store.gather(positions, self._listed))
        return {name: found[name] for name in self._names}


@final
class FieldSource(Source):
    """One field of a store."""

    def __init__(self, view: FieldView, collation: Collation) -> None:
        self._store = view.store
        self._names = [view.name]
        self._packed = _wants_packed(view.field, collation)
        self.identity = view.store.manifest.id
        self.sample_bytes = _bytes_of([view.field])

    def __len__(self) -> int:
        return len(self._store)

    def read(self, positions: Int64) -> Any:
        return self._store.gather(positions, self._names, packed=self._packed)[self._names[0]]


def _wants_packed(field: Field, collation: Collation) -> bool:
    """Whether a field is put together after it was read, and so better read as one array."""
    if isinstance(field, Array) or collation.rest == LIST:
        return False
    return collation.asked or isinstance(field, Ragged | Bytes)


def _bytes_of(fields: Sequence[Field]) -> int | None:
    widths = [field.width if isinstance(field, Array) and field.codec == "raw" else None for field in fields]
    return None if None in widths else sum(widths)  # type: ignore[arg-type]
