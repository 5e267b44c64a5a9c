"""One generation of a store, opened by one process: its log, what is read of it, and the chunk this process writes.

A store lives in one generation at a time. Rewriting it (to rebalance, to change fields, to repair) makes the next one
beside it and closes this one's log; whoever meets the closed log goes on in the next.
"""

import contextlib
import errno
import functools
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from warmstore.errors import Damaged, WarmstoreError
from warmstore.records.checksums import batch_seeds, generation_seed
from warmstore.records.chunk import ChunkWriter
from warmstore.records.edits import trailer_of, trailer_size
from warmstore.records.fields import arrow_schema, columns_of
from warmstore.records.files import Files
from warmstore.records.gather import Gatherer
from warmstore.records.log import BATCH, CLOSED, EVICTED, GenerationClosed, Log
from warmstore.records.manifest import Manifest, read_manifest
from warmstore.records.record_batch import batch_size, record_batch
from warmstore.records.rows import Gathered, Rows
from warmstore.records.snapshot import Batches, ChunkEvicted, Int64, Snapshot
from warmstore.records.values import compressed
from warmstore.records.writing import Writing

_log = logging.getLogger("warmstore")


class Generation:
    """Reading needs no lock; everything else is for one thread at a time."""

    def __init__(self, path: Path, manifest: Manifest, writing: Writing, files: Files, *, write: bool) -> None:
        self.manifest = manifest
        self.folder = path / manifest.generation_folder
        self._path = path
        self._writing = writing
        self._files = files
        self._schema = arrow_schema(manifest.fields)
        self._seed = generation_seed(manifest.id, manifest.generation)
        # Not a method: what has it would keep this generation, and its mapped files, until a garbage collection.
        self._superseded = functools.partial(_is_superseded, path, manifest.generation, files)
        self._writer: ChunkWriter | None = None
        self.commits = 0  # of this process; an interrupt may hide what became of one
        self.log = Log(self.folder / "log", files, self._seed, write=write, superseded=self._superseded)
        try:
            self._load()
        except BaseException:
            self.log.close()
            raise

    def _load(self) -> None:
        columns = [column for name, field in self.manifest.fields.items() for column in columns_of(name, field)]
        evicted = functools.partial(_evicted, self.log)
        while True:
            batches = Batches(self.folder, self._schema, columns, self._seed, self._files, self._superseded, evicted)
            entries = self.log.read(0)
            with contextlib.suppress(ChunkEvicted):
                batches.extend(entries[entries["kind"] != CLOSED])
                break
        # Complete before anybody sees it: other threads read without a lock.
        self.gatherer = Gatherer(batches, self.manifest.fields)
        self._batches = batches

    @property
    def snapshot(self) -> Snapshot:
        """The committed rows this process knows of."""
        return self.gatherer.snapshot

    def is_current(self) -> bool:
        """Whether nothing was committed since."""
        return self.log.ends_with(self.snapshot.entries, self.snapshot.last_entry)

    def refresh(self) -> None:
        """Take in what was committed since.

        Raises:
            GenerationClosed: the store goes on in a later generation; the files of this one may be gone.
        """
        snapshot = self.snapshot
        if not self.log.continues(snapshot.entries, snapshot.last_entry):
            self._load()  # a writer took its last entry back when its disk failed
            return
        entries = self.log.read(snapshot.entries)
        if len(entries) and entries["kind"][-1] == CLOSED:
            raise GenerationClosed(str(self.folder))
        if (entries["kind"] == EVICTED).any() or np.isin(entries["chunk"], list(self._batches.evicted)).any():
            self._load()  # into other address space: this one may be read for as long as somebody has hold of it
            return
        try:
            self._batches.extend(entries)
        except ChunkEvicted:
            self._load()

    def commit(
        self, block: dict[str, Rows], kind: int = BATCH, positions: Int64 | None = None, *, stored: bool = False
    ) -> None:
        """Write one batch and commit it; it is on the disk when this returns.

        Args:
            block: rows of every field.
            kind: BATCH, or UPDATE or DELETE of `positions`.
            stored: values of fields with a codec are compressed already.

        Raises:
            WriteFailed: nothing was committed.
            GenerationClosed: nothing was committed; the store goes on in a later generation.
        """
        fields = self.manifest.fields
        if not stored:
            block = {name: compressed(field, block[name], self._writing.threads) for name, field in fields.items()}
        size = batch_size(fields, block) + (0 if positions is None else trailer_size(len(positions)))
        with self._room(size):
            self._commit_now(block, kind, positions, size)

    @contextlib.contextmanager
    def _room(self, size: int) -> Iterator[None]:
        """Have room for so many bytes, and in a bounded store the word that nobody else writes meanwhile."""
        if self._writing.room is None:
            yield
            return
        with self._writing.room(size):
            self.refresh()  # this process's chunk may be evicted
            yield

    def _commit_now(self, block: dict[str, Rows], kind: int, positions: Int64 | None, size: int) -> None:
        fields = self.manifest.fields
        writer = self._writer_for(size)
        seed = int(batch_seeds(self._seed, [writer.number], [writer.next_offset])[0])
        entry = None
        try:
            batch = record_batch(fields, block, self._schema, seed)
            entry = writer.append(batch, b"" if positions is None else trailer_of(positions, seed))
            entry["kind"] = kind
            if positions is not None:
                entry["rows"] = len(positions)
            self.log.append(entry)
        except BaseException:
            # Whatever happened to this chunk, it is never written again; the next commit begins a new one.
            self._writer = None
            writer.abandon()
            self.commits += int(entry is not None and self.log.holds(entry))
            raise
        self.commits += 1

    def _writer_for(self, size: int) -> ChunkWriter:
        if self._writer is not None and self._writer.number in self._batches.evicted:
            self._writer.let_go()
            self._writer = None
        if self._writer is not None and not self._writer.has_room(size, self._writing.chunk_size):
            self.seal()
        if self._writer is not None:
            return self._writer
        taken = (path.stem for path in self.folder.glob("*.arrow"))
        # Numbers of evicted chunks are not used again: their files are gone, what the log says of them is not.
        gone = self._batches.evicted | _evicted(self.log, self.snapshot.entries)
        number = max((int(stem) for stem in taken if stem.isdecimal()), default=-1) + 1
        number = max(number, *(chunk + 1 for chunk in gone)) if gone else number
        while self._writer is None:
            try:
                self._writer = ChunkWriter(self.folder, number, self._schema, self._files)
            except FileExistsError:
                number += 1
            except OSError as error:
                if error.errno == errno.ENOENT and self._superseded():
                    raise GenerationClosed(str(self.folder)) from None
                raise
        return self._writer

    def seal(self) -> None:
        """Give this process's chunk its footer. Without one it is as good to warmstore, not to other Arrow readers."""
        writer, self._writer = self._writer, None
        if writer is not None and writer.number in self._batches.evicted:
            writer.let_go()
        elif writer is not None:
            try:
                with self._room(writer.footer_size):
                    self.log.append(writer.seal())
            except GenerationClosed:
                writer.abandon()  # nobody will look for the file in a generation that has ended
            except OSError as error:
                _log.warning("%s stays without a footer: %s", writer.path, error)
                writer.abandon()

    def let_go(self) -> None:
        """Close what is open without writing anything."""
        if self._writer is not None:
            self._writer.let_go()
            self._writer = None
        self.log.close()

    def read(self, names: Iterable[str], positions: Int64) -> list[Gathered]:
        """Read fields at some positions, all below `snapshot.length`.

        Raises:
            Damaged: a record does not match its checksum.
        """
        gatherer = self.gatherer
        snapshot = gatherer.snapshot
        rows = snapshot.rows_at(positions)
        which = snapshot.batch_of(rows)
        found = [gatherer.gather(snapshot, name, rows, which) for name in names]
        for name, gathered in zip(names, found, strict=True):
            if gathered.bad is not None and gathered.bad.any():
                self._raise_damaged(name, positions[gathered.bad], which[gathered.bad], len(positions))
        return found

    def _raise_damaged(self, name: str, bad: Int64, which: Int64, count: int) -> None:
        chunk = self._batches.chunk_path(int(self.snapshot.chunk[which[0]]))
        what = "restore it from a copy, or save the rest with verify(repair=True)"
        if self._files.is_remote:
            what = f"remove {self._path}, and it comes from the remote again"
        raise Damaged(
            f"{chunk}: {len(bad)} of {count} rows of field {name!r} do not match their checksums or are missing, the "
            f"first at position {int(bad[0])}. The file changed after it was written; {what}"
        )

    def to_arrow(self) -> pa.Table:
        """The committed records as a table over the mapped files; in their order, copied, where there were edits."""
        entries = self.log.read(0)[: self.snapshot.entries]
        table = pa.Table.from_batches(self._batches.arrow_batches(entries), schema=self._schema)
        order = self.snapshot.order
        if order is None:
            return table
        try:
            table.validate(full=True)  # else pyarrow would copy from wherever a damaged offset points
        except pa.ArrowException as error:
            raise Damaged(
                f"{self.folder}: some values are damaged ({error}); save the rest with verify(repair=True)"
            ) from error
        return table.take(pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)]))


def _evicted(log: Log, first: int = 0) -> frozenset[int]:
    """The chunks that were evicted by now, as entries from number `first` on say."""
    entries = log.read(first)
    return frozenset(entries["chunk"][entries["kind"] == EVICTED].tolist())


def _is_superseded(path: Path, generation: int, files: Files) -> bool:
    """Whether the store has gone on to a later generation."""
    try:
        return read_manifest(path, files).generation > generation
    except WarmstoreError:
        return False
