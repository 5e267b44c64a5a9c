"""Changing what a store holds: fields added, dropped and mapped, and stores filtered into others.

A change of fields writes the store anew, into its next generation; values that stay are copied as they lie.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from warmstore.errors import PositionError, SchemaMismatch
from warmstore.records.format.encoded_rows import stored_rows
from warmstore.records.format.fields import Field, check_fields, check_known
from warmstore.records.read.positions import Int64, as_positions
from warmstore.records.store_session import BATCH_BYTES
from warmstore.records.write.rewrite import Make, Utilisation, rewrite
from warmstore.records.write.store_draft import drafted
from warmstore.records.write.write_buffer import WriteBuffer
from warmstore.storage.files import Files
from warmstore.storage.progress import progress_bar

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
        check_known(store.path, [name], store.fields)
        fields = {key: field for key, field in store.fields.items() if key != name}
        return rewrite(store, check_fields(fields), {}, progress=progress, label=f"drop {name}")


def map_field(
    store: "RecordStore", name: str, function: Map, field: Field | None, progress: bool | None
) -> Utilisation:
    """See `RecordStore.map_field`."""
    with store.editing():
        check_known(store.path, [name], store.fields)
        fields = check_fields({**store.fields, name: field or store.fields[name]})
        return rewrite(store, fields, {name: _maker(store, function)}, progress=progress, label=f"map {name}")


def filter_store(
    store: "RecordStore", path: str | os.PathLike[str], keep: Any, fields: Any, progress: bool | None
) -> "RecordStore":
    """See `RecordStore.filter`."""
    names = list(store.fields) if fields is None else list(fields)
    check_known(store.path, names, store.fields)
    if store.mode == "a":
        store.flush()  # stored rows are copied
    kept_fields = {name: store.fields[name] for name in names}
    files = Files() if store.files.is_remote else store.files
    with (
        drafted(path, files) as draft,
        type(store).create(draft, kept_fields, metadata=store.metadata, files=files) as target,
    ):
        _copy_kept(store, target, names, keep, progress)
    return type(store).open(path, "a", files=files)


def _copy_kept(store: "RecordStore", target: "RecordStore", names: list[str], keep: Any, progress: bool | None) -> None:
    """Commit the records to keep to another store, as they are stored: compressed, and absent where they are."""
    generation, edits = store.session.generation, store.snapshot.edits
    length = store.snapshot.length
    chosen = None if callable(keep) else as_positions(keep, length)
    total = length if chosen is None else len(chosen)
    step = max(1, min(_BLOCK, BATCH_BYTES * length // max(store.nbytes, 1)))
    queue = WriteBuffer(target.fields)
    with progress_bar(total, None, 0, "filter", progress) as advance:
        for first in range(0, total, step):
            last = min(first + step, total)
            positions = _wanted(store, keep, first, last) if chosen is None else chosen[first:last]
            if store.session.generation is not generation or store.snapshot.edits != edits:
                raise PositionError(f"{store.path} was edited while it was filtered; filter it again")
            if len(positions):
                gathered = generation.read(names, positions)
                queue.add({name: stored_rows(rows) for name, rows in zip(names, gathered, strict=True)})
            while queue.nbytes >= BATCH_BYTES:
                _commit_head(target, queue)
            advance(last - first, None)
        while queue.count:
            _commit_head(target, queue)


def _wanted(store: "RecordStore", keep: Callable[[dict[str, Any]], Any], first: int, last: int) -> Int64:
    """The positions of [first, last) that a function of records keeps."""
    mask = np.asarray(keep(store.gather(slice(first, last))))
    if mask.dtype != np.bool_ or mask.shape != (last - first,):
        raise SchemaMismatch(
            f"the filter must return one bool per record, {last - first} of them; it returned {mask.dtype} "
            f"of shape {mask.shape}"
        )
    return first + np.flatnonzero(mask)


def _commit_head(target: "RecordStore", queue: WriteBuffer) -> None:
    count, block = queue.head(BATCH_BYTES)
    target.commit_rows(block)
    queue.drop(count)


def _maker(store: "RecordStore", values: Any) -> Make:
    """What gives the values of positions [first, last): a function of records, or a sequence of one value each."""
    if callable(values):
        return lambda first, last: values(store.gather(slice(first, last)))

    def take(first: int, last: int) -> Any:
        if values is None:
            return [np.ma.masked] * (last - first)  # not None, which is a value of a Json field
        if len(values) != len(store):
            raise SchemaMismatch(
                f"a new field needs one value for each of the {len(store):,} records; got {len(values):,}"
            )
        return values[first:last]

    return take
