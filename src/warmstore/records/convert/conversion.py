"""`convert`: any known format into a new store, in order and exactly once, also when it is killed and started again.

What was converted stands in the store's metadata under "converted", and how far is the number of its committed
rows: nothing else needs to be remembered, so nothing can disagree after a kill.
"""

import contextlib
import json
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from warmstore.errors import BadSource, SchemaMismatch, StoreExists
from warmstore.records.address_space import SLOT
from warmstore.records.convert.formats import Format, detect, named, paths_of
from warmstore.records.convert.source import Batch, Request, Source, fields_asked
from warmstore.records.fields import Field, Fields, fields_to_json
from warmstore.records.files import Files
from warmstore.records.manifest import NAME, read_manifest, write_manifest
from warmstore.records.progress import progress_bar
from warmstore.records.rows import Rows
from warmstore.records.store import RecordStore
from warmstore.records.values import decompressed, encode

CONVERTED = "converted"
"""Under this name the metadata of a store says what it was made from."""

_FLUSH_BYTES = 32 << 20
_FLUSH_ROWS = 1 << 18
"""What is pending at most: checksums take a Python object a row for as long as a flush lasts."""

Block = dict[str, Rows]


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

    Args:
        source: a path, a pattern or a list of paths; an array, or a dict of arrays [n, ...] of one length; a
            `datasets.Dataset`; or any iterable of records (dicts of a value per field).
        path: the store's folder: new, empty, or one that the same conversion left unfinished.
        format: one of "array_record", "arrow", "hugging_face", "images", "npy", "npz", "parquet", "torchcachex",
            "webdataset"; found from the names of files where it is not told.
        fields: names of the fields to convert; or a dict of names and fields where the source does not say, or says
            less than you know (`ws.Array("float32", (768,))` for lists that all have 768 numbers). All by default.
        decode: for images True decodes them to uint8 [height, width, 3], an Array where all have one size, else Ragged.
            For ArrayRecord a function from a record's bytes to a dict of values.
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
        BadSource: it is empty, of unequal lengths, broken, or holds nulls that its field cannot.
        UnknownFormat: a format that is not known or cannot be told.
        SchemaMismatch: a record does not fit the fields, or `fields` does not fit the source.
        UnsupportedType: a dtype that cannot be kept; an object array or another pickle.
        StoreExists: `path` holds something that this conversion did not make, or another process is at it right now.
        NotInstalled: the format needs an optional package.
    """
    paths = paths_of(source)
    found = named(format) if format is not None else detect(source, paths)
    request = Request(
        source,
        None if paths is None else tuple(paths),
        fields_asked(fields),
        decode,
        _size(size),
        _check(found, decode, size, batched),
    )
    files = found.files(paths) if paths is not None else []
    made_from = _made_from(found, request, files)
    if metadata and CONVERTED in metadata:
        raise ValueError(f"metadata has the name {CONVERTED!r}, under which the store remembers what it was made from")
    folder = Path(path)
    writing: dict[str, Any] = {"chunk_size": chunk_size, "writer_threads": writer_threads}
    with contextlib.ExitStack() as stack:
        start = 0
        if (folder / NAME).exists():
            manifest = _unfinished(folder, made_from, stack)
            complete = manifest.metadata[CONVERTED]["complete"]
            if complete and (made_from["files"] or made_from["source"]):
                return RecordStore.open(folder)
            request = replace(request, fields=manifest.fields)
            store = stack.enter_context(RecordStore.open(folder, "a", **writing))
            start = len(store)
            opened = found.open(request, files)
            blocks = _blocks(opened, start, str(source) if paths else found.name)
        else:
            opened = found.open(request, files)
            # The first records are read before the store is made: most that can be wrong with a source shows there.
            blocks = _blocks(opened, 0, str(source) if paths else found.name)
            first = next(blocks, None)
            if first is None:
                raise BadSource(f"{source if paths else 'the source'} holds no records")
            remembered = {**opened.metadata, **(metadata or {}), CONVERTED: {**made_from, "complete": False}}
            store = RecordStore.create(folder, opened.fields, metadata=remembered, **writing)
            stack.enter_context(store)
            _hold(folder, stack)
            blocks = _with_first(first, blocks)
            complete = False
        if not opened.skippable:
            blocks = _skip(blocks, store, start)
            if complete:
                blocks = _nothing_more(blocks, store)
        with progress_bar(opened.rows, opened.size, start, folder.name, progress) as advance:
            _fill(store, blocks, start, advance)
        store.close()
        _complete(folder)
    return RecordStore.open(folder)


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


def _blocks(source: Source, start: int, what: str) -> Iterator[tuple[Block, int | None]]:
    """The source's batches, encoded; errors say where in the source they happened."""
    at = start if source.skippable else 0
    try:
        for batch in source.read(at):
            block = encode_batch(source.fields, batch)
            yield block, batch.done
            at += next(iter(block.values())).count
    except SchemaMismatch as error:
        raise SchemaMismatch(
            f"{what}, in the records from number {at:,} on: {error}. The first record fixed the fields where fields= "
            "did not; use ws.Ragged for arrays whose shapes vary and ws.Json for anything else"
        ) from error
    except (pa.ArrowException, zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
        raise BadSource(f"{what} cannot be read after record {at:,}: {error}") from error


def encode_batch(fields: Fields, batch: Batch) -> Block:
    """A batch as rows of every field, all as many."""
    if set(batch.columns) != set(fields):
        raise SchemaMismatch(f"a record has the fields {sorted(fields)}; got {sorted(batch.columns)}")
    block = {name: _rows(name, field, batch.columns[name]) for name, field in fields.items()}
    counts = {name: rows.count for name, rows in block.items()}
    if len(set(counts.values())) > 1:
        raise SchemaMismatch(f"all fields of a batch need the same number of records; got {counts}")
    return block


def _rows(name: str, field: Field, values: Any) -> Rows:
    return values if isinstance(values, Rows) else encode(name, field, values)


def _with_first(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _skip(
    blocks: Iterator[tuple[Block, int | None]], store: RecordStore, start: int
) -> Iterator[tuple[Block, int | None]]:
    """Leave out the first `start` records, which the store has; they must be the same ones."""
    at = 0
    for block, done in blocks:
        count = next(iter(block.values())).count
        known = min(count, start - at)
        if known > 0:
            _check_same(store, {name: rows.slice(0, known) for name, rows in block.items()}, at)
            block = {name: rows.slice(known, count) for name, rows in block.items()}
        at += count
        if known < count:
            yield block, done
    if at < start:
        raise StoreExists(f"{store.path} was made from something else: it has {start:,} records, the source {at:,}")


def _nothing_more(blocks: Iterator[Any], store: RecordStore) -> Iterator[Any]:
    for _ in blocks:
        raise StoreExists(f"{store.path} is complete with {len(store):,} records, and the source has more; append them")
    yield from ()


def _check_same(store: RecordStore, block: Block, first: int) -> None:
    count = next(iter(block.values())).count
    stored = store.gatherer.read_rows(list(block), np.arange(first, first + count))
    for (name, rows), gathered in zip(block.items(), stored, strict=True):
        if gathered.data is not None:
            same = bool(np.array_equal(gathered.data, rows.data))
        else:
            kept = decompressed(store.fields[name], gathered)
            same = bool(np.array_equal(kept.data, rows.data.reshape(-1)))
            if rows.offsets is not None and kept.offsets is not None:
                same = same and bool(np.array_equal(kept.offsets, rows.offsets))
        if rows.shapes is not None and gathered.shapes is not None:
            same = same and bool(np.array_equal(gathered.shapes, rows.shapes))
        if not same:
            raise StoreExists(
                f"{store.path} was made from something else: field {name!r} of its records {first:,} to "
                f"{first + count - 1:,} differs from the source. To go on with an iterable it must yield the same again"
            )


def _check(found: Format, decode: Any, size: Any, batched: bool) -> bool:
    given = {"decode": decode not in (None, False), "size": size is not None, "batched": batched}
    for name, is_given in given.items():
        if is_given and name not in found.options:
            raise ValueError(f"the format {found.name!r} takes no {name}=")
    if size is not None and not decode:
        raise ValueError("size= resizes images while they are decoded: pass decode=True too")
    if decode and found.name == "array_record" and not callable(decode):
        raise ValueError(f"decode is {decode!r}; it must be a function from a record's bytes to a dict of values")
    return batched


def _size(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ValueError(f"size is {size!r}; it must be pixels above zero, or (height, width)")
    return height, width


def _made_from(found: Format, request: Request, files: Sequence[Path]) -> dict[str, Any]:
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
        "format": found.name,
        "source": source,
        "files": state.hexdigest() if files else None,
        "fields": fields_to_json(asked) if isinstance(asked, Mapping) else asked and list(asked),
        "decode": f"{getattr(decode, '__module__', '')}.{getattr(decode, '__qualname__', '')}"
        if callable(decode)
        else decode or False,
        "size": request.size and list(request.size),
        "batched": request.batched,
    }


def _unfinished(folder: Path, made_from: dict[str, Any], stack: contextlib.ExitStack) -> Any:
    """The manifest of a store that the same conversion made, which is now held."""
    _hold(folder, stack)
    manifest = read_manifest(folder, Files())
    known = manifest.metadata.get(CONVERTED)
    advice = "Name a new folder, or remove this one first"
    if not isinstance(known, dict):
        raise StoreExists(f"{folder} holds a store that was not converted from anything. {advice}")
    described = fields_to_json(manifest.fields)
    now = {**made_from, "fields": _as_json(made_from["fields"])}
    for name, value in now.items():
        if _as_json(known.get(name)) != value and not (name == "fields" and value == described):
            raise StoreExists(
                f"{folder} holds a store made from something else: its {name} was {known.get(name)!r:.200}, now it is "
                f"{value!r:.200}. {advice}"
                if name != "files"
                else f"the files of the source changed since {folder} was begun. {advice}"
            )
    return manifest


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _hold(folder: Path, stack: contextlib.ExitStack) -> None:
    """Keep other conversions out of a store until the stack unwinds."""
    files = Files()
    descriptor = files.open(folder)
    stack.callback(files.close, descriptor)
    if not files.lock(descriptor, wait=False):
        raise StoreExists(f"another process is converting into {folder} right now")


def _complete(folder: Path) -> None:
    manifest = read_manifest(folder, Files())
    remembered = {**manifest.metadata, CONVERTED: {**manifest.metadata[CONVERTED], "complete": True}}
    write_manifest(folder, replace(manifest, metadata=remembered), Files())
