"""StoreReader: the records of a store as one process sees them, read by position and by field.

Reads use a snapshot of the log. A process also sees its own pending rows, which come last. Rows that other processes
commit appear at `refresh`.
"""

import logging
import os
import stat
import weakref
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from warmstore.errors import Closed, ReadOnly
from warmstore.records.arrow.arrow_table import typed_rows, typed_table
from warmstore.records.format.fields import Fields, check_known, field_has_bytes
from warmstore.records.format.manifest import Manifest
from warmstore.records.format.value_encoding import raw_rows
from warmstore.records.gather_results import CommittedRecords, read, read_with_options
from warmstore.records.read.chunk_ranges import chunk_ranges
from warmstore.records.read.gather import Gatherer
from warmstore.records.read.index_arguments import as_positions, is_positions
from warmstore.records.read.snapshot import Snapshot
from warmstore.records.store_identity import content_of, record_hashes
from warmstore.records.store_session import StoreSession
from warmstore.records.write.write_options import WriteOptions
from warmstore.storage.array_types import Bools, UInt64
from warmstore.storage.disk_usage import entries_below
from warmstore.storage.files import Files
from warmstore.storage.interrupts import uninterrupted
from warmstore.storage.lifecycle import Closeable

_log = logging.getLogger("warmstore")


