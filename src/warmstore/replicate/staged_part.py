"""One part of a staged write: rows that one task writes to a folder of its own, which only a commit makes visible."""

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from warmstore.errors import SchemaMismatch
from warmstore.records.format.chunk_names import chunk_path
from warmstore.records.format.encoded_rows import EncodedRows
from warmstore.records.format.fields import Fields
from warmstore.records.log.log_entries import BATCH, ENTRY, SEALED, Entries
from warmstore.records.store_session import BATCH_BYTES
from warmstore.records.write.write_options import WriteOptions
from warmstore.remote.objects import Objects
from warmstore.remote.requests import aside
from warmstore.replicate.push import mapped
from warmstore.replicate.record_store import RecordStore
from warmstore.replicate.remote_chunk import RemoteChunk
from warmstore.replicate.remote_diff import Local
from warmstore.storage.files import Files
from warmstore.storage.temporary_folder import TemporaryFolder

STAGED = "staged"
"""The folder of a remote that lists the chunks of parts, below the token of their write."""
CHANGED = "They were changed since this write began: write the parts again"


@dataclass(frozen=True)
class StagedPart:
    """What one task wrote. It is small and can be pickled, so that a task returns it to the process that commits.

    Attributes:
        name: the part's folder, or the name of its list at a remote.
        rows: number of records.
        fields: their fields.
        seed: of the hashes in the part's chunks.
        log: the entries of the part's log.
        sizes: bytes of each chunk, by number.
        chunks: at a remote, the names of the chunks, by number.
    """

    name: str
    rows: int
    fields: Fields
    seed: int
    log: bytes
    sizes: dict[int, int]
    chunks: dict[int, str]

    def entries(self, number: int) -> Entries:
        """The log entries of one chunk: its batches, and its footer."""
        entries: Entries = np.frombuffer(self.log, ENTRY)
        kept: Entries = entries[(entries["chunk"] == number) & np.isin(entries["kind"], (BATCH, SEALED))].copy()
        return kept

    @property
    def nbytes(self) -> int:
        """Bytes of the part's chunks."""
        return sum(self.sizes.values())


class PartWriter:
    """Writes one part; `StagedWrite.part` returns one. A context manager: an exception removes the part.

    After the block, `staged` is what `StagedWrite.commit` takes.

    Args:
        folder: a new folder for the part; a temporary one for a part that is sent.
        send: sends the chunks of the finished part to a remote, and removes its folder; None for a write to a folder.
    """

    def __init__(
        self,
        folder: Path | TemporaryFolder,
        fields: Fields,
        writing: WriteOptions,
        send: "Callable[[Local], dict[int, str]] | None",
    ) -> None:
        self._files = Files()
        self._remove: Callable[[], object]
        if isinstance(folder, TemporaryFolder):
            self._folder, self._remove = folder.path, folder.remove
        else:
            self._folder, self._remove = folder, partial(self._files.remove_folder, folder)
        self._send = send
        self._store = RecordStore.create(
            self._folder, fields, chunk_size=writing.chunk_size, writer_threads=writing.threads
        )
        self.staged: StagedPart | None = None

    @property
    def fields(self) -> Fields:
        """The fields of the part's records."""
        return self._store.fields

    def append(self, record: dict[str, Any]) -> None:
        """`RecordStore.append`."""
        self._store.append(record)

    def extend(self, columns: dict[str, Any]) -> None:
        """`RecordStore.extend`."""
        self._store.extend(columns)

    def extend_rows(self, block: dict[str, EncodedRows]) -> None:
        """Add an encoded batch. Its arrays must not change afterwards."""
        self._store._extend_rows(block)
        if self._store._session.pending.nbytes >= BATCH_BYTES:
            self._store.flush()

    def finish(self) -> StagedPart:
        """Write the part to the disk, or send it to the remote. Nobody sees it before `StagedWrite.commit`.

        Raises:
            WriteFailed: the disk refused.
            RemoteUnavailable, RemoteRefused: the remote cannot be written.
        """
        if self.staged is None:
            fields = self.fields
            self._store.close()
            local = Local.read(self._folder, self._files)
            names = {} if self._send is None else self._send(local)
            rows = int(local.entries["rows"][local.entries["kind"] == BATCH].sum())
            seed, log = local.manifest.seed, local.entries.tobytes()
            name = str(self._folder) if self._send is None else self._folder.name
            self.staged = StagedPart(name, rows, fields, seed, log, dict(local.ends), names)
        return self.staged

    def discard(self) -> None:
        """Remove the part."""
        with contextlib.suppress(OSError):
            self._store._abandon()
            self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(self.discard)
            if kind is None:
                self.finish()
                undo.pop_all()


def check_layout(parts: Sequence[StagedPart], fields: Fields, others: str, advice: str) -> None:
    """Raise SchemaMismatch unless all parts have these fields, in this order: it is the order of columns in chunks."""
    for number, part in enumerate(parts):
        if [*part.fields.items()] != [*fields.items()]:
            raise SchemaMismatch(f"part {number} has the fields {part.fields}, and {others} {fields}. {advice}")


def part_chunk(part: StagedPart, number: int) -> Path:
    """The file of a part's chunk in a folder."""
    return chunk_path(Path(part.name) / "g0001", number)


def send_part(local: Local, objects: Objects, listed: str, files: Files) -> dict[int, str]:
    """Send the chunks of a part. Returns their names at the remote, by number.

    The names are written to the object `listed` first, so that a write that fails can remove the chunks.
    """
    data = {number: mapped(local.chunk_path(number), size, files) for number, size in local.ends.items()}

    async def send_all() -> dict[int, str]:
        described = {number: await aside(RemoteChunk.of, part) for number, part in data.items()}
        names = {number: chunk.name for number, (chunk, _) in described.items()}
        await objects.put_async(listed, json.dumps(sorted(names.values())).encode())

        async def send(number: int) -> None:
            chunk, hashes = described[number]
            await objects.put_async(chunk.object, data[number])
            await objects.put_async(chunk.hashes_object, hashes)

        await objects.each(send, data)
        return names

    return objects.run(send_all())
