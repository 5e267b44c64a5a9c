"""StoreSession: an open store of one process, with the generation that it reads and writes, and its pending rows.

`RecordStore` is the public class. If an operation finds the log of its generation closed, the session repeats it in the
next generation. No other module handles the end of a generation.
"""

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from warmstore.errors import Damaged, NotAStore, PositionError, ReadOnly, SchemaMismatch
from warmstore.records.format.encoded_rows import EncodedRows, stored_rows
from warmstore.records.format.fields import Json
from warmstore.records.format.manifest import FORMAT, Manifest, read_manifest, write_manifest
from warmstore.records.format.value_encoding import compressed, encode
from warmstore.records.log.commit_log import GenerationClosed
from warmstore.records.read.index_arguments import as_positions, sorted_unique
from warmstore.records.read.snapshot import Snapshot
from warmstore.records.write.chunk_merging import merge_small_chunks
from warmstore.records.write.edit_lock import edit_lock
from warmstore.records.write.generation import Generation
from warmstore.records.write.upgrade import upgrade
from warmstore.records.write.write_buffer import WriteBuffer, block_of
from warmstore.records.write.write_options import WriteOptions
from warmstore.storage.array_types import Int64
from warmstore.storage.files import Files, write_failed
from warmstore.storage.interrupts import uninterrupted
from warmstore.storage.locks import is_held

BATCH_BYTES = 64 << 20
"""Pending bytes that start a flush, and the most bytes of one batch on the disk."""


