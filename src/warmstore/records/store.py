"""RecordStore: typed records in a folder, appended by many processes and gathered at memory speed.

A store is a folder of Arrow IPC files and one log. Reading goes through a snapshot of the log; writing stages rows in
memory until a flush commits them. Every process that opened the store sees its own pending rows at once and those of
others at `refresh`.
"""

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa

from warmstore.errors import Closed, Damaged, ReadOnly, SchemaMismatch, StoreExists
from warmstore.owner import Owner
from warmstore.records.address_space import SLOT
from warmstore.records.chunk import ChunkWriter
from warmstore.records.fields import Array, Field, Fields, Json, Ragged, arrow_schema, check_fields, columns_of
from warmstore.records.files import Files, is_read_only
from warmstore.records.gather import Gathered, Gatherer
from warmstore.records.log import Log, create_log
from warmstore.records.manifest import NAME, Manifest, read_manifest, write_manifest
from warmstore.records.pending import Pending, block_of, largest_record
from warmstore.records.positions import as_positions
from warmstore.records.rows import Rows, decode, decode_array, encode, join, to_arrow
from warmstore.records.snapshot import Batches, Int64, Snapshot
from warmstore.sizes import parse_size

_log = logging.getLogger("warmstore")

_BATCH_BYTES = 64 << 20
"""Pending bytes that start a flush by themselves, and the most that one batch on the disk holds."""


