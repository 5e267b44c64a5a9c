"""`convert`: any known format into a new store, in order and exactly once, also when it is killed and started again.

What was converted stands in the store's metadata under "converted", and how far is the number of its committed
rows: nothing else needs to be remembered, so nothing can disagree after a kill. The store is a draft beside its place
until it is complete.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from warmstore.converting.conversion_draft import CONVERTED, ConversionDraft, anew_of, as_json, claim, hold, remove
from warmstore.converting.known_formats import Format, detect, named, paths_of, root_of
from warmstore.converting.record_source import BROKEN, RecordSource, Request, SourceBatch, fields_asked, rows_at_once
from warmstore.errors import (
    BadSource,
    Damaged,
    NewerFormat,
    NotAStore,
    SchemaMismatch,
    StoreExists,
    WarmstoreError,
)
from warmstore.records.format.encoded_rows import EncodedRows, GatheredColumn, stored_rows
from warmstore.records.format.fields import Field, Fields, fields_to_json
from warmstore.records.format.value_encoding import encode, raw_rows
from warmstore.replicate.record_store import RecordStore
from warmstore.storage.memory.address_space import SLOT
from warmstore.storage.progress import progress_bar

_FLUSH_BYTES = 32 << 20
_FLUSH_ROWS = 1 << 18
"""What is pending at most: checksums take a Python object a row for as long as a flush lasts."""

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
    """Make a store from data in another format. Killed and called again, it goes on where it stopped.

    The store appears at `path` when it is complete, and not before: a conversion that is killed or fails leaves a
    folder `.NAME.converting` beside it, with which the next one goes on.

    Args:
        source: a path, a pattern ("train-{000..099}.tar", "*.parquet") or a list of them; an array, or a dict of arrays
            [n, ...] of one length; a table or data set of pyarrow, a data frame of pandas or polars; a
            `datasets.Dataset`; a `torch.utils.data.Dataset`; or any iterable of records (dicts of a value per field).
        path: the store's folder: new, or empty.
        format: one of "array_record", "arrow", "csv", "hdf5", "hugging_face", "images", "jsonl", "mds", "npy", "npz",
            "parquet", "torchcachex", "webdataset"; found from the names of files where it is not told.
        fields: names of the fields to convert; or a dict of names and fields where the source does not say, or says
            less than you know (`ws.Array("float32", (768,))` for lists that all have 768 numbers). All by default.
        decode: for images, alone and in MDS, True decodes them to uint8 [height, width, 3]: an Array where all have one
            size, else Ragged. For ArrayRecord a function from a record's bytes to a dict of values.
        size: height and width in pixels to which images are resized while they are decoded (bilinear).
        batched: an iterable yields batches: dicts of n values per field, arrays [n, ...].
        metadata: anything JSON can say, kept with the store.
        chunk_size: bytes after which a chunk is sealed, at most 1 GiB.
        writer_threads: threads that compress; None for one per core.
        progress: show a progress bar; by default only on a terminal.

    Returns:
        The store, open for reading.

    Raises:
        NoSource: the source is not there.
        BadSource: it is empty, of unequal lengths or broken, or holds nulls inside of values.
        UnknownFormat: a format that is not known or cannot be told.
        SchemaMismatch: a record does not fit the fields, or `fields` does not fit the source.
        UnsupportedType: a dtype that cannot be kept; an object array or another pickle.
        StoreExists: `path` holds something that this conversion did not make, or another process is at it right now.
        NotInstalled: the format needs an optional package.
    """
    paths = paths_of(source)
    kind = named(format) if format is not None else detect(source, paths)
    request = Request(
        source,
        None if paths is None else tuple(paths),
        fields_asked(fields),
        decode,
        _size(size),
        _check(kind, decode, size, batched),
        None if paths is None else root_of(source),
    )
    files = kind.files(paths) if paths is not None else []
    made_from = _made_from(kind, request, files)
    if metadata and CONVERTED in metadata:
        raise ValueError(f"metadata has the name {CONVERTED!r}, under which the store remembers what it was made from")
    target = Path(path)
    what = str(source) if paths else kind.name
    writing: dict[str, Any] = {"chunk_size": chunk_size, "writer_threads": writer_threads}
    with contextlib.ExitStack() as stack:
        place = claim(target, made_from, stack)
        if place.is_complete and (made_from["files"] or made_from["source"]):
            if place.is_draft:
                place.publish()
            return RecordStore.open(target)
        if place.manifest is not None and not place.is_draft:
            request = replace(request, fields=place.manifest.fields)
        opened = kind.open(request, files)
        remembered = {**opened.metadata, **(metadata or {}), CONVERTED: {**made_from, "complete": False}}
        store = _begun(place, opened, remembered, stack, writing)
        start = 0 if store is None else len(store)
        blocks = _blocks(opened, start, what)
        if store is None:
            # The first records are read before the store is made: most that can be wrong with a source shows there.
            first = next(blocks, None)
            if first is None:
                raise BadSource(f"{source if paths else 'the source'} holds no records")
            store = stack.enter_context(RecordStore.create(place.folder, opened.fields, metadata=remembered, **writing))
            hold(place.folder, stack)
            blocks = _with_first(first, blocks)
        elif not opened.skippable:
            store, start, blocks = _compared(place, store, start, blocks, remembered, stack, writing)
            if place.is_complete and not place.is_draft:
                blocks = _nothing_more(blocks, store)
        with progress_bar(opened.rows, opened.size, start, target.name, progress) as advance:
            _fill(store, blocks, start, advance)
        store.close()
        place.publish()
    return RecordStore.open(target)


def _begun(
    place: ConversionDraft,
    opened: RecordSource,
    remembered: dict[str, Any],
    stack: contextlib.ExitStack,
    writing: dict[str, Any],
) -> RecordStore | None:
    """The store to go on with, open for appending, or None where there is none. A draft of other fields is removed."""
    if place.manifest is None:
        return None
    described = {**remembered, CONVERTED: {**remembered[CONVERTED], "complete": place.is_complete}}
    if place.is_draft and (place.manifest.fields != opened.fields or place.manifest.metadata != as_json(described)):
        place.discard()
        return None
    try:
        return stack.enter_context(RecordStore.open(place.folder, "a", **writing))
    except (Damaged, NewerFormat, NotAStore):
        if not place.is_draft:
            raise
        place.discard()
        return None


def _fill(store: RecordStore, blocks: Iterator[tuple[Block, int | None]], start: int, advance: Any) -> None:
    pending = 0
    written = start
    for block, done in blocks:
        store.extend_rows(block)
        count = next(iter(block.values())).count
        written += count
        pending += sum(rows.nbytes for rows in block.values())
        if pending >= _FLUSH_BYTES or written - store.snapshot.length >= _FLUSH_ROWS:
            store.flush()
            pending = 0
            _check_alone(store, written)
        advance(count, done)
    store.flush()
    _check_alone(store, written)


def _check_alone(store: RecordStore, written: int) -> None:
    if store.snapshot.length != written:
        raise StoreExists(
            f"{store.path} has {store.snapshot.length:,} records where {written:,} were converted: another process "
            "appended to it meanwhile. Convert into a new folder, and append when that is done"
        )


def _blocks(source: RecordSource, start: int, what: str) -> Iterator[tuple[Block, int | None]]:
    """The source's batches, encoded; errors say where in the source they happened."""
    at = start if source.skippable else 0
    try:
        for batch in source.read(at):
            block = encode_batch(source.fields, batch)
            yield block, batch.done
            at += next(iter(block.values())).count
    except SchemaMismatch as error:
        raise SchemaMismatch(
            f"{what}, in the records from number {at:,} on: {error}. The first records fixed the fields where fields= "
            "did not; use ws.Ragged for arrays whose shapes vary and ws.Json for anything else"
        ) from error
    except WarmstoreError:
        raise
    except BROKEN as error:
        raise BadSource(f"{what} cannot be read after record {at:,}: {error}") from error