class StoreSession:
    """Safe to use from several threads: every change holds `lock`."""

    def __init__(
        self, path: Path, manifest: Manifest, writing: WriteOptions, files: Files, *, write: bool, salvage: bool = False
    ) -> None:
        self.path = path
        self.writing = writing
        self.files = files
        self.lock = threading.RLock()
        self.pending = WriteBuffer()
        self._write = write
        self.salvage = salvage
        self._prepared = False
        self._editors = 0
        self.generation = self._open_generation(manifest)

    def is_held(self) -> bool:
        """Whether another thread is changing this session, or taking the log's lock."""
        return is_held(self.lock) or is_held(self.generation.log.guard)

    def _open_generation(self, manifest: Manifest) -> Generation:
        while True:
            try:
                return Generation(
                    self.path, manifest, self.writing, self.files, write=self._write, salvage=self.salvage
                )
            except (NotAStore, GenerationClosed):
                # The store may have continued in the next generation just now, and removed this folder.
                latest = self.latest(manifest)
                if latest.generation == manifest.generation:
                    raise
                manifest = latest

    def latest(self, manifest: Manifest) -> Manifest:
        """A store's manifest as it is now.

        Raises:
            NotAStore: the folder has another store now, whose rows are not those of the same numbers.
        """
        return _of_same_store(self.path, read_manifest(self.path, self.files), manifest)

    def check_in_place(self) -> None:
        """Raise NotAStore if the folder has another store now. One whose description is lost or damaged is no other."""
        found = None
        with contextlib.suppress(Damaged, NotAStore):
            found = read_manifest(self.path, self.files)
        if found is not None:
            _of_same_store(self.path, found, self.generation.manifest)

    @property
    def snapshot(self) -> Snapshot:
        """The committed rows that this process has read from the log."""
        return self.generation.snapshot

    def __len__(self) -> int:
        if not self.pending.count:  # read before the snapshot: a flush adds rows to it before it drops them here
            return self.snapshot.length
        with self.lock:
            return self.snapshot.length + self.pending.count

    def _follow(self, *, writing: bool = False, committed: int = 0) -> None:
        """Continue in the store's current generation.

        Args:
            writing: rows that are not pending are to be written there.
            committed: how many of the pending rows are committed already.

        Raises:
            SchemaMismatch: its fields are not those that the rows to write were encoded by.
            NotAStore: the folder has another store now.
        """
        manifest = self.latest(self.generation.manifest)
        left = self.pending.count - committed
        if (writing or left) and manifest.fields != self.generation.manifest.fields:
            raise SchemaMismatch(
                f"the fields of {self.path} were changed by another process while {left or 'some'} "
                f"records were pending here; they are {list(manifest.fields)} now. Open the store again and add the "
                "records anew"
            )
        old, self.generation = self.generation, self._open_generation(manifest)
        old.release()

    def refresh(self, *, committed: int = 0) -> None:
        """Read what other processes have committed. `committed`: how many of the pending rows are committed already."""
        if not self.generation.is_current():
            with self.lock:
                try:
                    # This looks again under the lock: another thread of this process may have flushed.
                    self.generation.refresh()
                except GenerationClosed:
                    self._follow(committed=committed)

    def flush(self) -> None:
        """Commit all pending rows."""
        with self.lock:
            if not self.pending.count:
                self.refresh()
            # In a store with a quota no batch may exceed the chunk size: chunks are the units of eviction.
            most = BATCH_BYTES if self.writing.room is None else min(BATCH_BYTES, self.writing.chunk_size)
            while self.pending.count:
                count, block = self.pending.head(most)
                self._commit(lambda generation: generation.commit(block), count)  # noqa: B023 - called before the next

    def settle(self, *, seal: bool = True) -> None:
        """Commit the pending rows, and seal this process's chunk, or without `seal` cut it to its content."""
        with self.lock:
            self.flush()
            if not seal:
                self.generation.trim()
            else:
                self.generation.seal()
                if self.writing.room is None:
                    merge_small_chunks(self.path, self.generation, self.files, self.writing.chunk_size)

    def continue_in_newest_chunk(self) -> None:
        """Let the next rows be in a chunk that was begun after all others: that of this process, or a new one."""
        with self.lock:
            self.generation.seal_unless_newest()

    def commit_rows(self, block: dict[str, EncodedRows]) -> None:
        """Commit rows that are compressed already, and were never pending."""
        with self.lock:
            self._commit(lambda generation: generation.commit(block, stored=True))

    def _commit(self, write: Callable[[Generation], None], count: int = 0) -> None:
        """Write to the current generation, then drop the first `count` pending rows."""
        self._prepare()
        with uninterrupted():  # otherwise rows could be committed, and stay pending
            while True:
                generation = self.generation
                commits = generation.commits
                try:
                    write(generation)
                    return
                except GenerationClosed:
                    self._follow(writing=True)
                finally:
                    if generation.commits > commits:
                        # Refresh before dropping: other threads read pending rows until the snapshot has them.
                        try:
                            self.refresh(committed=count)
                        finally:
                            if count:
                                self.pending.drop(count)

    def _prepare(self) -> None:
        """Before the first write: upgrade the store to the current format, and restore store.json if it is damaged."""
        if not self._prepared:
            try:
                upgrade(self.path, self.files)
            except OSError as error:
                raise write_failed(error, self.path) from error
            self.generation.manifest = replace(self.generation.manifest, format=FORMAT)
            self._prepared = True

    def update(self, index: Any, values: dict[str, Any]) -> None:
        """Replace values of records; see `RecordStore.update`."""
        fields = self.generation.manifest.fields
        with self._editing_at(index) as positions:
            known = {name: field for name, field in fields.items() if name in values}
            given = block_of(known if known and len(known) == len(values) else fields, values)
            count = next(iter(given.values())).count
            if count != len(positions):
                raise SchemaMismatch(f"update of {len(positions)} records got {count} values per field")
            if not count:
                return
            threads = self.writing.threads
            given = {name: compressed(fields[name], rows, threads) for name, rows in given.items()}
            kept = [name for name in fields if name not in given]
            self._commit(lambda generation: generation.commit_update(self._blocks(positions, given, kept), positions))

    def _blocks(
        self, positions: Int64, given: dict[str, EncodedRows], kept: list[str]
    ) -> Iterator[dict[str, EncodedRows]]:
        """The rows of an update in their stored form, in blocks of at most about 64 MiB."""
        first, queue = 0, WriteBuffer()
        for part in self.generation.gatherer.blocks(kept, positions, BATCH_BYTES):
            block = {name: rows.slice(first, first + len(part)) for name, rows in given.items()}
            for name, gathered in zip(kept, self.generation.read(kept, part), strict=True):
                block[name] = stored_rows(gathered)
            queue.add(block)
            yield from queue.taken(BATCH_BYTES)
            first += len(part)
        yield from queue.taken(BATCH_BYTES, rest=True)

    def delete(self, index: Any) -> None:
        """Delete records; see `RecordStore.delete`."""
        with self._editing_at(index) as positions:
            positions = sorted_unique(positions)
            if len(positions):
                self._commit(lambda generation: generation.commit_delete(positions))

    @contextlib.contextmanager
    def _editing_at(self, index: Any) -> Iterator[Int64]:
        """`editing`, with the positions of an index that refers to the store before the lock was taken."""
        with self.lock:
            positions, check = self._positions(index)
            with self.editing():
                self.check_edits()
                if self.snapshot.gaps is not None:
                    raise ReadOnly(
                        f"chunks of {self.path} were evicted, so its records cannot be edited before rebalance()"
                    )
                check()
                yield positions

    def flush_at(self, index: Any) -> Int64:
        """`flush`; returns the positions of an index that refers to the store before that."""
        with self.lock:
            positions, check = self._positions(index)
            self.flush()
            check()
            return positions

    def _positions(self, index: Any) -> tuple[Int64, Callable[[], None]]:
        """The positions of an index, and a check for later that they are still those of the same records.

        The check raises PositionError.
        """
        generation, before, pending = self.generation, self.snapshot, self.pending.count
        positions = as_positions(index, len(self))

        def check() -> None:
            now = self.snapshot
            includes_pending = int(positions.max(initial=-1)) >= before.length
            # Edits are counted per generation, and a writer with a failing disk may have removed its entry.
            same = self.generation is generation and generation.log.continues(before.entries, before.last_entry)
            has_grown = now.length != before.length + pending
            moved = not same or now.edits != before.edits or (includes_pending and has_grown)
            if len(positions) and moved:
                raise PositionError(
                    f"other processes changed {self.path} since the last refresh, so position {positions[0]} may be "
                    "another record now: find the position again"
                )

        return positions, check

    @contextlib.contextmanager
    def editing(self) -> Iterator[None]:
        """Hold the edit lock, with nothing pending and the log read to its end. Refreshes afterwards.

        Raises:
            NotAStore: the folder has another store now.
        """
        with self.lock, contextlib.ExitStack() as stack:
            if not self._editors:  # a process that takes the lock twice would wait for itself
                self._prepare()
                stack.enter_context(edit_lock(self.path, self.files))
                self.check_in_place()
            self._editors += 1
            try:
                self.flush()
                # Under the log's lock no writer with a failing disk can still remove its entry. The generation stays
                # the same: closing it takes the edit lock.
                with self.generation.log.locked():
                    self.refresh()
                yield
            finally:
                self._editors -= 1
                if not self.generation.is_released:  # by a function of records that closed the store
                    self.refresh()

    def check_edits(self) -> None:
        """Raise Damaged if edits were skipped: positions may be those before them, and later edits are skipped, too."""
        if self.generation.log.lost or self.generation.batches.lost_edits:
            raise Damaged(
                f"edits of {self.path} are damaged and are not applied, nor are later ones. verify(repair=True) makes "
                "a whole store of the others; edit it afterwards"
            )

    def annotate(self, name: str, value: Any) -> Any:
        """Set an entry of the store's metadata unless it is set already; return its value afterwards."""
        encode("metadata", Json(), [{name: value}])
        value = copy.deepcopy(value)
        with self.editing():
            manifest = self.latest(self.generation.manifest)
            if manifest.metadata.get(name) is None:
                manifest = replace(manifest, metadata={**manifest.metadata, name: value})
                write_manifest(self.path, manifest, self.files)
            self.generation.manifest = replace(self.generation.manifest, metadata=manifest.metadata)
            return manifest.metadata[name]


def _of_same_store(path: Path, found: Manifest, known: Manifest) -> Manifest:
    if found.id != known.id:
        raise NotAStore(f"{path} was removed, and has another store now; open it again")
    return found
