"""Writing the footers of chunks of dead writers, so that any Arrow reader can open them.

A footer lists the offsets of the batches. pyarrow writes it after it has written the chunk's own batches once more.
Only the footer is kept, and only if the headers that pyarrow wrote equal those of the chunk, byte for byte.
"""

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from warmstore.records.format.fields import arrow_schema
from warmstore.records.log.log_entries import BATCH, COPIED, SEALED, STAGED, Entries, new_entry
from warmstore.records.maintenance.chunk_states import chunk_states
from warmstore.records.store_reader import StoreReader
from warmstore.records.write.chunk_writer import StagedParts, chunk_schema
from warmstore.records.write.edit_lock import edit_lock
from warmstore.storage.files import Files, opened, write_all


@dataclass(frozen=True)
class SealResult:
    """The names of the chunks that got a footer, that live writers hold, and that cannot have a footer."""

    sealed: tuple[str, ...]
    being_written: tuple[str, ...]
    refused: tuple[str, ...]


def seal_abandoned(store: StoreReader) -> SealResult:
    """Seal the chunks without a footer that no living process writes to.

    A chunk that is damaged, or that this version of pyarrow would write differently, stays as it is: `rebalance`
    rewrites its records.

    Args:
        store: open for appending.

    Raises:
        OSError: the disk refused; chunks that were sealed before stay sealed.
    """
    sealed, being_written, refused = [], [], []
    store.refresh()
    with edit_lock(store.path, store._files):
        for chunk in chunk_states(store.path):
            if chunk.state != "open":
                continue
            with opened(store.path / chunk.name, store._files, write=True) as descriptor:
                if chunk.writing or not store._files.lock(descriptor, wait=False):
                    being_written.append(chunk.name)
                elif _seal(store, store.path / chunk.name, descriptor):
                    sealed.append(chunk.name)
                else:
                    refused.append(chunk.name)
    store.refresh()
    return SealResult(tuple(sealed), tuple(being_written), tuple(refused))


def _seal(store: StoreReader, path: Path, descriptor: int) -> bool:
    """Write the footer of a chunk that this process has locked. Returns whether that was possible."""
    log, number = store._session.generation.log, int(path.stem)
    entries = log.read(0)
    entries = entries[(entries["chunk"] == number) & np.isin(entries["kind"], (BATCH, STAGED, COPIED))]
    entries = entries[np.argsort(entries["offset"], kind="stable")]
    manifest = store._manifest
    schema = arrow_schema(manifest.fields)
    # Chunks of formats 1 to 3 have no metadata.
    schemas = chunk_schema(schema, f"{manifest.id}/{manifest.generation}", number), schema
    if not store._files.size(descriptor):  # it was cut off, and an empty file cannot be mapped
        return False
    # Not closed here: an interrupt in that function has its views of the mapping, and would become a BufferError.
    parts = _footer(memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)), entries, schemas)
    if parts is None:
        return False
    lead, footer = parts
    last = entries[-1]
    end = int(last["offset"]) + int(last["header"]) + int(last["body"])
    files: Files = store._files
    write_all(files, descriptor, [footer], end)
    files.truncate(descriptor, end + len(footer))
    files.sync(descriptor)
    hashes = {"header_hash": xxhash.xxh3_64_intdigest(lead), "body_hash": xxhash.xxh3_64_intdigest(footer)}
    log.append(new_entry(SEALED, number, offset=end, body=len(footer), **hashes))
    return True


def _footer(data: memoryview, entries: Entries, schemas: Iterable[pa.Schema]) -> tuple[bytes, bytes] | None:
    """The bytes before the first batch of a chunk, and the footer for its batches; None if it cannot have one."""
    staged = StagedParts()
    try:
        first = int(entries["offset"][0])
        lead = bytes(data[:first])
        # Unverified bytes never reach pyarrow: the schema must equal one of the expected ones.
        schema = next((known for known in schemas if lead[8:] == known.serialize().to_pybytes()), None)
        if schema is None:
            return None
        writer = pa.ipc.new_file(pa.PythonFile(staged, mode="w"), schema)
        at = first
        for number, entry in enumerate(entries):
            header, body = int(entry["header"]), int(entry["body"])
            if int(entry["offset"]) != at:
                return None
            batch = bytes(data[at : at + header + body])
            hashes = xxhash.xxh3_64_intdigest(batch[:header]), xxhash.xxh3_64_intdigest(batch[header:])
            if hashes != (int(entry["header_hash"]), int(entry["body_hash"])):
                return None
            writer.write_batch(pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(batch)), schema))
            if b"".join(staged.take()) != (b"" if number else lead) + batch:
                return None
            at += header + body
        writer.close()
    except (pa.ArrowException, OSError, ValueError, IndexError):
        return None
    return lead, b"".join(staged.take())
