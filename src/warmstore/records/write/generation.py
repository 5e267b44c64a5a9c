"""One generation of a store, opened by one process: its log, its committed rows, and the chunk of this process.

A store is in one generation at a time. A rewrite (to rebalance, to change fields, to repair) creates the next one and
closes the log of this one. A process that reads the closed log continues in the next generation.
"""

import contextlib
import errno
import functools
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from warmstore.errors import Damaged, SchemaMismatch, WarmstoreError
from warmstore.records.format.checksums import batch_seeds
from warmstore.records.format.chunk_names import chunk_numbers
from warmstore.records.format.encoded_rows import EncodedRows, GatheredColumn
from warmstore.records.format.fields import LARGEST_RECORD, arrow_schema, columns_of
from warmstore.records.format.generation_log import open_log, open_numbers
from warmstore.records.format.manifest import Manifest, read_manifest
from warmstore.records.format.record_batch import batch_size, record_batch
from warmstore.records.format.value_encoding import compressed
from warmstore.records.log.commit_log import GenerationClosed, Log
from warmstore.records.log.log_entries import (
    BATCH,
    CLOSED,
    DELETED,
    ENTRY,
    EVICTED,
    MERGED,
    NOWHERE,
    STAGED,
    UPDATED,
    Entries,
    last_chunk,
    new_entry,
)
from warmstore.records.log.number_lists import Numbers
from warmstore.records.read.chunk_files import Reload
from warmstore.records.read.gather import Gatherer
from warmstore.records.read.live_batches import live_batches
from warmstore.records.read.snapshot import Batches, Snapshot
from warmstore.records.write.chunk_writer import ChunkWriter
from warmstore.records.write.write_options import WriteOptions
from warmstore.storage.array_types import Int64
from warmstore.storage.files import Files, write_failed
from warmstore.storage.interrupts import uninterrupted
from warmstore.storage.memory.address_space import SLOT

_log = logging.getLogger("warmstore")