class RecordStore(Owner):
    """A store of `len(store)` records, positions 0 to N - 1 in the order of commits, this process's pending rows last.

    Safe to use from several threads. Make one with `create` or `open`.
    """

    def __init__(self, path: Path, manifest: Manifest, mode: str, chunk_size: int, files: Files) -> None:
        self.path = path.absolute()
        self.manifest = manifest
        self.mode = mode
        self._chunk_size = chunk_size
        self._files = files
        self._schema = arrow_schema(self.fields)
        self._start()
        if mode == "a":
            self.own()

    def _start(self) -> None:
        folder = self.path / self.manifest.generation_folder
        self._lock = threading.RLock()
        self._pending = Pending(self.fields)
        self._writer: ChunkWriter | None = None
        self._log = Log(folder / "log", self._files, write=self.mode == "a")
        try:
            self._load()
        except BaseException:
            self._log.close()
            raise
        self.closed = False

    def _load(self) -> None:
        folder = self.path / self.manifest.generation_folder
        columns = [column for name, field in self.fields.items() for column in columns_of(name, field)]
        batches = Batches(folder, self._schema, columns, self._files)
        batches.extend(self._log.read(0))
        # Complete before anybody sees it: other threads read without a lock.
        self._gatherer = Gatherer(batches, self.fields)
        self._batches = batches

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        fields: Fields,
        *,
        metadata: dict[str, Any] | None = None,
        chunk_size: int | str = SLOT,
        files: Files | None = None,
    ) -> Self:
        """Make a new store and open it for appending. The folder appears whole or not at all.

        Args:
            path: a folder that does not exist yet or is empty.
            fields: the typed fields of every record, by name.
            metadata: anything JSON can say, kept with the store.
            chunk_size: bytes after which a chunk is sealed and the next begun, at most 1 GiB.

        Raises:
            StoreExists: the folder holds something already.
            SchemaMismatch: fields that cannot be.
            UnsupportedType: metadata that JSON cannot say.
            ReadOnly: the folder cannot be written.
        """
        folder, files = Path(path).absolute(), files or Files()
        limit = _chunk_limit(chunk_size)
        manifest = Manifest(check_fields(fields), dict(metadata or {}))
        encode("metadata", Json(), [manifest.metadata])
        if folder.exists() and (not folder.is_dir() or (folder / NAME).exists()):
            raise StoreExists(
                f"{folder} holds a store already; open it with RecordStore.open({str(folder)!r}, mode='a')"
                if folder.is_dir()
                else f"{folder} is a file; name a new folder"
            )
        draft = folder.parent / f".{folder.name}.{manifest.id}.tmp"
        try:
            generation = draft / manifest.generation_folder
            generation.mkdir(parents=True)
            create_log(generation, files)
            write_manifest(draft, manifest, files)
            files.rename(draft, folder)
            files.sync_folder(folder.parent)
        except OSError as error:
            if is_read_only(error):
                raise ReadOnly(error.errno, "the folder cannot be written", str(folder.parent)) from error
            if folder.is_dir() and any(folder.iterdir()):
                raise StoreExists(f"{folder} is not empty; name a new folder, or empty that one first") from error
            raise
        finally:
            _remove_draft(draft)
        return cls(folder, manifest, "a", limit, files)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: Literal["r", "a"] = "r",
        *,
        chunk_size: int | str = SLOT,
        files: Files | None = None,
    ) -> Self:
        """Open a store for reading ("r") or for appending too ("a").

        Raises:
            NotAStore: the folder holds none.
            NewerFormat: it was written by a newer warmstore.
            Damaged: its description or log does not match its checksums.
            ReadOnly: mode "a" on a folder that cannot be written.
        """
        if mode not in ("r", "a"):
            raise ValueError(f"mode is {mode!r}; it must be 'r' (read) or 'a' (read and append)")
        files, limit = files or Files(), _chunk_limit(chunk_size)
        manifest = read_manifest(Path(path), files)
        try:
            return cls(Path(path), manifest, mode, limit, files)
        except OSError as error:
            if is_read_only(error):
                raise ReadOnly(error.errno, "the store cannot be written; open it with mode='r'", str(path)) from error
            raise

    @property
    def fields(self) -> Fields:
        """The typed fields of every record, by name."""
        return self.manifest.fields

    @property
    def metadata(self) -> dict[str, Any]:
        """What `create` was given to keep with the store."""
        return self.manifest.metadata

    @property
    def snapshot(self) -> Snapshot:
        """The committed rows this process knows of."""
        return self._gatherer.snapshot

    @property
    def nbytes(self) -> int:
        """Bytes the store takes on the disk."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def __len__(self) -> int:
        if not self._pending.count:  # looked at before the snapshot: what leaves the one is in the other by then
            return self.snapshot.rows
        with self._lock:
            return self.snapshot.rows + self._pending.count

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {field}" for name, field in self.fields.items())
        return f"RecordStore({str(self.path)!r}, mode={self.mode!r}, {len(self):,} records, {fields})"

    # Writing

    def append(self, record: dict[str, Any]) -> None:
        """Add one record, given as a value per field. It is pending until the next flush."""
        if not isinstance(record, dict):
            raise SchemaMismatch(f"a record is a dict of one value per field, not {type(record).__name__}")
        self.extend({name: [value] for name, value in record.items()})

    def extend(self, columns: dict[str, Any]) -> None:
        """Add a batch of records, given as a dict of field name to n values. Values are copied.

        The rows are pending: readable here at once, by others after `flush`, which also happens by itself once
        64 MiB are pending, and at close.

        Raises:
            SchemaMismatch: fields missing or unknown, unequal lengths, another dtype or shape; nothing is added.
            ReadOnly: the store was opened with mode "r".
            WriteFailed: a flush that came due failed; the rows are pending.
        """
        self.extend_rows(block_of(self.fields, columns))
        if self._pending.nbytes >= _BATCH_BYTES:
            self.flush()

    def extend_rows(self, block: dict[str, Rows]) -> None:
        """Add a batch that is encoded already, without flushing; its arrays must not change afterwards."""
        self._check_writable()
        widest = largest_record(block)
        if widest > SLOT // 2:
            raise SchemaMismatch(f"a record of {widest:,} bytes is too large: a chunk holds 1 GiB. Split it")
        with self._lock:
            self._pending.add(block)

    def flush(self) -> None:
        """Commit all pending rows; they are on the disk, and visible to others, when this returns.

        Raises:
            WriteFailed: the disk refused. Rows not committed are still pending and the next flush tries them again.
        """
        self._check_writable()
        with self._lock:
            while self._pending.count:
                count, block = self._pending.head(_BATCH_BYTES)
                self._commit(count, block)
            self.refresh()

    def _commit(self, count: int, block: dict[str, Rows]) -> None:
        arrays = [array for name, field in self.fields.items() for array in to_arrow(name, field, block[name])]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        writer = self._writer_for(batch)
        entry = None
        try:
            entry = writer.append(batch)
            self._log.append(entry)
        except BaseException:
            # Whatever happened to this chunk, it is never written again; the next flush begins a new one.
            self._writer = None
            writer.abandon()
            if entry is not None and self._log.holds(entry):
                self._committed(count)
            raise
        self._committed(count)

    def _committed(self, count: int) -> None:
        # In this order: other threads read pending rows until the snapshot has them.
        try:
            self.refresh()
        finally:
            self._pending.drop(count)

    def _writer_for(self, batch: pa.RecordBatch) -> ChunkWriter:
        if self._writer is not None and not self._writer.has_room(batch, self._chunk_size):
            self._seal()
        if self._writer is None:
            folder = self.path / self.manifest.generation_folder
            taken = (path.stem for path in folder.glob("*.arrow"))
            number = max((int(stem) for stem in taken if stem.isdecimal()), default=-1) + 1
            while self._writer is None:
                try:
                    self._writer = ChunkWriter(folder, number, self._schema, self._files)
                except FileExistsError:
                    number += 1
        return self._writer

    def _seal(self) -> None:
        # A chunk without its footer is as good to warmstore as one with; only other Arrow readers need it.
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                self._log.append(writer.seal())
            except OSError as error:
                _log.warning("%s stays without a footer: %s", writer.path, error)
                writer.abandon()

    def refresh(self) -> None:
        """See what other processes committed since. A store's own flush does this too."""
        self._check_open()
        snapshot = self.snapshot
        if self._log.ends_with(snapshot.entries, snapshot.last_entry):
            return
        with self._lock:
            snapshot = self.snapshot
            if self._log.continues(snapshot.entries, snapshot.last_entry):
                self._batches.extend(self._log.read(snapshot.entries))
            else:
                self._load()  # a writer took its last entry back when its disk failed

    def close(self) -> None:
        """Flush, seal this writer's chunk and let go of the folder. Closing twice is fine.

        Raises:
            WriteFailed: the flush failed; the store stays open and the rows pending.
        """
        if self.closed:
            return
        with self._lock:
            if self.mode == "a":
                self.flush()
                self._seal()
            self._log.close()
            self.closed = True
            self.disown()

    def _after_fork(self) -> None:
        # In a forked child: the parent's pending rows, chunk and locks stay the parent's.
        if self._writer is not None:
            self._writer.let_go()
        self._log.close()
        try:
            self._start()
        except OSError as error:
            self.closed = True
            _log.warning("%s could not be opened again after a fork: %s", self.path, error)

    def __reduce__(self) -> Any:
        return type(self).open, (str(self.path), "r")

    # Reading

    def __getitem__(self, index: Any) -> dict[str, Any]:
        """One record as a dict of values for an integer; for a slice, mask or integers what `gather` returns."""
        if isinstance(index, int | np.integer) and not isinstance(index, bool | np.bool_):
            return {name: values[0] for name, values in self.gather([index]).items()}
        return self.gather(index)

    def gather(self, index: Any, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Read many records at once, in the order asked for.

        Args:
            index: integers (negative ones count from the end), a slice, or a boolean mask.
            fields: the fields to read; all by default.

        Returns:
            Per field: [n, *shape] for an Array; otherwise a list of n read-only arrays (Ragged), memoryviews (Bytes),
            str (Text) or JSON values (Json).

        Raises:
            PositionError: a position outside the store.
            Damaged: a row does not match its checksum.
        """
        self._check_open()
        names = self.fields if fields is None else fields
        for name in names:
            if name not in self.fields:
                raise KeyError(f"{self.path} has no field {name!r}; it has {list(self.fields)}")
        if self._pending.count:  # looked at before the snapshot: what leaves the one is in the other by then
            with self._lock:
                if self._pending.count:
                    positions = as_positions(index, len(self))
                    return {name: self._gather_with_pending(name, positions) for name in names}
        gatherer = self._gatherer
        positions = as_positions(index, gatherer.snapshot.rows)
        return {name: self._values(name, self._read(gatherer, name, positions)) for name in names}

    def read_rows(self, names: Sequence[str], rows: Int64) -> list[Gathered]:
        """Read fields of committed rows by number, all below `snapshot.rows`; damaged rows are marked, not raised."""
        gatherer = self._gatherer
        snapshot = gatherer.snapshot
        which = snapshot.batch_of(rows)
        return [gatherer.gather(snapshot, name, rows, which) for name in names]

    def _read(self, gatherer: Gatherer, name: str, rows: Int64) -> Gathered:
        snapshot = gatherer.snapshot
        gathered = gatherer.gather(snapshot, name, rows, snapshot.batch_of(rows))
        if gathered.bad is not None and gathered.bad.any():
            bad = rows[gathered.bad]
            chunk = self._batches.chunk_path(int(snapshot.chunk[snapshot.batch_of(bad[:1])][0]))
            raise Damaged(
                f"{chunk}: {len(bad)} of {len(rows)} rows of field {name!r} do not match their checksums or are "
                f"missing, the first at position {int(bad[0])}. The file changed after it was written; restore it from "
                "a copy"
            )
        return gathered

    def _values(self, name: str, gathered: Gathered) -> Any:
        field = self.fields[name]
        if isinstance(field, Array):
            return decode_array(field, gathered.data)  # type: ignore[arg-type]
        return decode(field, gathered.views, gathered.shapes)  # type: ignore[arg-type]

    def _gather_with_pending(self, name: str, positions: Int64) -> Any:
        gatherer, field = self._gatherer, self.fields[name]
        snapshot = gatherer.snapshot
        late = positions >= snapshot.rows
        pending = _take(self._pending.joined()[name], positions[late] - snapshot.rows)
        if late.all():
            return self._pending_values(field, pending)
        early = self._values(name, self._read(gatherer, name, positions[~late]))
        rest = self._pending_values(field, pending)
        if isinstance(field, Array):
            merged = np.empty((len(positions), *field.shape), early.dtype)
            merged[~late], merged[late] = early, rest
            return merged
        sources = iter(early), iter(rest)
        return [next(sources[is_late]) for is_late in late.tolist()]

    @staticmethod
    def _pending_values(field: Field, rows: Rows) -> Any:
        if isinstance(field, Array):
            return decode_array(field, rows.data)
        shapes = rows.shapes if isinstance(field, Ragged) else None
        return decode(field, rows.views(), shapes)

    def to_arrow(self) -> pa.Table:
        """The committed records as an Arrow table whose columns lie in the mapped files; nothing is copied or checked.

        The checksum columns come along under their names, `FIELD::xxh3`.

        Raises:
            Damaged: a batch is missing or its header is damaged.
        """
        self._check_open()
        with self._lock:
            entries = self._log.read(0)[: self.snapshot.entries]
            return pa.Table.from_batches(self._batches.arrow_batches(entries), schema=self._schema)

    # Housekeeping

    def _check_open(self) -> None:
        if self.closed:
            raise Closed(f"the store {self.path} is closed; open it again with RecordStore.open")

    def _check_writable(self) -> None:
        self._check_open()
        self.own()
        if self.mode != "a":
            raise ReadOnly(f"{self.path} was opened with mode='r'; open it with mode='a' to append")


def _take(rows: Rows, which: Int64) -> Rows:
    if rows.offsets is None:
        return Rows(len(which), rows.data[which])
    return join([rows.slice(at, at + 1) for at in which.tolist()] or [rows.slice(0, 0)])


def _chunk_limit(size: int | str) -> int:
    limit = parse_size(size)
    if limit > SLOT:
        raise ValueError(f"chunk_size is {size!r}; a chunk holds at most 1 GiB")
    return limit


def _remove_draft(draft: Path) -> None:
    if draft.exists():
        for path in sorted(draft.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        draft.rmdir()
