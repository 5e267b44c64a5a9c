"""`convert`: any known format into a new store, in order and exactly once, also after kills and restarts.

The store's metadata describes the source under "converted". The number of committed rows says how far the conversion
has come. No other state is kept, so a kill leaves no contradiction. Until it is complete, the store is a draft in a
folder beside the target.
"""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from warmstore.converting.conversion_draft import (
    CONVERTED,
    PARTITIONS,
    UNKNOWN,
    ConversionDraft,
    as_json,
    claim,
    cut_of,
    hold,
    remove,
)
from warmstore.converting.format_detection import detect
from warmstore.converting.hive_partitions import partition_names
from warmstore.converting.known_formats import Format, named
from warmstore.converting.record_source import BROKEN, RecordSource, Request, SourceBatch, fields_argument
from warmstore.converting.source_paths import local_target, paths_of, root_of
from warmstore.errors import (
    BadSource,
    Damaged,
    NewerFormat,
    NotAStore,
    SchemaMismatch,
    StoreExists,
    WarmstoreError,
)
from warmstore.identity import identify
from warmstore.identity.identity import reasons
from warmstore.records.format.encoded_rows import EncodedRows, GatheredColumn
from warmstore.records.format.fields import Field, Fields, Json, fields_to_json
from warmstore.records.format.value_encoding import encode, raw_rows
from warmstore.records.maintenance.filtering import copy_kept
from warmstore.records.write.store_draft import real_place
from warmstore.replicate.record_store import RecordStore
from warmstore.storage.file_times import settle
from warmstore.storage.memory.address_space import SLOT
from warmstore.storage.progress import progress_bar
from warmstore.storage.registry import STORE, register

_FLUSH_BYTES = 32 << 20
_FLUSH_ROWS = 1 << 18
"""The most pending rows: during a flush, checksums take a Python object a row."""

Block = dict[str, EncodedRows]


def convert(
    source: Any,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    fields: Fields | Sequence[str] | None = None,
    decode: bool | Callable[[bytes], dict[str, Any]] | None = None,
    size: int | tuple[int, int] | None = None,
    batched: bool = False,
    metadata: dict[str, Any] | None = None,
    chunk_size: int | str = SLOT,
    writer_threads: int | None = None,
    progress: bool | None = None,
) -> RecordStore:
    """Make a store from data in another format. A conversion that was killed resumes when it is called again.

    The store appears at `path` once it is complete. A conversion that is killed or fails leaves a draft in the folder
    `.NAME.converting` beside it, which the next call completes.

    Args:
        source: a path, a pattern ("train-{000..099}.tar", "*.parquet") or a list of them; an array, or a dict of arrays
            [n, ...] of one length; a table or data set of pyarrow, a data frame of pandas or polars; a
            `datasets.Dataset`; a `torch.utils.data.Dataset`; or any iterable of records (dicts of a value per field).
        path: the store's folder: new, or empty.
        format: one of "array_record", "arrow", "csv", "hdf5", "hugging_face", "images", "jsonl", "mds", "npy", "npz",
            "parquet", "torchcachex", "webdataset"; by default found from the names of files.
        fields: names of the fields to convert; or a dict of names and fields, for types that the source does not give
            or gives less exactly (`ws.Array("float32", (768,))` for lists of 768 numbers). All fields by default.
        decode: True decodes image files, alone and in MDS, to uint8 [height, width, 3]: an Array where all have one
            size, else Ragged. For ArrayRecord a function from a record's bytes to a dict of values.
        size: height and width in pixels to which decoded images are resized (bilinear).
        batched: an iterable yields batches: dicts of n values per field, arrays [n, ...].
        metadata: a JSON value, kept with the store.
        chunk_size: bytes after which a chunk is sealed, at most 1 GiB.
        writer_threads: threads that compress; None for one per core.
        progress: show a bar; None shows one on a terminal or in a notebook.

    Returns:
        The store, open for reading.

    Raises:
        NoSource: the source does not exist, or is a URL: sources are local files.
        BadSource: the source is empty, of unequal lengths or damaged, or holds nulls inside of values.
        UnknownFormat: no such format, or the format cannot be found from the source.
        SchemaMismatch: a record does not fit the fields, or `fields` does not fit the source.
        UnsupportedType: no field holds a dtype; or values are pickled.
        StoreExists: `path` holds something that this conversion did not make, or another process converts into it.
        ReadOnly: `path` is a URL.
        NotInstalled: the format needs an optional package.
    """
    paths = paths_of(source)
    kind = named(format) if format is not None else detect(source, paths)
    _check_options(kind, decode, size, batched)
    path_tuple, root = (None, None) if paths is None else (tuple(paths), root_of(source))
    request = Request(source, path_tuple, fields_argument(fields), decode, _size(size), batched, root)
    files = kind.files(paths) if paths is not None else []
    made_from = _made_from(kind, request, files)
    metadata = metadata or {}
    encode("metadata", Json(), [metadata])
    if CONVERTED in metadata:
        raise ValueError(f"metadata has the name {CONVERTED!r}, which describes the source: choose another name")
    target = real_place(local_target(path))
    what = str(source) if paths else kind.name
    writing: dict[str, Any] = {"chunk_size": chunk_size, "writer_threads": writer_threads}
    with contextlib.ExitStack() as stack:
        draft = claim(target, made_from, metadata, stack, writing, None if paths else source)
        if draft.is_complete and (made_from["files"] or made_from["source"]):
            if draft.is_draft:
                draft.publish()
            return RecordStore.open(target)
        opened = kind.open(request, files)
        described = {**opened.metadata, **metadata, CONVERTED: {**made_from, "complete": False}}
        store = _open_draft(draft, opened, described)
        start = 0 if store is None else len(store)
        blocks = _blocks(opened, start, what)
        if store is None:
            # The first records are read before the store is made: they show most errors of a source.
            first = next(blocks, None)
            if first is None:
                raise BadSource(f"{source if paths else 'the source'} holds no records")
            store = draft.create(opened.fields, described)
            blocks = itertools.chain([first], blocks)
        elif not opened.skippable:
            store, start, blocks = _skip_known(draft, store, start, blocks, described)
            if draft.is_complete and not draft.is_draft and next(blocks, None) is not None:
                raise StoreExists(
                    f"{store.path} is complete with {start:,} records, and the source has more; append them"
                )
        with progress_bar(opened.rows, opened.size, start, target.name, progress) as advance:
            _fill(store, blocks, start, advance)
        store.close()
        draft.publish()
    register(STORE, target)
    return RecordStore.open(target)


