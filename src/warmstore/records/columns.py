"""Changing what a store holds: fields added, dropped and mapped, and stores filtered into others.

A change of fields writes the store anew, into its next generation; values that stay are copied as they lie.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from warmstore.errors import SchemaMismatch
from warmstore.records.fields import Field, check_fields
from warmstore.records.positions import as_positions
from warmstore.records.progress import progress_bar
from warmstore.records.rewrite import Make, Utilisation, rewrite

if TYPE_CHECKING:
    from warmstore.records.store import RecordStore

_BLOCK = 4096

Map = Callable[[dict[str, Any]], Any]
"""Gets a batch of records, as `gather` gives them, and returns n values."""


def add_field(store: "RecordStore", name: str, field: Field, values: Any, progress: bool | None) -> Utilisation:
    """See `RecordStore.add_field`."""
    with store.editing():  # from here on the fields are those that other processes left
        if name in store.fields:
            raise SchemaMismatch(
                f"{store.path} has a field {name!r} already; change it with map_field, or drop it first"
            )
        fields = check_fields({**store.fields, name: field})
        return rewrite(store, fields, {name: _maker(store, values)}, progress=progress, label=f"add {name}")


def drop_field(store: "RecordStore", name: str, progress: bool | None) -> Utilisation:
    """See `RecordStore.drop_field`."""
    with store.editing():
        _check_has(store, name)
        fields = {key: field for key, field in store.fields.items() if key != name}
        return rewrite(store, check_fields(fields), {}, progress=progress, label=f"drop {name}")


def map_field(
    store: "RecordStore", name: str, function: Map, field: Field | None, progress: bool | None
) -> Utilisation:
    """See `RecordStore.map_field`."""
    with store.editing():
        _check_has(store, name)
        fields = check_fields({**store.fields, name: field or store.fields[name]})
        return rewrite(store, fields, {name: _maker(store, function)}, progress=progress, label=f"map {name}")


def filter_store(
    store: "RecordStore", path: str | os.PathLike[str], keep: Any, fields: Any, progress: bool | None
) -> "RecordStore":
    """See `RecordStore.filter`."""
    names = list(store.fields) if fields is None else list(fields)
    for name in names:
        _check_has(store, name)
    target = type(store).create(path, {name: store.fields[name] for name in names}, metadata=store.metadata)
    length = len(store)
    chosen = None if callable(keep) else as_positions(keep, length)
    total = length if chosen is None else len(chosen)
    with progress_bar(total, None, 0, "filter", progress) as advance:
        for first in range(0, total, _BLOCK):
            last = min(first + _BLOCK, total)
            if chosen is None:
                mask = np.asarray(keep(store.gather(slice(first, last))))
                if mask.dtype != np.bool_ or mask.shape != (last - first,):
                    raise SchemaMismatch(
                        f"the filter must return one bool per record, {last - first} of them; it returned {mask.dtype} "
                        f"of shape {mask.shape}"
                    )
                positions = first + np.flatnonzero(mask)
            else:
                positions = chosen[first:last]
            if len(positions):
                target.extend(store.gather(positions, names))
            advance(last - first, None)
    target.flush()
    return target


def _maker(store: "RecordStore", values: Any) -> Make:
    """What gives the values of positions [first, last): a function of records, or a sequence of one value each."""
    if callable(values):
        return lambda first, last: values(store.gather(slice(first, last)))

    def take(first: int, last: int) -> Any:
        if values is None:
            return [None] * (last - first)
        if len(values) != len(store):
            raise SchemaMismatch(
                f"a new field needs one value for each of the {len(store):,} records; got {len(values):,}"
            )
        return values[first:last]

    return take


def _check_has(store: "RecordStore", name: str) -> None:
    if name not in store.fields:
        raise KeyError(f"{store.path} has no field {name!r}; it has {list(store.fields)}")
