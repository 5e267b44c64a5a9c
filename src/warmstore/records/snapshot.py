"""What one process knows to be committed: for every batch its first row and where each Arrow buffer lies in memory.

A batch's header says nothing but its layout, so equal layouts have equal header hashes: each distinct header is
verified and parsed once, and a store of equal batches opens without reading them. Snapshots only ever grow; an older
one stays valid beside a newer one, since they share arrays of which it reads a shorter prefix.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.ma  # np.unique would, in the writer thread; a process forked meanwhile waits for that for ever
import psutil
import pyarrow as pa
import xxhash

from warmstore.errors import Damaged
from warmstore.records.address_space import SLOT, AddressSpace
from warmstore.records.checksums import batch_seeds
from warmstore.records.edits import Order, positions_in, trailer_size
from warmstore.records.fields import Column
from warmstore.records.files import Files
from warmstore.records.gaps import Gaps
from warmstore.records.log import ADOPTED, BATCH, DELETE, EVICTED, KINDS, UPDATE, Entries, GenerationClosed

_log = logging.getLogger("warmstore")

Int64 = np.ndarray[Any, np.dtype[np.int64]]
UInt64 = np.ndarray[Any, np.dtype[np.uint64]]
# By kind of entry.
_HAS_ROWS = np.array([kind in (BATCH, UPDATE) for kind in KINDS])
_IS_EDIT = np.array([kind in (UPDATE, DELETE) for kind in KINDS])
_IN_CHUNKS = _HAS_ROWS | _IS_EDIT

_UNREADABLE = -(1 << 62)
"""The address of every buffer of a batch whose bytes are missing or evicted, or whose header is damaged."""


class ChunkEvicted(Exception):
    """A chunk's file has gone, and the log says by now that it was evicted: read the log anew."""