class Generation:
    """One generation, open in one process. Reading needs no lock. Everything else is for one thread at a time.

    is_superseded: returns whether the store continues in a later generation. is_released: whether its files are closed.
    """

    def __init__(
        self, path: Path, manifest: Manifest, writing: WriteOptions, files: Files, *, write: bool, salvage: bool = False
    ) -> None:
        """`salvage`: skip entries that are damaged in the log and its copy, instead of raising Damaged."""
        self.manifest = manifest
        self.folder = path / manifest.generation_folder
        self._path = path
        self._writing = writing
        self._files = files
        self._schema = arrow_schema(manifest.fields)
        self._seed = manifest.seed
        # Not a bound method: a cycle would keep this generation and its mapped files until a garbage collection.
        self.is_superseded = functools.partial(_is_superseded, path, manifest.generation, files)
        self._writer: ChunkWriter | None = None
        self.is_released = False
        self.commits = 0  # of this process: shows after an interrupt whether a write was committed
        self.log = open_log(path, manifest, files, write=write, superseded=self.is_superseded, salvage=salvage)
        self._salvage = salvage
        try:
            self._load()
        except BaseException:
            self.log.close()
            raise

    def _load(self) -> None:
        columns = [column for name, field in self.manifest.fields.items() for column in columns_of(name, field)]
        log = self.log
        while True:
            batches = Batches(
                self.folder,
                self._schema,
                columns,
                self._seed,
                self._files,
                self.is_superseded,
                functools.partial(_gone, log, open_numbers(self._path, self.manifest, self._files)),
                (lambda: log.lost) if self._salvage else None,
            )
            entries = self.log.read(0)
            closed = entries["kind"] == CLOSED
            with contextlib.suppress(Reload):
                batches.extend(entries[~closed] if closed.any() else entries)
                break
        # Assigned when complete, and together: other threads read them without a lock, and an interrupt may come.
        self.gatherer = Gatherer(batches, self.manifest.fields)

    @property
    def batches(self) -> Batches:
        """What was read from the log: batches and chunk files."""
        return self.gatherer.batches

    @property
    def snapshot(self) -> Snapshot:
        """The committed rows that this process has read from the log."""
        return self.gatherer.snapshot

    def is_current(self) -> bool:
        """Whether nothing was committed since the snapshot. Not so once another thread has released this generation."""
        snapshot = self.snapshot
        try:
            # A descriptor that was closed meanwhile may be that of another file, which ends otherwise.
            return self.log.ends_with(snapshot.entries, snapshot.last_entry)
        except OSError:
            if self.is_released:
                return False
            raise

    def refresh(self) -> None:
        """Read what was committed since the snapshot.

        Raises:
            GenerationClosed: the store continues in a later generation; the files of this one may be gone.
        """
        snapshot = self.snapshot
        # An earlier refresh failed or was interrupted, or a writer removed its last entry because its disk failed.
        if not (self.batches.is_whole and self.log.continues(snapshot.entries, snapshot.last_entry)):
            self._load()
        entries = self.log.read(self.snapshot.entries)
        if len(entries) and entries["kind"][-1] == CLOSED:
            raise GenerationClosed(str(self.folder))
        chunks, batches = entries["chunk"].tolist(), self.batches
        known = batches.evicted.isdisjoint(chunks) and batches.merged_away.isdisjoint(chunks)
        if not known or np.isin(entries["kind"], (EVICTED, MERGED)).any():
            self._load()  # into new address space: views of the old one stay valid
            return
        try:
            self.batches.extend(entries)
        except Reload:
            self._load()

    def commit(self, block: dict[str, EncodedRows], *, stored: bool = False) -> None:
        """Write one batch and commit it. It is on the disk when this returns.

        Args:
            block: rows of every field.
            stored: values of fields with a codec are compressed already.

        Raises:
            WriteFailed: nothing was committed.
            GenerationClosed: nothing was committed; the store continues in a later generation.
        """
        with self._write(block if stored else self._compressed(block), BATCH) as entry:
            self._append(entry)

    def commit_update(self, blocks: Iterable[dict[str, EncodedRows]], positions: Int64) -> None:
        """Put rows at positions, int64 [n], all or none of them. The caller holds the edit lock.

        Args:
            blocks: n rows in all, in their stored form.

        Raises:
            WriteFailed: nothing was changed.
        """
        staged: list[Entries] = []
        sealed: list[Entries] = []
        try:
            for block in blocks:
                with self._write(block, STAGED, sealed) as entry:
                    staged.append(entry)
            final = new_entry(UPDATED, NOWHERE, rows=len(positions), header=len(staged))
            self._commit_edit([*staged, *sealed], final, positions)
        except BaseException:
            self._abandon()  # the chunk may hold rows without an entry
            raise

    def commit_delete(self, positions: Int64) -> None:
        """Remove positions, int64 [n]. The caller holds the edit lock.

        Raises:
            WriteFailed: nothing was changed.
        """
        self._commit_edit([], new_entry(DELETED, NOWHERE, rows=len(positions)), positions)

    def _commit_edit(self, before: list[Entries], final: Entries, positions: Int64) -> None:
        with self._room(8 * len(positions) + ENTRY.itemsize * (len(before) + 1)):
            try:
                for name, value in self.batches.numbers.append(positions).items():
                    final[name] = value
            except OSError as error:
                raise write_failed(error, self.batches.numbers.path) from error
            self._append(*before, final)

    def _append(self, *entries: Entries) -> None:
        try:
            self.log.append(*entries)
        except BaseException:
            self.commits += int(self.log.holds(entries[-1]))
            raise
        self.commits += 1

    def _compressed(self, block: dict[str, EncodedRows]) -> dict[str, EncodedRows]:
        fields, threads = self.manifest.fields, self._writing.threads
        return {name: compressed(field, block[name], threads) for name, field in fields.items()}

    @contextlib.contextmanager
    def _room(self, size: int) -> Iterator[None]:
        """Reserve `size` bytes. In a store with a quota this also holds the lock that all writers share."""
        if self._writing.room is None:
            yield
            return
        with self._writing.room(size):
            self.refresh()  # this process's chunk may have been evicted
            yield

    @contextlib.contextmanager
    def _write(
        self, block: dict[str, EncodedRows], kind: int, sealed: list[Entries] | None = None
    ) -> Iterator[Entries]:
        """Write one batch of stored rows and yield its entry, which the block commits. `sealed`: `later` of `seal`."""
        size = batch_size(self.manifest.fields, block)
        with self._room(size):
            writer = self._writer_for(size, sealed)
            try:
                if writer.next_offset + size > SLOT:
                    raise SchemaMismatch(
                        f"records of {size:,} bytes are too large for a chunk, which holds {SLOT:,}: one record holds "
                        f"at most {LARGEST_RECORD:,}. Split it"
                    )
                entry = self.write_batch(writer, block)
                entry["kind"] = kind
                yield entry
            except BaseException:
                self._abandon()
                raise

    def _abandon(self) -> None:
        """Stop writing this process's chunk. The next commit starts a new one."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()

    def _writer_for(self, size: int, sealed: list[Entries] | None) -> ChunkWriter:
        if self._writer is not None and self._writer.number in self.batches.evicted:
            self._writer.release()
            self._writer = None
        if self._writer is not None and not self._writer.has_room(size, self._writing.chunk_size):
            self.seal(sealed)
        if self._writer is not None:
            return self._writer
        self._writer = self.new_writer()
        return self._writer

    def new_writer(self) -> ChunkWriter:
        """Create a chunk, to which this process alone appends.

        Raises:
            WriteFailed: the disk refused.
            GenerationClosed: the store continues in a later generation.
        """
        number = self._newest_chunk() + 1
        owner = f"{self.manifest.id}/{self.manifest.generation}"
        while True:
            try:
                # A store with a quota counts the bytes of its files.
                ahead = self._writing.room is None
                return ChunkWriter(self.folder, number, self._schema, self._files, owner, ahead=ahead)
            except FileExistsError:
                number += 1
            except OSError as error:
                if error.errno == errno.ENOENT and self.is_superseded():
                    raise GenerationClosed(str(self.folder)) from None
                raise

    def _newest_chunk(self) -> int:
        """The number of the chunk that was begun last, or -1. The log has those of removed ones, too."""
        last = max(self.batches.last_chunk, last_chunk(self.log.read(self.snapshot.entries)))
        return max(last, *chunk_numbers(self.folder), -1)

    def write_batch(self, writer: ChunkWriter, block: dict[str, EncodedRows]) -> Entries:
        """Write one batch of stored rows to a chunk. Returns the entry that commits it.

        Raises:
            WriteFailed: the disk refused; the chunk must not be used again.
        """
        seed = int(batch_seeds(self._seed, [writer.number], [writer.next_offset])[0])
        return writer.append(record_batch(self.manifest.fields, block, self._schema, seed))

    def seal(self, later: list[Entries] | None = None) -> None:
        """Write the footer of this process's chunk. Other Arrow readers need it, warmstore does not.

        Args:
            later: receives the entry, to be committed with an edit. Until then the chunk may hold rows without entries.
        """
        with uninterrupted():  # else the chunk stays locked, and counts as one that somebody writes
            writer, self._writer = self._writer, None
            if writer is not None and writer.number in self.batches.evicted:
                writer.release()
            elif writer is not None:
                try:
                    with self._room(writer.footer_size):
                        entry = writer.seal()
                        if later is None:
                            self.log.append(entry)
                        else:
                            later.append(entry)
                except GenerationClosed:
                    writer.abandon()  # the generation has ended, and nobody reads the file
                except OSError as error:
                    if error.errno != errno.ESTALE:  # of a store that was removed
                        _log.warning("%s stays without a footer: %s", writer.path, error)
                    writer.abandon()

    def seal_unless_newest(self) -> None:
        """Seal this process's chunk if another one was begun after it."""
        if self._writer is not None and self._writer.number < self._newest_chunk():
            self.seal()

    def trim(self) -> None:
        """Cut this process's chunk to its content: its file may be extended ahead of its writes."""
        if self._writer is not None and self._writer.number not in self.batches.evicted:
            with contextlib.suppress(OSError):  # it only affects the size
                self._writer.trim()

    def release(self) -> None:
        """Close what is open without writing anything."""
        with uninterrupted(), contextlib.ExitStack() as stack:  # all of them, also if one fails
            self.is_released = True
            writer, self._writer = self._writer, None
            stack.callback(self.log.close)
            stack.callback(self.batches.space.release)
            if writer is not None:
                writer.release()

    def read(
        self,
        names: Iterable[str],
        positions: Int64,
        gatherer: Gatherer | None = None,
        snapshot: Snapshot | None = None,
    ) -> list[GatheredColumn]:
        """Read fields at positions, by default with this generation's gatherer and in its current snapshot.

        Raises:
            Damaged: a record does not match its checksum.
        """
        gatherer = gatherer or self.gatherer
        snapshot = snapshot or gatherer.snapshot
        rows = snapshot.rows_at(positions)
        which = snapshot.batch_of(rows)
        found = [gatherer.gather(snapshot, name, rows, which) for name in names]
        for name, gathered in zip(names, found, strict=True):
            if gathered.bad is not None and gathered.bad.any():
                chunk = int(snapshot.chunk[which[gathered.bad][0]])
                self._raise_damaged(name, positions[gathered.bad], chunk, len(positions))
        return found

    def _raise_damaged(self, name: str, bad: Int64, number: int, count: int) -> None:
        chunk = self.batches.chunks.path(number)
        advice = "restore it from a copy, or save the rest with verify(repair=True)"
        if self._files.is_remote:
            advice = f"remove {self._path} to fetch it from the remote again"
        raise Damaged(
            f"{chunk}: {len(bad)} of {count} rows of field {name!r} do not match their checksums or are missing, the "
            f"first at position {int(bad[0])}. The file changed after it was written; {advice}"
        )

    def to_arrow(self, *, verify: bool = True) -> pa.Table:
        """The committed records as a table over the mapped files; after edits a copy in the order of positions.

        Args:
            verify: compare each batch with its hash the first time that this process reads it as Arrow.
        """
        entries = self.log.read(0)[: self.snapshot.entries]
        batches = self.batches.arrow_batches(entries, verify=verify)
        table = pa.Table.from_batches(batches, schema=self._schema)
        order = self.snapshot.order
        if order is None:
            return table
        try:
            table.validate(full=True)  # else pyarrow would follow a damaged offset out of bounds
        except pa.ArrowException as error:
            raise Damaged(
                f"{self.folder}: some values are damaged ({error}); save the rest with verify(repair=True)"
            ) from error
        return table.take(pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)]))

    def recheck(self) -> Gatherer:
        """A gatherer that has checked no row yet, for copying rows and for finding damage."""
        return Gatherer(self.batches, self.manifest.fields)


def _gone(log: Log, numbers: Numbers) -> frozenset[int]:
    """The chunks that have been evicted or merged away."""
    entries = log.read(0)
    evicted = entries["chunk"][entries["kind"] == EVICTED].tolist()
    return live_batches(entries, 0, numbers).merged_away.union(evicted)


def _is_superseded(path: Path, generation: int, files: Files) -> bool:
    """Whether the store continues in a later generation."""
    try:
        return read_manifest(path, files).generation > generation
    except WarmstoreError:
        return False