def encode_batch(fields: Fields, batch: SourceBatch) -> Block:
    """A batch as rows of every field, all as many."""
    if set(batch.columns) != set(fields):
        raise SchemaMismatch(f"a record has the fields {sorted(fields)}; got {sorted(batch.columns)}")
    block = {name: _rows(name, field, batch.columns[name]) for name, field in fields.items()}
    counts = {name: rows.count for name, rows in block.items()}
    if len(set(counts.values())) > 1:
        raise SchemaMismatch(f"all fields of a batch need the same number of records; got {counts}")
    return block


def _rows(name: str, field: Field, values: Any) -> EncodedRows:
    return values if isinstance(values, EncodedRows) else encode(name, field, values)


def _with_first(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _compared(
    place: ConversionDraft,
    store: RecordStore,
    start: int,
    blocks: Iterator[tuple[Block, int | None]],
    remembered: dict[str, Any],
    stack: contextlib.ExitStack,
    writing: dict[str, Any],
) -> tuple[RecordStore, int, Iterator[tuple[Block, int | None]]]:
    """Leave out the first `start` records, which the store has, as long as they are the same ones.

    A draft that has others is replaced by one of the records that agree; anything else is refused.

    Returns:
        The store to go on with, how many records it has, and the blocks that follow.
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
            rest = _with_first((block, done), blocks)
            break
        at += known
        if known < count:
            block = {name: rows.slice(known, count) for name, rows in block.items()}
            blocks = _with_first((block, done), blocks)
    else:
        return store, start, blocks
    if not place.is_draft:
        raise StoreExists(
            f"{store.path} was made from something else: {problem}. To go on with an iterable it must yield the same "
            "again"
        )
    return _begun_anew(place, store, at, remembered, stack, writing), at, rest


def _begun_anew(
    place: ConversionDraft,
    store: RecordStore,
    count: int,
    remembered: dict[str, Any],
    stack: contextlib.ExitStack,
    writing: dict[str, Any],
) -> RecordStore:
    """Replace a draft by one of its first `count` records."""
    folder = anew_of(place.folder)
    remove(folder)
    anew = RecordStore.create(folder, store.fields, metadata=remembered, **writing)
    names = list(store.fields)
    step = rows_at_once(store.nbytes / max(len(store), 1))
    for first in range(0, count, step):
        gathered = store.gatherer.read_rows(names, np.arange(first, min(first + step, count)))
        anew.commit_rows({name: stored_rows(rows) for name, rows in zip(names, gathered, strict=True)})
    anew.close()
    store.close()
    place.discard()
    folder.rename(place.folder)
    hold(place.folder, stack)
    place.manifest = None
    return stack.enter_context(RecordStore.open(place.folder, "a", **writing))


def _nothing_more(blocks: Iterator[Any], store: RecordStore) -> Iterator[Any]:
    for _ in blocks:
        raise StoreExists(f"{store.path} is complete with {len(store):,} records, and the source has more; append them")
    yield from ()


def _difference(store: RecordStore, block: Block, first: int) -> str | None:
    """The first field whose values from record `first` on are not those of the store, or None."""
    count = next(iter(block.values())).count
    stored = store.gatherer.read_rows(list(block), np.arange(first, first + count))
    for (name, rows), gathered in zip(block.items(), stored, strict=True):
        if (gathered.bad is not None and gathered.bad.any()) or not _same(store.fields[name], rows, gathered):
            return name
    return None


def _same(field: Field, rows: EncodedRows, gathered: GatheredColumn) -> bool:
    kept = raw_rows(field, gathered)
    pairs = [
        (kept.data.reshape(-1), rows.data.reshape(-1)),
        (_absent(kept), _absent(rows)),
        (kept.shapes, rows.shapes),
    ]
    if rows.offsets is not None and kept.offsets is not None:
        pairs.append((kept.offsets, rows.offsets))
    return all(np.array_equal(one, other) for one, other in pairs if one is not None and other is not None)


def _absent(rows: EncodedRows) -> Any:
    return np.zeros(rows.count, bool) if rows.absent is None else rows.absent


def _check(kind: Format, decode: Any, size: Any, batched: bool) -> bool:
    given = {"decode": decode not in (None, False), "size": size is not None, "batched": batched}
    for name, is_given in given.items():
        if is_given and name not in kind.options:
            raise ValueError(f"the format {kind.name!r} takes no {name}=")
    if size is not None and not decode:
        raise ValueError("size= resizes images while they are decoded: pass decode=True too")
    if decode and kind.name == "array_record" and not callable(decode):
        raise ValueError(f"decode is {decode!r}; it must be a function from a record's bytes to a dict of values")
    return batched


def _size(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ValueError(f"size is {size!r}; it must be pixels above zero, or (height, width)")
    return height, width


def _made_from(kind: Format, request: Request, files: Sequence[Path]) -> dict[str, Any]:
    """What a store remembers of a conversion, to go on with the same and with no other."""
    asked = request.fields
    decode = request.decode
    if request.paths is not None:
        source: Any = [str(path.absolute()) for path in request.paths]
    else:
        source = getattr(request.source, "_fingerprint", None)  # of a datasets.Dataset
    state = xxhash.xxh3_128()
    for file in files:
        stat = file.stat()
        state.update(f"{file.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return {
        "format": kind.name,
        "source": source,
        "files": state.hexdigest() if files else None,
        "fields": fields_to_json(asked) if isinstance(asked, Mapping) else asked and list(asked),
        "decode": f"{getattr(decode, '__module__', '')}.{getattr(decode, '__qualname__', '')}"
        if callable(decode)
        else decode or False,
        "size": request.size and list(request.size),
        "batched": request.batched,
    }