@dataclass(frozen=True)
class Layout:
    """Where the buffers of a batch lie in its body: byte offsets and sizes, in the order of `Batches.slots`."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    absent: frozenset[int]  # buffers of columns in which a record has no value


@dataclass(frozen=True)
class Snapshot:
    """An immutable view of the committed rows. Arrays are per batch."""

    rows: int = 0
    entries: int = 0
    last_entry: bytes = b""
    batches: int = 0
    span: int = 0  # rows per batch where all but the last have as many, else 0
    unreadable: int = 0  # batches that cannot be read
    absent: frozenset[int] = frozenset()  # buffers of columns in which some record has no value
    first_row: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    # [buffer][batch]: byte address in the address space; for fixed-width columns that of row 0 of the whole store.
    address: tuple[Int64, ...] = ()
    size: tuple[Int64, ...] = ()
    chunk: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    seed: UInt64 = field(default_factory=lambda: np.zeros(0, np.uint64))  # of the checksums of a batch's rows
    order: Int64 | None = None  # the row at each position; None while that is the identity
    edits: int = 0  # updates and deletes so far
    deletes: int = 0  # those of them that moved rows to other positions
    gaps: Gaps | None = None  # rows of evicted chunks

    @property
    def length(self) -> int:
        """Positions there are."""
        if self.order is not None:
            return len(self.order)
        return self.rows if self.gaps is None else self.rows - self.gaps.count

    def rows_at(self, positions: Int64) -> Int64:
        """The row that stands at each position."""
        if self.order is not None:
            return self.order[positions]
        return positions if self.gaps is None else self.gaps.rows_at(positions)

    def positions_below(self, row: int) -> int:
        """How many positions hold rows of the first `row` ones, where nothing was edited since those were all."""
        if self.order is not None:
            return len(self.order) - (self.rows - row)
        return row if self.gaps is None else self.gaps.below(row)

    def batch_of(self, rows: Int64) -> Int64:
        """The batch that holds each row number."""
        if self.span:
            return rows // self.span
        return np.searchsorted(self.first_row, rows, side="right") - 1


class Batches:
    """Reads log entries into snapshots. Not thread-safe; the snapshots are."""

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema,
        columns: list[Column],
        seed: int,
        files: Files,
        superseded: Callable[[], bool] = lambda: False,
        evicted: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        self.space = AddressSpace(files, pages=files.pages(folder))
        self.snapshot = Snapshot()
        self._folder = folder
        self._schema = schema
        self._seed = seed
        self._files = files
        self._superseded = superseded
        self._evicted_by_now = evicted
        self.evicted: frozenset[int] = frozenset()
        self._origins: dict[int, tuple[int, int]] = {}  # of adopted chunks: the seed of their store, their number there
        self._slots: dict[int, int] = {}  # by chunk: dense, as numbers of evicted ones are not
        self._layouts: dict[int, Layout] = {}
        self._file_sizes: dict[int, int] = {}
        self._order: Order | None = None
        self._scarce = False
        self._weighed = 0
        self._absent: frozenset[int] = frozenset()
        self.columns = columns
        # One buffer for a fixed-width column, offsets and data for a varying one.
        self.slots: dict[str, int] = {}
        self._widths: list[int] = []
        for column in columns:
            self.slots[column.name] = len(self._widths)
            self._widths += [column.width] if column.width is not None else [8, 0]
        count = len(self._widths)
        self._table = {name: np.zeros(64, np.int64) for name in ("first_row", "chunk", "seed")}
        self._address = [np.zeros(64, np.int64) for _ in range(count)]
        self._size = [np.zeros(64, np.int64) for _ in range(count)]

    def extend(self, entries: Entries) -> Snapshot:
        """Take in the next log entries and return the snapshot that includes them.

        Raises:
            GenerationClosed: chunks went with their generation, since the store is in a later one.
            ChunkEvicted: chunks were evicted by entries that are not among these.
        """
        old = self.snapshot
        self.evicted |= frozenset(entries["chunk"][entries["kind"] == EVICTED].tolist())
        added = entries[_HAS_ROWS[entries["kind"]]]
        batches = old.batches + len(added)
        self._make_room(batches)
        rows = added["rows"].astype(np.int64)
        part = slice(old.batches, batches)
        firsts = old.rows + np.concatenate(([0], np.cumsum(rows)[:-1])) if len(rows) else rows
        self._table["first_row"][part] = firsts
        self._table["chunk"][part] = added["chunk"]
        self._table["seed"][part] = self._seeds(entries, added).view(np.int64)
        chunks = set(entries["chunk"][_IN_CHUNKS[entries["kind"]]].tolist())
        self._map_chunks(sorted(chunks - self.evicted))
        gone = np.isin(added["chunk"], list(self.evicted))
        unreadable = old.unreadable + self._place(added, part, firsts, gone)
        gaps = old.gaps
        if gone.any():
            gaps = Gaps.of(firsts[gone], firsts[gone] + rows[gone], gaps)
        total = old.rows + int(rows.sum())
        order = self._reorder(old, entries)
        first_row = self._table["first_row"][:batches]
        self.snapshot = Snapshot(
            rows=total,
            entries=old.entries + len(entries),
            last_entry=entries[-1:].tobytes() or old.last_entry,
            batches=batches,
            span=self._span(first_row, total, old),
            unreadable=unreadable,
            absent=self._absent,
            first_row=first_row,
            chunk=self._table["chunk"][:batches],
            seed=self._table["seed"][:batches].view(np.uint64),
            address=tuple(column[:batches] for column in self._address),
            size=tuple(column[:batches] for column in self._size),
            order=order,
            edits=old.edits + int(_IS_EDIT[entries["kind"]].sum()),
            deletes=old.deletes + int((entries["kind"] == DELETE).sum()),
            gaps=gaps,
        )
        return self.snapshot

    def _seeds(self, entries: Entries, added: Entries) -> UInt64:
        """Of the checksums of batches. A chunk that was adopted keeps those of the store it was written for."""
        for entry in entries[entries["kind"] == ADOPTED]:
            self._origins[int(entry["chunk"])] = int(entry["body_hash"]), int(entry["rows"])
        seeds = batch_seeds(self._seed, added["chunk"], added["offset"])
        for chunk in self._origins.keys() & set(added["chunk"].tolist()):
            seed, number = self._origins[chunk]
            theirs = added["chunk"] == chunk
            offsets = added["offset"][theirs]
            seeds[theirs] = batch_seeds(seed, np.full(len(offsets), number), offsets)
        return seeds

    def _reorder(self, old: Snapshot, entries: Entries) -> Int64 | None:
        kinds = entries["kind"]
        if self._order is None and old.order is not None:
            self._order = Order(old.order, old.rows)
        if self._order is None and not _IS_EDIT[kinds].any():
            return None
        order = self._order or Order(None, old.rows)
        self._order = None  # until all of it went well
        row = old.rows
        for entry, kind, count in zip(entries, kinds.tolist(), entries["rows"].tolist(), strict=True):
            if kind == BATCH:
                order.append(row, row + count)
            elif kind == UPDATE:
                order.update(self._positions(entry), row)
            elif kind == DELETE:
                order.delete(self._positions(entry))
            if kind in (BATCH, UPDATE):
                row += count
        self._order = order
        return order.publish()

    def _positions(self, entry: Any) -> Int64:
        chunk, size = int(entry["chunk"]), trailer_size(int(entry["rows"]))
        end = int(entry["offset"]) + int(entry["header"]) + int(entry["body"])
        found = None
        if end <= self._file_sizes.get(chunk, 0):
            seed = int(batch_seeds(self._seed, [chunk], [entry["offset"]])[0])
            found = positions_in(self.space.span(self._slots[chunk] * SLOT + end - size, size), seed)
        if found is None:
            raise Damaged(
                f"{self.chunk_path(chunk)}: the positions of an edit are missing or damaged, and with them where every "
                "record stands; restore the file from a copy"
            )
        return found

    @staticmethod
    def _span(first_row: Int64, total: int, old: Snapshot) -> int:
        if len(first_row) < 2:
            return max(total, 1)
        # The batches seen before are equal already, but for the one that was the last and no longer is.
        span = int(first_row[1])
        if old.batches > 1 and old.span != span:
            return 0
        fresh = first_row[max(old.batches - 1, 0) :]
        equal = bool((np.diff(fresh) == span).all()) and total - int(first_row[-1]) <= span
        return span if equal else 0

    def _make_room(self, batches: int) -> None:
        capacity = len(self._table["chunk"])
        if batches <= capacity:
            return
        capacity = max(2 * capacity, batches)

        def larger(old: Int64) -> Int64:
            new = np.zeros(capacity, np.int64)
            new[: len(old)] = old
            return new

        self._table = {name: larger(column) for name, column in self._table.items()}
        self._address = [larger(column) for column in self._address]
        self._size = [larger(column) for column in self._size]

    def _map_chunks(self, chunks: list[int]) -> None:
        for chunk in chunks:
            self._slots.setdefault(chunk, len(self._slots))
        space = self.space
        if len(self._slots) > space.slots:
            space = space.grown(len(self._slots))
            chunks = sorted({*self._file_sizes, *chunks})
        if space.pages is not None:
            for chunk in chunks:
                space.pages.place(chunk)  # makes the file of one that comes from a remote
        for chunk in chunks:
            try:
                descriptor = self._files.open(self.chunk_path(chunk))
            except FileNotFoundError:
                if self._superseded():
                    raise GenerationClosed(str(self._folder)) from None
                if chunk in self._evicted_by_now():
                    raise ChunkEvicted(str(self.chunk_path(chunk))) from None
                self._file_sizes[chunk] = 0
                continue
            try:
                self._file_sizes[chunk] = self._files.size(descriptor)
                if self._slots[chunk] not in space:
                    space.map(self._slots[chunk], descriptor, chunk)
            finally:
                self._files.close(descriptor)
        self.space = space  # with everything in it: other threads may be gathering
        taken = sum(self._file_sizes.values())
        if taken > 2 * self._weighed:  # asking the system costs as much as reading a batch
            self._weighed = taken
            self._scarce = 2 * taken > psutil.virtual_memory().available

    @property
    def scarce(self) -> bool:
        """Whether the chunks are too large to expect them in memory, so that reading around a row is a waste."""
        return self._scarce

    def chunk_path(self, chunk: int) -> Path:
        return self._folder / f"{chunk:06d}.arrow"

    def _place(self, added: Entries, part: slice, firsts: Int64, gone: Any) -> int:
        """Fill in the buffer addresses of new batches; return how many of them cannot be read."""
        ends = (added["offset"] + added["header"] + added["body"]).astype(np.int64)
        chunks = added["chunk"].tolist()
        sizes = np.array([self._file_sizes.get(chunk, 0) for chunk in chunks], np.int64)
        readable = (ends <= sizes) & (ends <= SLOT) & ~gone
        kinds, which = np.unique(added["header_hash"], return_inverse=True)
        offsets = np.zeros((len(kinds), len(self._widths)), np.int64)
        lengths = np.zeros_like(offsets)
        for number, header_hash in enumerate(kinds.tolist()):
            layout = self._layouts.get(header_hash)
            if layout is None:
                for at in np.flatnonzero((which == number) & readable).tolist():
                    layout = self._parse(added[at])
                    if layout is not None:
                        self._layouts[header_hash] = layout
                        break
            if layout is None:
                readable &= which != number
            else:
                offsets[number] = layout.offsets
                self._absent |= layout.absent
                lengths[number] = layout.sizes
        slots = np.array([self._slots.get(chunk, 0) for chunk in chunks], np.int64)
        bodies = slots * SLOT + (added["offset"] + added["header"]).astype(np.int64)
        for slot, width in enumerate(self._widths):
            address = bodies + offsets[which, slot] - firsts * width
            self._address[slot][part] = np.where(readable, address, _UNREADABLE)
            self._size[slot][part] = lengths[which, slot]
        bad = ~readable & ~gone
        if bad.any():
            names = sorted({self.chunk_path(chunk).name for chunk in added["chunk"][bad].tolist()})
            _log.warning("%s: %d batches are missing or damaged in %s", self._folder, bad.sum(), ", ".join(names))
        return int(bad.sum())

    def _parse(self, entry: Any) -> Layout | None:
        """The layout in a batch's header, or None when that is damaged. Unverified bytes never reach pyarrow."""
        start = self._slots[int(entry["chunk"])] * SLOT + int(entry["offset"])
        header, body = int(entry["header"]), int(entry["body"])
        if xxhash.xxh3_64_intdigest(self.space.span(start, header)) != int(entry["header_hash"]):
            return None
        # pyarrow looks at the header alone, and what is not here yet of the body stays where it is.
        with self.space.held(np.array([start]), header):
            whole = pa.py_buffer(self.space.view[start : start + header + body])
            batch = pa.ipc.read_record_batch(whole, self._schema)
        if batch.num_rows != int(entry["rows"]):
            return None
        base = self.space.address + start + header
        offsets: list[int] = []
        sizes: list[int] = []
        absent = set()
        for array, column in zip(batch.columns, self.columns, strict=True):
            valid, *rest = array.buffers()
            if valid is not None:
                absent.add(len(offsets))
            # The last buffers are the values; a list's values have a validity of their own before them, always empty.
            for buffer in rest[-1:] if column.width is not None else rest[-2:]:
                offsets.append(buffer.address - base if buffer is not None and buffer.size else 0)
                sizes.append(buffer.size if buffer is not None else 0)
        if any(not 0 <= offset <= offset + size <= body for offset, size in zip(offsets, sizes, strict=True)):
            return None
        return Layout(tuple(offsets), tuple(sizes), frozenset(absent))

    def arrow_batches(self, entries: Entries) -> Iterator[pa.RecordBatch]:
        """The batches of log entries that were taken in, as pyarrow sees them, over the mapped bytes.

        Raises:
            Damaged: a batch is missing or its header is damaged.
        """
        kept = _HAS_ROWS[entries["kind"]] & ~np.isin(entries["chunk"], list(self.evicted))
        for entry in entries[kept]:
            chunk, start = int(entry["chunk"]), int(entry["offset"])
            length = int(entry["header"]) + int(entry["body"])
            if start + length > self._file_sizes[chunk] or self._parse(entry) is None:
                raise Damaged(
                    f"{self.chunk_path(chunk)}: the batch at byte {start} is missing or its header is damaged"
                )
            span = self.space.span(self._slots[chunk] * SLOT + start, length)
            yield pa.ipc.read_record_batch(pa.py_buffer(span), self._schema)