class StoreReader(Closeable):
    """The reading half of a store of `len(store)` records at positions 0 to N - 1, in the order of commits.

    Pending rows of this process come last. Safe to use from several threads.
    """

    def __init__(
        self, path: Path, manifest: Manifest, mode: str, writing: WriteOptions, files: Files, *, salvage: bool = False
    ) -> None:
        self.path = path.absolute()
        self.mode = mode
        self._files = files
        self._session = StoreSession(self.path, manifest, writing, files, write=mode == "a", salvage=salvage)
        self.closed = False
        if mode == "a":
            self._register()
        else:
            _readers.add(self)

    @property
    def _manifest(self) -> Manifest:
        """The contents of store.json, of this process's generation."""
        return self._session.generation.manifest

    @property
    def fields(self) -> Fields:
        """The typed fields of every record, by name. The dict is the caller's: changing it changes no store."""
        return dict(self._manifest.fields)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that was passed to `create`, with the entries of `annotate`."""
        return self._manifest.metadata

    @property
    def _snapshot(self) -> Snapshot:
        """The committed rows that this process has read from the log."""
        return self._session.snapshot

    @property
    def nbytes(self) -> int:
        """Bytes the store takes on the disk."""
        return sum(status.st_size for _, status in entries_below(self.path) if stat.S_ISREG(status.st_mode))

    @property
    def _has_pending(self) -> bool:
        return not self.closed and self._session.pending.nbytes > 0

    def __identity__(self) -> Any:
        from warmstore.identity.kinds import Versioned  # whoever asks has imported it

        return Versioned(self._manifest.id, content_of(self._session))

    def __sample_hashes__(self) -> UInt64:
        """A hash of each record, uint64 [n, 2]; see `record_hashes`."""
        self._check_open()
        return record_hashes(self._session)

    def __len__(self) -> int:
        return len(self._session)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {field}" for name, field in self.fields.items())
        return f"RecordStore({str(self.path)!r}, mode={self.mode!r}, {len(self):,} records, {fields})"

    def refresh(self) -> None:
        """Read the log entries that other processes have appended. A flush does this too."""
        self._check_open()
        self._files.refresh()
        self._session.refresh()

    def gather(
        self,
        index: Any,
        fields: Iterable[str] | None = None,
        *,
        packed: bool | Collection[str] = False,
        out: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Read many records at once, in the order asked for.

        Args:
            index: integers (negative ones count from the end), a slice, or a boolean mask, whose masked elements are
                False.
            fields: the fields to read; all by default.
            packed: values without one common shape come concatenated in one array, with their offsets: of all such
                fields, or of the fields with these names.
            out: per field a NumPy array or CPU tensor to read into: for an Array field [n, *shape] of its dtype; with
                `packed` one dimension of the field's dtype (uint8 for bytes and text), large enough. Not needed for
                speed: the memory of large batches is pooled.

        Returns:
            Per field: [n, *shape] for an Array; otherwise a list of n read-only arrays (Ragged), memoryviews (Bytes),
            str (Text) or JSON values (Json); or a `Packed`. Arrays of `out` are returned themselves.

        Raises:
            PositionError: a position outside the store.
            KeyError: the store lacks a field; or `packed` or `out` names one that is not read.
            SchemaMismatch: `out` does not fit.
            Damaged: a row does not match its checksum.
        """
        if self.closed:
            self._check_open()
        session = self._session
        pending = session.pending.count  # read before the generation: a flush adds rows there before it drops them here
        generation = session.generation
        known = generation.manifest.fields
        if fields is not None and not isinstance(fields, str):
            fields = tuple(fields)  # of any iterable, which may be there for one pass
        names = known if fields is None else fields
        if not (packed or out or pending or isinstance(names, str)) and is_positions(index):
            values = generation.gatherer.values(names, index)
            if values is not None:
                return values
        if fields is not None:
            check_known(self.path, names, known)
        out = out or {}
        in_one = (names if packed else ()) if isinstance(packed, bool) else packed
        for option, chosen in (("packed", in_one), ("out", out)):
            for name in chosen:
                if name not in names:
                    raise KeyError(f"{option} has {name!r}, which is not among the fields to read: {list(names)}")
        if pending:
            with session.lock:
                if not session.pending.count or session.generation is not generation:  # another thread has flushed
                    return self.gather(index, fields, packed=packed, out=out)
                records = CommittedRecords.of(generation)
                positions = as_positions(index, records.snapshot.length + session.pending.count)
                return read_with_options(records, session.pending, names, positions, in_one, out)
        records = CommittedRecords.of(generation)
        positions = as_positions(index, records.snapshot.length)
        if in_one or out:
            return read_with_options(records, None, names, positions, in_one, out)
        return read(records, names, positions)

    @property
    def _gatherer(self) -> Gatherer:
        """Reads the rows that are committed now. Later commits do not change its row numbers."""
        return self._session.generation.gatherer

    def present(self, field: str, index: Any = slice(None)) -> Bools:
        """Which of the committed records have a value for a field: bool [n]."""
        self._check_open()
        check_known(self.path, [field], self.fields)
        gatherer = self._gatherer
        snapshot = gatherer.snapshot
        (gathered,) = gatherer.read_rows([field], snapshot.rows_at(as_positions(index, snapshot.length)))
        count = len(gathered.data if gathered.data is not None else gathered.spans or ())
        return np.ones(count, bool) if gathered.absent is None else ~gathered.absent

    def chunk_ranges(self, parts: int | None = None) -> list[range]:
        """Consecutive ranges of positions that cover the committed records, for tasks that read them in parallel.

        A range ends where the rows of one chunk end and those of another begin. After edits some of its records lie in
        other chunks. No range is empty.

        Args:
            parts: the wanted number of ranges: equal shares, each cut at the end of a chunk if one is within a quarter
                of a share. None cuts at all ends of chunks.
        """
        self._check_open()
        return chunk_ranges(self._snapshot, parts)

    def to_arrow(
        self,
        index: Any = None,
        *,
        fields: Iterable[str] | None = None,
        checksums: bool = False,
        verify: bool = True,
    ) -> pa.Table:
        """The committed records as an Arrow table of typed columns, in their order; pending ones are left out.

        Columns are views of the mapped files where Arrow has the same layout. Bools and values of fields with a codec
        are copied; with `index`, and after edits, everything is. `warmstore.records.arrow.arrow_schema` maps fields to
        Arrow types. A record without a value is null, and so is NaT.

        Args:
            index: an index for `gather`. Only its records are read, copied and checked. None for all records.
            fields: the fields of the table, in order; all by default.
            checksums: add each field's checksum column, `FIELD::xxh3`. Not with `index`.
            verify: check every batch against its hash first, once per process.

        Raises:
            KeyError: an unknown field.
            PositionError: a position outside the store.
            UnsupportedType: Arrow cannot hold the values of a field; the message names it.
            Damaged: a batch is missing or damaged, or, after edits, a value lies out of bounds.
        """
        self._check_open()
        with self._session.lock:
            generation = self._session.generation
            known = generation.manifest.fields
            names = known if fields is None else fields if isinstance(fields, str) else tuple(fields)
            check_known(self.path, names, known)
            chosen = {name: known[name] for name in names}
            if index is not None:
                if checksums:
                    raise ValueError("checksums of single records are not available: leave out index or checksums")
                columns = generation.read(names, as_positions(index, generation.snapshot.length))
                rows = {name: raw_rows(known[name], column) for name, column in zip(names, columns, strict=True)}
                return typed_rows(rows, chosen)
            stored = generation.to_arrow(verify=verify)
            absent = {name: ~self.present(name) for name in names if not field_has_bytes(known[name])}
        return typed_table(stored, chosen, checksums=checksums, absent=absent)

    def close(self, *, seal: bool = True) -> None:
        """Flush, seal this writer's chunk and close the folder's files. Closing twice is fine.

        Args:
            seal: write the chunk's footer, which other readers of Arrow files need. warmstore does not.

        Raises:
            WriteFailed: the flush failed; the store stays open and the rows stay pending.
        """
        if self.closed:
            return
        with self._session.lock:
            if self.closed:  # by another thread
                return
            if self.mode == "a":
                self._session.settle(seal=seal)
            self._abandon()

    def _abandon(self) -> None:
        """Close the folder's files without writing anything. Pending rows are dropped."""
        with uninterrupted():
            # Closed also if a file reports an error: its descriptor may be another file's by the next call.
            self.closed = True
            self._unregister()
            try:
                self._session.generation.release()
            finally:
                self._files.release()

    def _after_fork(self) -> None:
        # Runs in a forked child: the parent's pending rows, chunk and locks stay with the parent. Readers keep what
        # they have, unless a thread, which is not there, was in the middle of a refresh.
        old = self._session
        old.generation.release()
        try:
            self._session = StoreSession(
                self.path, self._manifest, old.writing, self._files, write=self.mode == "a", salvage=old.salvage
            )
        except OSError as error:
            self.closed = True
            _log.warning("%s could not be opened again after a fork: %s", self.path, error)

    def _check_open(self) -> None:
        if self.closed:
            raise Closed(f"the store {self.path} is closed; open it again with RecordStore.open")

    def _check_writable(self) -> None:
        self._check_open()
        if self.mode != "a":
            raise ReadOnly(f"{self.path} was opened with mode='r'; open it with mode='a' to append")


_readers: weakref.WeakSet[StoreReader] = weakref.WeakSet()


def _after_fork() -> None:
    for reader in list(_readers):
        if not reader.closed and reader._session.is_held():
            reader._after_fork()


os.register_at_fork(after_in_child=_after_fork)
