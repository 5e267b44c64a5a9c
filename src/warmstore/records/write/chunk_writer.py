"""One chunk: an Arrow IPC file to which the process that created it appends one record batch per flush.

pyarrow writes into memory and never to the file, so after a failed write its state cannot differ from the disk. A chunk
whose write failed is cut back to its last commit and never written again.
"""

import contextlib
import errno
import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from warmstore.records.format.chunk_names import chunk_path
from warmstore.records.log.log_entries import BATCH, SEALED, Entries, new_entry
from warmstore.storage.files import HUGE_PAGE, Buffer, Files, is_at, write_all, write_failed
from warmstore.storage.threads import pool, result_of

_LARGE = 1 << 20
"""Bytes of a body from which another thread hashes it."""


def chunk_schema(schema: pa.Schema, owner: str, number: int) -> pa.Schema:
    """The schema of a chunk, with its owner: the store's id and generation, as ID/GENERATION."""
    return schema.with_metadata({"warmstore": json.dumps({"chunk": f"{owner}/{number}"})})


class ChunkWriter:
    """A chunk that is being written. An flock on its file marks it as in use."""

    def __init__(
        self, folder: Path, number: int, schema: pa.Schema, files: Files, owner: str = "", *, ahead: bool = True
    ) -> None:
        """Create the chunk's file. Raises FileExistsError if another process has a file of this number.

        Args:
            owner: the store's id and generation, as ID/GENERATION, for the schema's metadata.
            ahead: extend the file some megabytes beyond its content, to get pages that are read faster.
        """
        self.number = number
        self._ahead = ahead
        schema = chunk_schema(schema, owner, number)
        self.path = chunk_path(folder, number)
        self._files = files
        try:
            self._descriptor: int | None = files.create(self.path)
        except FileExistsError:
            raise
        except OSError as error:
            raise write_failed(error, self.path) from error
        self._staged = StagedParts()
        # pyarrow writes the file's magic and schema with the first batch, before the batch's header.
        self._lead: int = 8 + schema.serialize().size
        self._lead_hash = 0
        self._end = 0
        self._extended_to = 0
        self._batches = 0
        try:
            if not files.lock(self._descriptor, wait=False) or not is_at(self._descriptor, self.path):
                # A pull takes the names of chunks without a live writer, and this one had no lock yet.
                self.release()
                raise FileExistsError(errno.EEXIST, "another process took the file", str(self.path))
            files.sync_folder(folder)
            self._arrow = pa.ipc.new_file(pa.PythonFile(self._staged, mode="w"), schema)
        except FileExistsError:
            raise
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError):
                raise write_failed(error, self.path) from error
            raise

    @property
    def next_offset(self) -> int:
        """The byte at which the header of the next batch will start."""
        return self._end or self._lead

    @property
    def footer_size(self) -> int:
        """The most bytes that `seal` writes."""
        return 2 * self._lead + 64 * self._batches + 1024

    def has_room(self, size: int, limit: int) -> bool:
        """Whether a batch of `size` bytes fits within `limit`. Every batch fits into an empty chunk."""
        return not self._end or self._end + size <= limit

    def append(self, batch: pa.RecordBatch) -> Entries:
        """Write one batch to the disk, and return its log entry.

        Raises:
            WriteFailed: the disk refused. The chunk is cut back and must not be used again.
        """
        self._arrow.write_batch(batch)
        parts = self._staged.take()
        lead = _cut(parts, 0 if self._end else self._lead)
        header = _cut(parts, 8)
        header += _cut(parts, struct.unpack_from("<i", header, 4)[0])
        body = sum(len(part) for part in parts)
        # Hashed while the disk writes: both release Python's lock.
        hashing = pool().submit(_hash, parts) if body >= _LARGE else None
        self._write([lead, header, *parts])
        self._lead_hash = self._lead_hash or xxhash.xxh3_64_intdigest(lead)
        entry = new_entry(
            BATCH,
            self.number,
            rows=batch.num_rows,
            offset=self._end + len(lead),
            header=len(header),
            body=body,
            header_hash=xxhash.xxh3_64_intdigest(header),
            body_hash=result_of(hashing) if hashing is not None else _hash(parts),
        )
        self._end += len(lead) + len(header) + body
        self._batches += 1
        return entry

    def seal(self) -> Entries:
        """Write the footer, so that any Arrow reader can open the file, and return its log entry."""
        self._arrow.close()
        parts = self._staged.take()
        self._write(parts, last=True)
        entry = new_entry(
            SEALED,
            self.number,
            offset=self._end,
            body=sum(len(part) for part in parts),
            header_hash=self._lead_hash,
            body_hash=_hash(parts),
        )
        self.abandon()
        return entry

    def abandon(self) -> None:
        """Close the file without a footer. An empty one is removed if possible."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self._cut_to(self._end)
            if not self._end:
                with contextlib.suppress(OSError):  # under its lock: afterwards the name may be another process's
                    self._files.remove(self.path)
        self.release()

    def trim(self) -> None:
        """Cut off the extension of the file. The next batch extends it again."""
        self._cut_to(self._end)

    def release(self) -> None:
        """Close the descriptor, and release the lock unless a forked child shares it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._files.close(descriptor)

    def _write(self, parts: Sequence[Buffer], *, last: bool = False) -> None:
        assert self._descriptor is not None
        end = self._end + sum(map(len, parts))
        try:
            if not last:
                self._extend(self._descriptor, end // HUGE_PAGE * HUGE_PAGE)
            write_all(self._files, self._descriptor, parts, self._end)
            if last:
                self._cut_to(end)
            self._files.sync(self._descriptor)
        except OSError as error:
            # Best effort: bytes behind the last commit are never read, they only take space.
            with contextlib.suppress(OSError):
                self._files.truncate(self._descriptor, self._end)
            raise write_failed(error, self.path) from error

    def _extend(self, descriptor: int, start: int) -> None:
        """Prepare one huge page for the bytes from `start` on. Small chunks are not extended."""
        if self._ahead and start and start >= self._extended_to:
            with contextlib.suppress(OSError):  # it only affects speed
                if self._files.extend(descriptor, start):
                    self._extended_to = start + HUGE_PAGE

    def _cut_to(self, end: int) -> None:
        """Cut off the extension."""
        if self._extended_to > end:
            assert self._descriptor is not None
            self._files.truncate(self._descriptor, end)
            self._extended_to = 0


def _hash(parts: Sequence[Buffer]) -> int:
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part)
    return digest.intdigest()


class StagedParts(io.RawIOBase):
    """Collects what pyarrow writes: its buffers without a copy, and copies of the small rest."""

    def __init__(self) -> None:
        self._parts: list[memoryview] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = memoryview(data if isinstance(data, pa.Buffer) else bytes(data)).cast("B")
        self._parts.append(part)
        self._position += len(part)
        return len(part)

    def tell(self) -> int:
        return self._position

    def take(self) -> list[memoryview]:
        """Return and forget what was written since the last call."""
        parts, self._parts = self._parts, []
        return parts


def _cut(parts: list[memoryview], length: int) -> bytes:
    """Remove `length` bytes from the front. pyarrow's writes end where its messages end."""
    taken = []
    while length > 0:
        taken.append(bytes(parts.pop(0)))
        length -= len(taken[-1])
    return b"".join(taken)