def _open_draft(draft: ConversionDraft, opened: RecordSource, described: dict[str, Any]) -> RecordStore | None:
    """The store to resume, open for appending, or None. A draft that cannot be resumed is removed."""
    if draft.manifest is None:
        return None
    expected = {**described, CONVERTED: {**described[CONVERTED], "complete": draft.is_complete}}
    if draft.is_draft and (draft.manifest.fields != opened.fields or draft.manifest.metadata != as_json(expected)):
        draft.discard()
        return None
    if draft.manifest.fields.keys() != opened.fields.keys():
        raise StoreExists(
            f"{draft.target} was made from something else: it has the fields {list(draft.manifest.fields)}, the source "
            f"{list(opened.fields)}. Name a new folder, or choose with fields=[...]"
        )
    try:
        store = draft.open()
    except (Damaged, NewerFormat, NotAStore):
        if not draft.is_draft:
            raise
    else:
        if not (draft.is_draft and store._snapshot.unreadable):
            return store
        store.close()
    draft.discard()
    return None


def _fill(store: RecordStore, blocks: Iterator[tuple[Block, int | None]], start: int, advance: Any) -> None:
    pending = 0
    written = start
    for block, done in blocks:
        store._extend_rows(block)
        count = next(iter(block.values())).count
        written += count
        pending += sum(rows.nbytes for rows in block.values())
        if pending >= _FLUSH_BYTES or written - store._snapshot.length >= _FLUSH_ROWS:
            store.flush()
            pending = 0
            _check_alone(store, written)
        advance(count, done)
    store.flush()
    _check_alone(store, written)


def _check_alone(store: RecordStore, written: int) -> None:
    if store._snapshot.length != written:
        raise StoreExists(
            f"{store.path} has {store._snapshot.length:,} records where {written:,} were converted: another process "
            "appended to it. Convert into a new folder, and append afterwards"
        )


def _blocks(source: RecordSource, start: int, what: str) -> Iterator[tuple[Block, int | None]]:
    """The source's batches, encoded, each with `SourceBatch.done`. Errors name the record."""
    at = start if source.skippable else 0
    try:
        for batch in source.read(at):
            block = encode_batch(source.fields, batch)
            yield block, batch.done
            at += next(iter(block.values())).count
    except SchemaMismatch as error:
        raise SchemaMismatch(
            f"{what}, in the records from number {at:,} on: {error}. Without fields=, the first records decide the "
            "fields; pass ws.Ragged for arrays whose shapes vary and ws.Json for other values"
        ) from error
    except WarmstoreError:
        raise
    except BROKEN as error:
        raise BadSource(f"{what} cannot be read after record {at:,}: {error}") from error


def encode_batch(fields: Fields, batch: SourceBatch) -> Block:
    """A batch as equally many rows of every field."""
    if set(batch.columns) != set(fields):
        raise SchemaMismatch(f"a record has the fields {sorted(fields)}; got {sorted(batch.columns)}")
    block = {}
    for name, field in fields.items():
        values = batch.columns[name]
        block[name] = values if isinstance(values, EncodedRows) else encode(name, field, values)
    counts = {name: rows.count for name, rows in block.items()}
    if len(set(counts.values())) > 1:
        raise SchemaMismatch(f"all fields of a batch need the same number of records; got {counts}")
    return block


