"""`export`: write the records of a store to files of other formats, a few megabytes at a time.

The target is replaced once all of it is written.
"""

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.converting.export_targets import TARGETS, Block
from warmstore.converting.record_source import rows_at_once
from warmstore.converting.source_paths import local_target
from warmstore.errors import SchemaMismatch, TargetExists, UnknownFormat
from warmstore.records.format.fields import Array, Fields
from warmstore.records.format.value_encoding import raw_rows
from warmstore.records.gather_results import CommittedRecords
from warmstore.replicate.record_store import RecordStore
from warmstore.storage.interrupts import uninterrupted
from warmstore.storage.progress import progress_bar

_SUFFIXES = {
    ".npy": "npy",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_MAPPED = 128 << 20
"""Bytes after which the pages that were read are unmapped."""


def export(
    store: RecordStore | str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    format: str | None = None,
    fields: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Path:
    """Write the committed records of a store to a file, or to a folder of .npy files. Every row is checked.

    Pending rows of a store that is open for appending are flushed first. All records are those of one moment: of the
    call, or of the last refresh of a store that is open for reading.

    Args:
        store: an open store or its folder.
        target: a file that ends in .npy (one Array field), .arrow, .feather or .parquet; or a folder, in which each
            Array field becomes a file FIELD.npy.
        format: "npy", "arrow" or "parquet"; by default found from the target's name.
        fields: names of the fields to export; all by default.
        overwrite: replace an existing target: a file, or a folder that holds nothing but .npy files.
        progress: show a bar; None shows one on a terminal or in a notebook.

    Returns:
        The target. It has values and no checksums. In .npy: [n, *shape] of the field's dtype, bfloat16 and float8 as
        void bits (`V2`, `V1`). In Arrow and Parquet: the columns of `RecordStore.to_arrow`, but a NaT of a field
        without a shape is the least integer, as null means absent. Parquet has no timestamps in seconds (int64
        instead) and no lists of size 0 (lists of any length instead). `convert` restores all fields; of
        bfloat16 and float8 in .npy if `fields=` names their types.

    Raises:
        UnknownFormat: no such format, or the target's name does not show the format.
        SchemaMismatch: no such field; for .npy a field that is no Array, or has absent values.
        UnsupportedType: Arrow cannot hold the values of a field; the message names it.
        TargetExists: the target exists, or lies in the store. `overwrite` replaces neither a folder with other things
            than .npy files, nor the store, a part of it, or a folder around it.
        ReadOnly: the target is a URL.
        Damaged: a row does not match its checksum; the target is unchanged.
    """
    target = local_target(target)
    kind = _format(target, format)
    with _opened(store) as reader:
        chosen = _chosen(reader.fields, fields, str(reader.path))
        _check_replaceable(target, reader.path, overwrite)
        target.parent.mkdir(parents=True, exist_ok=True)
        generation = reader._session.generation
        # A gatherer of its own checks rows that the store has read before, too.
        records = CommittedRecords.of(generation, generation.recheck())
        rows = records.snapshot.length
        with progress_bar(rows, None, 0, reader.path.name, progress) as advance, _draft(target) as draft:
            TARGETS[kind](draft, target.suffix.lower() == ".npy", chosen, rows, _blocks(records, chosen, advance))
    return target


@contextmanager
def _opened(store: RecordStore | str | os.PathLike[str]) -> Iterator[RecordStore]:
    """A store to read. An open one is read itself: that of a URL fetches what its folder lacks."""
    if isinstance(store, RecordStore) and not store.closed:
        if store.mode == "a":
            store.flush()
        yield store
    else:
        with RecordStore.open(store.path if isinstance(store, RecordStore) else store) as reader:
            yield reader


def _format(target: Path, format: str | None) -> str:
    chosen = format if format is not None else _SUFFIXES.get(target.suffix.lower(), "" if target.suffix else "npy")
    if chosen not in TARGETS:
        what = f"there is no format {format!r} to export to" if format else f"{str(target)!r} does not say the format"
        raise UnknownFormat(f"{what}; pass format=, one of {', '.join(TARGETS)}")
    return chosen


def _chosen(fields: Fields, names: Sequence[str] | None, what: str) -> Fields:
    if names is None:
        return fields
    if isinstance(names, str) or not names:
        raise SchemaMismatch(f"fields must be a list of names; got {names!r}")
    for name in names:
        if name not in fields:
            raise SchemaMismatch(f"{what} has no field {name!r}; it has {list(fields)}")
    return {name: fields[name] for name in names}


def _blocks(records: CommittedRecords, fields: Fields, advance: Any) -> Iterator[Block]:
    """The records in blocks of a few megabytes, by their average size. All are read as they are at the first block."""
    snapshot, chunks = records.snapshot, records.gatherer.batches.chunks
    stored = sum(int(sizes.sum()) for sizes in snapshot.size) // max(snapshot.rows, 1)
    width = max(stored, sum(field.width for field in fields.values() if isinstance(field, Array)), 1)
    step, mapped = rows_at_once(width), 0
    for first in range(0, snapshot.length, step):
        positions = np.arange(first, min(first + step, snapshot.length))
        gathered = {name: records.gather(name, positions) for name in fields}
        yield {name: raw_rows(fields[name], rows) for name, rows in gathered.items()}
        advance(len(positions), None)
        mapped += width * len(positions)
        if mapped >= _MAPPED:
            chunks.drop_pages()
            mapped = 0


def _check_replaceable(target: Path, store: Path, overwrite: bool) -> None:
    """Raise TargetExists if a target is there that may not be replaced, or would be in the store. `store`: the folder
    that is exported."""
    place, store = target.resolve(), store.resolve()
    if place == store or place in store.parents or store in place.parents:
        raise TargetExists(f"{target} is the store {store}, lies in it or holds it; name another target")
    if not (target.exists() or target.is_symlink()):
        return
    if not overwrite:
        raise TargetExists(f"{target} exists; name another target, or pass overwrite=True to replace it")
    if target.is_dir():
        for path in target.iterdir():
            if path.suffix != ".npy" or not path.is_file():
                raise TargetExists(
                    f"{target} holds {path.name}, and only a folder of nothing but .npy files is replaced. Remove it "
                    "yourself, or name another folder"
                )


@contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """A path beside the target, which is renamed to the target on success and removed on failure."""
    draft = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
    try:
        yield draft
        is_there = target.exists() or target.is_symlink()
        if is_there and (draft.is_dir() or (target.is_dir() and not target.is_symlink())):
            old = target.parent / f".{target.name}.{secrets.token_hex(4)}.old"
            with uninterrupted():
                target.rename(old)
                try:
                    draft.rename(target)
                except BaseException:
                    old.rename(target)
                    raise
                _remove(old)
        else:
            draft.replace(target)
    finally:
        _remove(draft)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
