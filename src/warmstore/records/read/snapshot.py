"""The committed rows that one process has read from the log: the first row of every batch, and its buffers in memory.

A batch's header holds nothing but its layout, so equal layouts have equal header hashes. Each distinct header is
verified and parsed once, and a store of equal batches opens without reading them. Snapshots only grow. An older one
stays valid beside a newer one: they share arrays, of which the older one reads a shorter prefix.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.ma  # else np.unique imports it in the writer thread, and a process forked meanwhile deadlocks
import pyarrow as pa
import xxhash

from warmstore.errors import Damaged
from warmstore.records.format.checksums import batch_seeds
from warmstore.records.format.fields import ArrowColumn
from warmstore.records.log.commit_log import GenerationClosed
from warmstore.records.log.log_entries import (
    ADOPTED,
    BATCH,
    DELETE,
    DELETED,
    EVICTED,
    KINDS,
    STAGED,
    UPDATE,
    UPDATED,
    Entries,
    last_chunk,
)
from warmstore.records.log.number_lists import Numbers
from warmstore.records.read.batch_layout import Layout, batch_layout
from warmstore.records.read.chunk_files import ChunkFiles
from warmstore.records.read.evicted_ranges import EvictedRanges
from warmstore.records.read.live_batches import HAS_ROWS, live_batches
from warmstore.records.read.position_map import PositionMap, positions_in, trailer_size
from warmstore.storage.array_types import Int64, UInt64
from warmstore.storage.files import Files
from warmstore.storage.memory.address_space import SLOT, AddressSpace

_log = logging.getLogger("warmstore")

# By kind of entry.
_IS_EDIT = np.array([kind in (UPDATE, DELETE, UPDATED, DELETED) for kind in KINDS])
_COUNTS = _IS_EDIT | np.array([kind in (BATCH, STAGED, EVICTED) for kind in KINDS])
_IS_DELETE = np.array([kind in (DELETE, DELETED) for kind in KINDS])
_IN_CHUNK = np.array([kind in (UPDATE, DELETE) for kind in KINDS])  # edits with positions in their chunk

_MOST_LAYOUTS = 1024
"""Layouts of earlier batches that are kept, as later ones often have the same. Batches of values of varying length have
layouts of their own, of half a kilobyte each."""

_UNREADABLE = -(1 << 62)
"""The address of the buffers of a batch that is missing or evicted, or has a damaged header."""


@dataclass(frozen=True)
class Snapshot:
    """An immutable view of the committed rows. Arrays are per batch."""

    rows: int = 0
    entries: int = 0
    last_entry: bytes = b""
    batches: int = 0
    span: int = 0  # rows of every batch but the last, 0 if batches differ
    unreadable: int = 0  # batches that cannot be read
    # By the first buffer of columns in which a record has no value: addresses of validity bits, -1 in batches without.
    absent: Mapping[int, Int64] = field(default_factory=dict)
    first_row: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    # [buffer][batch]: byte address in the address space; for fixed-width columns the one that row 0 of the store had.
    address: tuple[Int64, ...] = ()
    size: tuple[Int64, ...] = ()
    chunk: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    seed: UInt64 = field(default_factory=lambda: np.zeros(0, np.uint64))  # of the checksums of a batch's rows
    order: Int64 | None = None  # the row at each position; None for the identity
    edits: int = 0  # updates and deletes so far
    deletes: int = 0  # deletes so far: they move rows to other positions
    history: str = ""  # a hash of the entries so far that decide records: 32 hex digits
    gaps: EvictedRanges | None = None  # rows of evicted chunks

    @property
    def is_plain(self) -> bool:
        """Whether each position holds the row of the same number."""
        return self.order is None and self.gaps is None

    @property
    def length(self) -> int:
        """The number of positions."""
        if self.order is not None:
            return len(self.order)
        return self.rows if self.gaps is None else self.rows - self.gaps.count

    def rows_at(self, positions: Int64) -> Int64:
        """The row at each position."""
        if self.order is not None:
            return self.order[positions]
        return positions if self.gaps is None else self.gaps.rows_at(positions)

    def positions_below(self, row: int) -> int:
        """The number of positions with rows below `row`. Nothing was edited since the store had `row` rows."""
        if self.order is not None:
            return len(self.order) - (self.rows - row)
        return row if self.gaps is None else self.gaps.below(row)

    def batch_of(self, rows: Int64) -> Int64:
        """The batch that holds each row number."""
        if self.span:
            return rows // self.span
        return np.searchsorted(self.first_row, rows, side="right") - 1


class Batches:
    """Reads log entries into snapshots. Not thread-safe; the snapshots are.

    is_whole: False during `extend`, and for ever once it has raised: edits may have been applied that the snapshot does
    not have, and must not be applied again.
    """

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema,
        columns: list[ArrowColumn],
        seed: int,
        files: Files,
        superseded: Callable[[], bool] = lambda: False,
        gone: Callable[[], frozenset[int]] = frozenset,
        lost: Callable[[], list[int]] | None = None,
    ) -> None:
        """
        Args:
            gone: returns the chunks that have been evicted or merged away.
            lost: returns the damaged entries of the log. If given, damaged edits are skipped instead of raising.
        """
        self.chunks = ChunkFiles(folder, files, superseded, gone)
        self.snapshot = Snapshot()
        self.is_whole = True
        self._folder = folder
        self._schema = schema
        self._seed = seed
        self._superseded = superseded
        self._lost = lost
        self.lost_edits: list[str] = []  # edits that were skipped
        self.numbers = Numbers(folder, files, seed)
        self._history = xxhash.xxh3_128()
        self.last_chunk = -1  # the highest chunk number in the log
        self.evicted: frozenset[int] = frozenset()
        self.merged_away: frozenset[int] = frozenset()
        self.levels: dict[int, int] = {}  # of merged chunks
        self._staged: list[tuple[int, int]] = []  # rows for the next update: first, last
        self._verified: set[int] = set()  # entry numbers of batches that matched their hashes
        self._origins: dict[int, tuple[int, int]] = {}  # of adopted chunks: the seed of their store, their number
        self._layouts: dict[int, Layout] = {}
        self._order: PositionMap | None = None
        self._validity: dict[int, Int64] = {}  # see Snapshot.absent
        self.columns = columns
        # One buffer for a fixed-width column, offsets and data for a varying one.
        self.slots: dict[str, int] = {}
        self._widths: list[int] = []
        for column in columns:
            self.slots[column.name] = len(self._widths)
            self._widths += [column.width] if column.width is not None else [8, 0]
        count = len(self._widths)
        self._table = {name: np.zeros(64, np.int64) for name in ("first_row", "chunk", "seed", "entry")}
        self._address = [np.zeros(64, np.int64) for _ in range(count)]
        self._size = [np.zeros(64, np.int64) for _ in range(count)]

    def extend(self, entries: Entries) -> Snapshot:
        """Read the next log entries, and return the snapshot that includes them.

        Raises:
            GenerationClosed: the files of this generation were removed; the store is in a later one.
            Reload: chunks were evicted by later entries than these.
        """
        old = self.snapshot
        self.is_whole = False
        self.evicted |= frozenset(entries["chunk"][entries["kind"] == EVICTED].tolist())
        self.last_chunk = max(self.last_chunk, last_chunk(entries))
        try:
            live = live_batches(entries, old.rows, self.numbers)
        except Damaged:
            if self._superseded():
                raise GenerationClosed(str(self._folder)) from None
            raise
        self.merged_away |= live.merged_away
        self.levels.update(live.levels)
        added = entries[live.entries]
        batches = old.batches + len(added)
        self._make_room(batches)
        rows = added["rows"].astype(np.int64)
        part = slice(old.batches, batches)
        firsts = live.first_row
        self._table["first_row"][part] = firsts
        self._table["chunk"][part] = added["chunk"]
        self._table["entry"][part] = added["sequence"]
        self._table["seed"][part] = self._seeds(entries, added).view(np.int64)
        chunks = {*added["chunk"].tolist(), *entries["chunk"][_IN_CHUNK[entries["kind"]]].tolist()}
        self.chunks.map(sorted(chunks - self.evicted))
        gone = np.isin(added["chunk"], list(self.evicted))
        unreadable = old.unreadable + self._place(added, part, firsts, gone)
        gaps = old.gaps
        if gone.any():
            gaps = EvictedRanges.of(firsts[gone], firsts[gone] + rows[gone], gaps)
        total = live.rows
        self._history.update(entries["hash"][_COUNTS[entries["kind"]]].tobytes())
        order = self._reorder(old, entries)
        first_row = self._table["first_row"][:batches]
        self.snapshot = Snapshot(
            rows=total,
            entries=old.entries + len(entries),
            last_entry=entries[-1:].tobytes() or old.last_entry,
            batches=batches,
            span=self._span(first_row, total, old),
            unreadable=unreadable,
            absent={slot: addresses[:batches] for slot, addresses in self._validity.items()},
            first_row=first_row,
            chunk=self._table["chunk"][:batches],
            seed=self._table["seed"][:batches].view(np.uint64),
            address=tuple(column[:batches] for column in self._address),
            size=tuple(column[:batches] for column in self._size),
            order=order,
            edits=old.edits + int(_IS_EDIT[entries["kind"]].sum()),
            deletes=old.deletes + int(_IS_DELETE[entries["kind"]].sum()),
            history=self._history.hexdigest(),
            gaps=gaps,
        )
        self.is_whole = True
        return self.snapshot

    def live_entries(self) -> Int64:
        """The entry numbers of live batches, int64 [n]."""
        return self._table["entry"][: self.snapshot.batches]

    def _seeds(self, entries: Entries, added: Entries) -> UInt64:
        """The seeds of batches. An adopted chunk keeps the seeds of the store that it was written for."""
        for entry in entries[entries["kind"] == ADOPTED]:
            self._origins[int(entry["chunk"])] = int(entry["body_hash"]), int(entry["rows"])
        seeds = batch_seeds(self._seed, added["chunk"], added["offset"])
        for chunk in self._origins.keys() & set(added["chunk"].tolist()):
            seed, number = self._origins[chunk]
            of_chunk = added["chunk"] == chunk
            offsets = added["offset"][of_chunk]
            seeds[of_chunk] = batch_seeds(seed, np.full(len(offsets), number), offsets)
        return seeds

    def _reorder(self, old: Snapshot, entries: Entries) -> Int64 | None:
        kinds = entries["kind"]
        if self._order is None and old.order is not None:
            self._order = PositionMap(old.order, old.rows)
        special = np.flatnonzero(_IS_EDIT[kinds] | (kinds == STAGED))
        if self._order is None and not len(special):
            return None
        self._order = order = self._order or PositionMap(None, old.rows)
        counts = np.where(HAS_ROWS[kinds], entries["rows"], 0).astype(np.int64)
        ends = old.rows + np.cumsum(counts)
        lists = self._positions(entries[special])
        row = old.rows
        for at, positions in zip(special.tolist(), lists, strict=True):
            kind, last = int(kinds[at]), int(ends[at])
            first = last - int(counts[at])
            order.append(row, first)
            row = last
            try:
                if kind == STAGED:
                    self._staged.append((first, last))
                elif positions is None:
                    continue
                elif _IS_DELETE[kind]:
                    order.delete(positions)
                elif kind == UPDATE:
                    order.update(positions, np.arange(first, last))
                else:
                    staged = self._staged[len(self._staged) - int(entries["header"][at]) :]
                    order.update(positions, np.concatenate([np.arange(*rows) for rows in staged]))
                    self._staged.clear()
            except (ValueError, IndexError):
                number = int(entries["sequence"][at])
                raise Damaged(
                    f"{self._folder}/log: the edit in entry {number} does not fit the rows before it; restore the "
                    "store from a copy"
                ) from None
        order.append(row, int(ends[-1]) if len(ends) else row)
        return order.publish()

    def _positions(self, entries: Entries) -> list[Int64 | None]:
        """The positions of each edit, int64 [n]; None for other entries, and for skipped edits.

        Raises:
            Damaged: the positions of an edit are missing or damaged.
        """
        kinds = entries["kind"]
        found: list[Int64 | None] = [None] * len(entries)
        in_numbers = np.flatnonzero(_IS_EDIT[kinds] & ~_IN_CHUNK[kinds])
        for at, numbers in zip(in_numbers.tolist(), self.numbers.read(entries[in_numbers]), strict=True):
            found[at] = numbers
        for at in np.flatnonzero(_IN_CHUNK[kinds]).tolist():
            found[at] = self._positions_in_chunk(entries[at])
        lost = [] if self._lost is None else self._lost()
        for at in np.flatnonzero(_IS_EDIT[kinds]).tolist():
            number = int(entries["sequence"][at])
            where = self.chunks.path(int(entries["chunk"][at])) if _IN_CHUNK[kinds[at]] else self.numbers.path
            if self._lost is None and found[at] is None:
                if self._superseded():
                    raise GenerationClosed(str(self._folder))
                raise Damaged(
                    f"{where}: the positions of an edit are missing or damaged, so positions of records are unknown; "
                    "restore the file, or open the store with salvage=True, which skips that edit and later ones"
                )
            if found[at] is None or self.lost_edits or (lost and number > lost[0]):
                found[at] = None
                edit = "delete" if _IS_DELETE[kinds[at]] else "update"
                self.lost_edits.append(f"entry {number} of the log, {edit} of {int(entries['rows'][at]):,} records")
        return found

    def _positions_in_chunk(self, entry: Any) -> Int64 | None:
        chunk, size = int(entry["chunk"]), trailer_size(int(entry["rows"]))
        end = int(entry["offset"]) + int(entry["header"]) + int(entry["body"])
        if end > self.chunks.file_size(chunk):
            return None
        seed = int(batch_seeds(self._seed, [chunk], [entry["offset"]])[0])
        trailer = self.space.read_span(self.chunks.slots[chunk] * self.space.slot + end - size, size)
        return None if trailer is None else positions_in(trailer, seed)

    @staticmethod
    def _span(first_row: Int64, total: int, old: Snapshot) -> int:
        if len(first_row) < 2:
            return max(total, 1)
        # The older batches have equal sizes, except for the one that was the last until now.
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

        def larger(old: Int64, fill: int = 0) -> Int64:
            new = np.full(capacity, fill, np.int64)
            new[: len(old)] = old
            return new

        self._table = {name: larger(column) for name, column in self._table.items()}
        self._address = [larger(column) for column in self._address]
        self._size = [larger(column) for column in self._size]
        self._validity = {slot: larger(addresses, -1) for slot, addresses in self._validity.items()}

    @property
    def space(self) -> AddressSpace:
        """The address space that the chunks are mapped into."""
        return self.chunks.space

    @property
    def adopted(self) -> frozenset[int]:
        """Chunks that were written for another store."""
        return frozenset(self._origins)

    def _place(self, added: Entries, part: slice, firsts: Int64, gone: Any) -> int:
        """Set the buffer addresses of new batches. Returns how many batches cannot be read."""
        # Each number alone first: the sum of larger ones may wrap around.
        fits = (added["offset"] <= SLOT) & (added["header"] <= SLOT) & (added["body"] <= SLOT)
        ends = (added["offset"] + added["header"] + added["body"]).astype(np.int64)
        chunks = added["chunk"].tolist()
        sizes = np.array([self.chunks.file_size(chunk) for chunk in chunks], np.int64)
        readable = fits & (ends <= sizes) & (ends <= SLOT) & ~gone
        kinds, first, which = np.unique(added["header_hash"], return_index=True, return_inverse=True)
        offsets = np.zeros((len(kinds), len(self._widths)), np.int64)
        lengths = np.zeros_like(offsets)
        validity = np.full_like(offsets, -1)
        for number, header_hash in enumerate(kinds.tolist()):
            layout = self._layouts.get(header_hash)
            if layout is None:
                layout = self._parse(added[first[number]]) if readable[first[number]] else None
                if layout is None:  # the batches have equal headers: the first intact one shows the layout
                    layout = next(filter(None, map(self._parse, added[(which == number) & readable])), None)
                if layout is not None:
                    self._layouts[header_hash] = layout
                    if len(self._layouts) > _MOST_LAYOUTS:
                        del self._layouts[next(iter(self._layouts))]
            if layout is None:
                readable &= which != number
            else:
                offsets[number] = layout.offsets
                lengths[number] = layout.sizes
                validity[number] = layout.validity
        slots = np.array([self.chunks.slots.get(chunk, 0) for chunk in chunks], np.int64)
        bodies = slots * self.space.slot + (added["offset"] + added["header"]).astype(np.int64)
        for slot, width in enumerate(self._widths):
            address = bodies + offsets[which, slot] - firsts * width
            self._address[slot][part] = np.where(readable, address, _UNREADABLE)
            self._size[slot][part] = lengths[which, slot]
        for slot in {*self._validity, *np.flatnonzero((validity >= 0).any(axis=0)).tolist()}:
            starts = validity[which, slot]
            if slot not in self._validity:
                self._validity[slot] = np.full(len(self._table["chunk"]), -1, np.int64)
            self._validity[slot][part] = np.where(readable & (starts >= 0), bodies + starts, -1)
        bad = ~readable & ~gone
        if bad.any():
            names = sorted({self.chunks.path(chunk).name for chunk in added["chunk"][bad].tolist()})
            _log.warning("%s: %d batches are missing or damaged in %s", self._folder, bad.sum(), ", ".join(names))
        return int(bad.sum())

    def _parse(self, entry: Any) -> Layout | None:
        """The layout in a batch's header; None if the header is damaged. Unverified bytes never reach pyarrow."""
        header = self.chunks.header(entry)
        if header is None:
            return None
        return batch_layout(header, int(entry["rows"]), int(entry["body"]), self._schema, self.columns)

    def arrow_batches(self, entries: Entries, *, verify: bool) -> Iterator[pa.RecordBatch]:
        """The live batches of entries that `extend` has read, as pyarrow batches over the mapped bytes.

        Args:
            verify: compare each batch with its hash the first time.

        Raises:
            Damaged: a batch is missing or damaged.
        """
        kept = entries[self.live_entries()]
        for entry in kept[~np.isin(kept["chunk"], list(self.evicted))]:
            chunk, start = int(entry["chunk"]), int(entry["offset"])
            header = self.chunks.header(entry)
            length = int(entry["header"]) + int(entry["body"])
            is_whole = header is not None and start + length <= self.chunks.file_size(chunk)
            if is_whole and verify and int(entry["sequence"]) not in self._verified:
                is_whole = self.chunks.body_is_whole(entry)
                self._verified |= {int(entry["sequence"])} if is_whole else set()
            if not is_whole or self._parse(entry) is None:
                raise Damaged(
                    f"{self.chunks.path(chunk)}: the batch at byte {start} is missing or damaged. It changed after "
                    "it was written; restore it from a copy, or save the rest with verify(repair=True)"
                )
            span = self.space.span(self.chunks.slots[chunk] * self.space.slot + start, length)
            if int(entry["header_hash"]) in self.chunks.mended:
                span = memoryview(self.chunks.mended[int(entry["header_hash"])] + span[int(entry["header"]) :])
            yield pa.ipc.read_record_batch(pa.py_buffer(span), self._schema)