def _skip_known(
    draft: ConversionDraft,
    store: RecordStore,
    start: int,
    blocks: Iterator[tuple[Block, int | None]],
    described: dict[str, Any],
) -> tuple[RecordStore, int, Iterator[tuple[Block, int | None]]]:
    """Skip the first `start` records, which the store has, and compare them with the store.

    Where they differ, a draft is cut to the records before, and a complete store is refused.

    Returns:
        The store to append to, its number of records, and the following blocks.
    """
    at = 0
    while at < start:
        block, done = next(blocks, (None, None))
        if block is None:
            problem = f"it has {start:,} records, the source {at:,}"
            rest = blocks
            break
        count = next(iter(block.values())).count
        known = min(count, start - at)
        name = _difference(store, {name: rows.slice(0, known) for name, rows in block.items()}, at)
        if name is not None:
            problem = f"field {name!r} of its records {at:,} to {at + known - 1:,} differs from the source"
            rest = itertools.chain([(block, done)], blocks)
            break
        at += known
        if known < count:
            block = {name: rows.slice(known, count) for name, rows in block.items()}
            blocks = itertools.chain([(block, done)], blocks)
    else:
        return store, start, blocks
    if not draft.is_draft:
        raise StoreExists(
            f"{store.path} was made from something else: {problem}. An iterable must yield the same records again"
        )
    return _cut_draft(draft, store, at, described), at, rest


def _cut_draft(draft: ConversionDraft, store: RecordStore, count: int, described: dict[str, Any]) -> RecordStore:
    """Replace a draft by a draft of its first `count` records."""
    draft.check_spare()
    folder = cut_of(draft.folder)
    remove(folder)
    cut = RecordStore.create(folder, store.fields, metadata=described, **draft.writing)
    copy_kept(store._session, cut._session, slice(count), store.gather, progress=False)
    cut.close()
    store.close()
    draft.discard()
    folder.rename(draft.folder)
    hold(draft.folder, draft.stack)
    return draft.open()


def _difference(store: RecordStore, block: Block, first: int) -> str | None:
    """The first field whose values differ from those of the store from record `first` on, or None."""
    count = next(iter(block.values())).count
    stored = store._gatherer.read_rows(list(block), np.arange(first, first + count))
    for (name, rows), gathered in zip(block.items(), stored, strict=True):
        if (gathered.bad is not None and gathered.bad.any()) or not _same(store.fields[name], rows, gathered):
            return name
    return None


def _same(field: Field, rows: EncodedRows, gathered: GatheredColumn) -> bool:
    stored = raw_rows(field, gathered)
    pairs = [
        (stored.data.reshape(-1), rows.data.reshape(-1)),
        (_absent(stored), _absent(rows)),
        (stored.shapes, rows.shapes),
        (stored.offsets, rows.offsets),
    ]
    return all(np.array_equal(old, new) for old, new in pairs if old is not None and new is not None)


def _absent(rows: EncodedRows) -> Any:
    return np.zeros(rows.count, bool) if rows.absent is None else rows.absent


def _check_options(kind: Format, decode: Any, size: Any, batched: bool) -> None:
    given = {"decode": decode not in (None, False), "size": size is not None, "batched": batched}
    for name, is_given in given.items():
        if is_given and name not in kind.options:
            raise ValueError(f"the format {kind.name!r} takes no {name}=")
    if size is not None and not decode:
        raise ValueError("size= resizes images while they are decoded: pass decode=True too")
    if decode and kind.name == "array_record" and not callable(decode):
        raise ValueError(f"decode is {decode!r}; it must be a function from a record's bytes to a dict of values")


def _size(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ValueError(f"size is {size!r}; it must be pixels above zero, or (height, width)")
    return height, width


def _described_function(function: Callable[..., Any]) -> str | dict[str, str]:
    """The name and the identity of a function; why it has none where it has none, which is equal to nothing."""
    found = identify(function, name="decode")
    if found.unknown:
        return {UNKNOWN: reasons(found.unknown)}
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')} {found.digest}"


def _made_from(kind: Format, request: Request, files: Sequence[Path]) -> dict[str, Any]:
    """What a store keeps about its conversion. Only a conversion with an equal description resumes it."""
    fields, decode = request.fields, request.decode
    if request.paths is not None:
        # JSON has no text for a name that is no UTF-8.
        source: Any = [os.fsencode(path.absolute()).decode(errors="backslashreplace") for path in request.paths]
    else:
        # Other objects may have an attribute of this name: wrappers of data sets, frames with such a column.
        source = getattr(request.source, "_fingerprint", None) if kind.name == "hugging_face" else None
    state = xxhash.xxh3_128()
    for file in files:
        stat = file.stat()
        settle(stat.st_mtime_ns)
        state.update(os.fsencode(f"{file.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\0"))
    return {
        "format": kind.name,
        "source": source,
        "files": state.hexdigest() if files else None,
        "fields": fields_to_json(fields) if isinstance(fields, Mapping) else fields and list(fields),
        "decode": _described_function(decode) if callable(decode) else decode or False,
        "size": request.size and list(request.size),
        "batched": request.batched,
        PARTITIONS: partition_names(files[0], request.root) if files and request.root else [],
    }
