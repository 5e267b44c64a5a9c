"""Reading rows at memory speed, each checked against its checksum the first time this process reads it.

One bit per field and row remembers what was checked, so damage at rest is found and steady reading costs nothing. The
first read goes past the mapping, where a file that was cut short is no SIGBUS, and the check runs on what came: what
was checked is what the caller gets.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from warmstore._native import floor, threads_for
from warmstore.records.format.checksums import UInt64, absent_checksums, matrix_checksums, packed_checksums
from warmstore.records.format.encoded_rows import ByteRanges, GatheredColumn
from warmstore.records.format.fields import CHECKSUM, SHAPE, Array, Field, Fields, Ragged, field_has_bytes
from warmstore.records.read.snapshot import Batches, Int64, Snapshot
from warmstore.storage.memory.address_space import AddressSpace
from warmstore.storage.memory.buffer_pool import LARGE, take

Values = np.ndarray[Any, Any]
_BIT = np.array([1 << bit for bit in range(8)], np.uint8)


class Gatherer:
    """Gathers committed rows of a store by row number. Safe to call from several threads."""

    def __init__(self, batches: Batches, fields: Fields) -> None:
        self._batches = batches
        self._fields = fields
        self._columns: dict[str, VerifiedColumn] = {}
        self._mapped: dict[int, int] = {}  # by buffer: batches whose pages were mapped
        self._together: tuple[Collection[str], Snapshot, Any, tuple[VerifiedColumn, ...]] | None = None
        self._plans = {name: _plan(name, field, batches.slots) for name, field in fields.items()}
        gaps = batches.snapshot.gaps
        if gaps is not None:  # there is nothing to check in them
            for plan in self._plans.values():
                for first, last in zip(gaps.first.tolist(), gaps.last.tolist(), strict=True):
                    plan.checked.set_run(first, last)

    @property
    def snapshot(self) -> Snapshot:
        """The rows that are known to be committed."""
        return self._batches.snapshot

    @property
    def space(self) -> AddressSpace:
        """Where the chunks are mapped."""
        return self._batches.space

    def gather(self, snapshot: Snapshot, name: str, rows: Int64, which: Int64) -> GatheredColumn:
        """Read one field of some rows.

        Args:
            rows: int64 [n], row numbers below `snapshot.rows`, of live rows where there were edits. Those of evicted
                chunks come back as bad.
            which: int64 [n], the batch of each, `snapshot.batch_of(rows)`.
        """
        plan = self._plans[name]
        bad = None
        if snapshot.unreadable or snapshot.gaps is not None:
            rows, which, bad = _readable(snapshot, plan, rows, which)
            if rows is None:
                return _nothing(self._batches.space, plan, len(which))
        fresh = self._fresh(snapshot, plan, rows, which)
        if fresh is None:
            return _with_bad(self._read(snapshot, plan, rows, which), bad)
        checked = self._read(snapshot, plan, rows[fresh], which[fresh], check=True)
        if len(fresh) < len(rows):
            rest = np.ones(len(rows), bool)
            rest[fresh] = False
            checked = _interleaved(
                fresh, checked, np.flatnonzero(rest), self._read(snapshot, plan, rows[rest], which[rest])
            )
        return _with_bad(checked, bad)

    def _read(
        self, snapshot: Snapshot, plan: "_Plan", rows: Int64, which: Int64, *, check: bool = False
    ) -> GatheredColumn:
        """Read one field of some rows: from the mapping, or past it, comparing them with their checksums."""
        source = _Source(self._batches.space, check)
        data: Any = None
        spans = shapes = absent = None
        sums: UInt64 | None = None
        sums_at = snapshot.address[plan.checksums][which] + rows * 8
        if check and plan.width:
            row_at = snapshot.address[plan.data][which] + rows * plan.width
            (first, data), source.missing = self._batches.space.read_columns((sums_at, row_at), (8, plan.width))
            sums = first.view(np.uint64)[:, 0]
        elif check or plan.data in snapshot.absent or not plan.has_bytes:
            sums = source.rows(sums_at, 8).view(np.uint64)[:, 0]
        if plan.data in snapshot.absent or not plan.has_bytes:
            absent = sums == _absent(snapshot, rows, which)
        if plan.width is not None:
            if data is None:
                data = source.rows(
                    snapshot.address[plan.data][which] + rows * plan.width if plan.width else rows, plan.width
                )
            if absent is not None:
                data[absent] = 0  # no checksum covers what lies there
        else:
            spans = self._spans(snapshot, plan, rows, which, absent, source)
            if plan.ndim:
                width = 8 * plan.ndim
                shapes = source.rows(snapshot.address[plan.shapes][which] + rows * width, width).view(np.int64)
                if absent is not None:
                    shapes[absent] = 0
        bad = source.missing
        if check:
            assert sums is not None
            seeds = snapshot.seed[which]
            if spans is None:
                found = matrix_checksums(data, seeds)
            else:
                found = packed_checksums(source.packed(spans), spans.lengths, shapes, seeds)
            good = found == sums
            if absent is not None:
                good |= absent
            bad = _either(source.missing, None if good.all() else ~good)
            plan.checked.set(rows if bad is None else rows[~bad], snapshot.rows)
        return GatheredColumn(data, spans, shapes, bad, absent)

    def column(self, name: str) -> "VerifiedColumn | None":
        """A field of fixed width of the present snapshot once nothing is left to check; None while there is."""
        snapshot = self._batches.snapshot
        known = self._columns.get(name)
        space = self._batches.space
        if known is not None and known.snapshot is snapshot and known.memory is space.memory:
            return known
        plan = self._plans.get(name)
        if plan is None or not plan.width or not plan.is_steady(snapshot) or not space.is_all_here:
            return None
        self._map_pages(plan, snapshot)
        known = self._columns[name] = VerifiedColumn(
            snapshot, space.memory, plan, name, cast(Array, self._fields[name])
        )
        return known

    def _map_pages(self, plan: "_Plan", snapshot: Snapshot) -> None:
        """Have a field's pages in this process's page table: all rows were read past the mapping, and are in memory.

        800 MB take 20 ms; the faults that come otherwise, some for each batch of the second epoch, twenty times that.
        """
        if self._batches.chunks.scarce or not plan.width:
            return
        first, space = self._mapped.get(plan.data, 0), self._batches.space
        self._mapped[plan.data] = max(snapshot.batches - 1, 0)  # the last one may grow
        starts = snapshot.first_row[first : snapshot.batches]
        ends = np.append(starts[1:], snapshot.rows)
        bases = snapshot.address[plan.data][first : snapshot.batches]
        for start, length in zip(
            (bases + starts * plan.width).tolist(), ((ends - starts) * plan.width).tolist(), strict=True
        ):
            if start >= 0:
                space.will_read(start, length)

    def columns(self, names: Collection[str]) -> "tuple[VerifiedColumn, ...] | None":
        """`column` of several fields, of one snapshot; None where there is not each of them, or none is named.

        Args:
            names: nothing that changes.
        """
        known, snapshot = self._together, self._batches.snapshot
        if (
            known is not None
            and (known[0] is names or known[0] == names)
            and known[1] is snapshot
            and known[2] is self._batches.space.memory
        ):
            return known[3]
        columns = tuple(column for column in map(self.column, names) if column is not None)
        if not columns or len(columns) < len(names) or any(column.snapshot is not snapshot for column in columns):
            return None
        self._together = names, snapshot, columns[0].memory, columns
        return columns

    def values(self, names: Collection[str], positions: Int64) -> dict[str, Any] | None:
        """Values of records by position where one call of the floor a field gives them; else None.

        Args:
            positions: int64 [n], contiguous; of records that are not there nothing comes, nor of negative ones.
        """
        columns = self.columns(names)
        if columns is None or not columns[0].snapshot.is_plain:
            return None
        values = {}
        for column in columns:
            found = values[column.name] = column.read(positions)
            if found is None:
                return None
        return values

    def read_rows(self, names: Iterable[str], rows: Int64) -> list[GatheredColumn]:
        """Read fields of live committed rows by number; damaged and evicted rows are marked, not raised."""
        snapshot = self.snapshot
        found = []
        for name in names:
            column = self.column(name)
            data = None
            if column is not None and column.snapshot is snapshot:
                data = column.read(np.ascontiguousarray(rows))
            if data is None:
                found.append(self.gather(snapshot, name, rows, snapshot.batch_of(rows)))
            else:
                assert column is not None
                data = data.reshape(-1).view(np.uint8).reshape(len(rows), column.width)
                found.append(GatheredColumn(data, None, None, None))
        return found

    def _fresh(self, snapshot: Snapshot, plan: "_Plan", rows: Int64, which: Int64) -> Int64 | None:
        """Where in `rows` this process reads a row for the first time, or None."""
        if plan.checked.covers(snapshot):
            return None
        fresh = plan.checked.unset(rows, snapshot)
        if not len(fresh):
            return None
        if self._batches.chunks.scarce:
            self._will_need(snapshot, plan, rows[fresh], which[fresh])
        return fresh

    def _will_need(self, snapshot: Snapshot, plan: "_Plan", rows: Int64, which: Int64) -> None:
        space = self._batches.space
        space.will_need(snapshot.address[plan.checksums][which] + rows * 8, 8)
        if plan.width is None:
            space.will_need(snapshot.address[plan.data][which] + rows * 8, 16)
        elif plan.width:
            space.will_need(snapshot.address[plan.data][which] + rows * plan.width, plan.width)

    def _spans(
        self, snapshot: Snapshot, plan: "_Plan", rows: Int64, which: Int64, absent: Any, source: "_Source"
    ) -> ByteRanges:
        slot, space = plan.data, self._batches.space
        # Offset i and i + 1 lie side by side: one window of 16 bytes holds where a value starts and ends.
        pairs = source.rows(snapshot.address[slot][which] + rows * 8, 16).view(np.int64)
        first, last = pairs[:, 0], pairs[:, 1]
        if absent is not None:  # empty, whatever its offsets say: its checksum does not cover them
            first, last = np.where(absent, 0, first), np.where(absent, 0, last)
        wrong = (first < 0) | (last < first) | (last > snapshot.size[slot + 1][which])
        if wrong.any():
            source.missing = _either(source.missing, wrong)
            first, last = np.where(wrong, 0, first), np.where(wrong, 0, last)
        start = snapshot.address[slot + 1][which]
        if source.check and self._batches.chunks.scarce:
            space.will_need(start + first, int((last - first).max(initial=0)))
        return ByteRanges(space, start + first, last - first)


class VerifiedColumn:
    """A field of fixed width, of a snapshot of which nothing is left to check: any rows are one call of the floor.

    This is what training does all day, so it takes no step it can spare: after a pause every line of Python costs ten
    times what it does in a loop.

    bases: of its batches.
    place: what the floor is told of all columns alike: first rows, span, limit.
    """

    __slots__ = ("_dtype", "_shape", "bases", "memory", "name", "place", "snapshot", "width")

    def __init__(self, snapshot: Snapshot, memory: Any, plan: "_Plan", name: str, field: Array) -> None:
        self.snapshot, self.memory, self.bases = snapshot, memory, snapshot.address[plan.data]
        self.place = snapshot.first_row, snapshot.span, snapshot.rows
        self.name, self.width = name, field.width
        self._dtype, self._shape = field.numpy, field.shape

    def read(self, rows: Int64) -> Values | None:
        """Rows by their numbers, [n, *shape]; None where one is not there.

        Args:
            rows: int64 [n], contiguous.
        """
        values = self.room(len(rows))
        return values if self.read_into(rows, values) else None

    def read_into(self, rows: Int64, out: Values) -> bool:
        """Copy rows into contiguous memory of as many bytes; False where one is not there, and nothing is copied."""
        threads = threads_for(len(rows) * self.width)
        return bool(floor.gather_rows(self.memory, self.bases, *self.place, rows, self.width, out, threads))

    def room(self, count: int) -> Values:
        """Values [count, *shape], not initialised."""
        if count * self.width < LARGE:
            return np.empty((count, *self._shape), self._dtype)
        return take(count * self.width).view(self._dtype).reshape(count, *self._shape)


class _Source:
    """Where rows are read from: the mapping, or with `check` the files themselves. `missing`: bool [n], or None."""

    def __init__(self, space: AddressSpace, check: bool) -> None:
        self.check = check
        self.missing: Any = None
        self._space = space

    def rows(self, addresses: Int64, width: int) -> Any:
        """uint8 [n, width]."""
        if not width:
            return np.zeros((len(addresses), 0), np.uint8)
        if not self.check:
            return self._space.gather(addresses, width)
        rows, missing = self._space.read_rows(addresses, width)
        self.missing = _either(self.missing, missing)
        return rows

    def packed(self, spans: ByteRanges) -> Any:
        """The bytes of spans, one after the other: uint8."""
        found, missing = self._space.read_packed(spans.starts, spans.lengths)
        self.missing = _either(self.missing, missing)
        return found


def _interleaved(places: Int64, some: GatheredColumn, other_places: Int64, others: GatheredColumn) -> GatheredColumn:
    """Rows that stand at some places, and others at the other places, as one."""
    count = len(places) + len(other_places)

    def joined(part: Any, other: Any, default: Any = None) -> Any:
        if part is None and other is None:
            return None
        known = part if part is not None else other
        whole = np.empty((count, *known.shape[1:]), known.dtype)
        whole[places] = default if part is None else part
        whole[other_places] = default if other is None else other
        return whole

    spans = None
    if some.spans is not None and others.spans is not None:
        starts = joined(some.spans.starts, others.spans.starts)
        spans = ByteRanges(some.spans.space, starts, joined(some.spans.lengths, others.spans.lengths))
    return GatheredColumn(
        joined(some.data, others.data),
        spans,
        joined(some.shapes, others.shapes),
        joined(some.bad, others.bad, False),
        joined(some.absent, others.absent, False),
    )


def _with_bad(gathered: GatheredColumn, bad: Any) -> GatheredColumn:
    return gathered if bad is None else replace(gathered, bad=_either(gathered.bad, bad))


def _absent(snapshot: Snapshot, rows: Int64, which: Int64) -> Any:
    """uint64 [n]: the checksums that say that rows have no value."""
    return absent_checksums(rows - snapshot.first_row[which], snapshot.seed[which])


def _readable(snapshot: Snapshot, plan: "_Plan", rows: Int64, which: Int64) -> Any:
    """Point rows of unreadable batches at a readable one, so that the gather stays in mapped bytes; mark them."""
    bad = snapshot.address[plan.checksums][which] + rows * 8 < 0
    if not bad.any():
        return rows, which, None
    if bad.all():
        return None, which, bad
    good = int(np.argmin(bad))
    return np.where(bad, rows[good], rows), np.where(bad, which[good], which), bad


def _nothing(space: AddressSpace, plan: "_Plan", count: int) -> GatheredColumn:
    bad = np.ones(count, bool)
    if plan.width is not None:
        return GatheredColumn(np.zeros((count, plan.width), np.uint8), None, None, bad)
    nowhere = np.zeros(count, np.int64)
    shapes = np.zeros((count, plan.ndim), np.int64) if plan.ndim else None
    return GatheredColumn(None, ByteRanges(space, nowhere, nowhere), shapes, bad)


@dataclass(frozen=True)
class _Plan:
    """How one field is read: the buffers it lies in, and which rows were checked.

    width: bytes per row, None where rows vary, as compressed ones do. ndim: of a ragged field, else 0.
    has_bytes: whether there is a data column; rows of no bytes have none.
    """

    width: int | None
    ndim: int
    has_bytes: bool
    data: int
    shapes: int
    checksums: int
    checked: "VerifiedBitmap"

    def is_steady(self, snapshot: Snapshot) -> bool:
        """Whether every row of the snapshot was checked and has its value."""
        return self.checked.covers(snapshot) and not snapshot.unreadable and self.data not in snapshot.absent


def _plan(name: str, field: Field, slots: dict[str, int]) -> _Plan:
    has_bytes = field_has_bytes(field)
    width = field.width if isinstance(field, Array) and (field.codec == "raw" or not has_bytes) else None
    ndim = field.ndim if isinstance(field, Ragged) else 0
    return _Plan(
        width,
        ndim,
        has_bytes,
        slots.get(name, -1),
        slots.get(name + SHAPE, -1),
        slots[name + CHECKSUM],
        VerifiedBitmap(),
    )


class VerifiedBitmap:
    """One bit a row. Threads may lose each other's bits, never invent one: a lost bit costs one more check."""

    def __init__(self) -> None:
        self._bytes = np.zeros(1024, np.uint8)
        # Once all live rows of a snapshot are set: how many rows and edits it had.
        self._complete = (0, 0)
        self._quiet = 0

    def covers(self, snapshot: Snapshot) -> bool:
        """Whether every live row is known to be set."""
        rows, edits = self._complete
        return rows >= snapshot.rows and edits == snapshot.edits

    def unset(self, rows: Int64, snapshot: Snapshot) -> Int64:
        """Where in `rows` the bit is not set."""
        held = self._room(snapshot.rows)
        fresh = np.flatnonzero((held[rows >> 3] & _BIT[rows & 7]) == 0)
        if len(fresh):
            self._quiet = 0
        else:
            # After 1, 2, 4, 8 ... gathers that checked nothing: looking at every bit ends the looking once all are set.
            self._quiet += 1
            if not self._quiet & (self._quiet - 1) and self._all_set(held, snapshot):
                self._complete = (snapshot.rows, snapshot.edits)
                self._quiet = 0
        return fresh

    @staticmethod
    def _all_set(held: np.ndarray[Any, np.dtype[np.uint8]], snapshot: Snapshot) -> bool:
        if snapshot.order is not None:
            return bool((held[snapshot.order >> 3] & _BIT[snapshot.order & 7]).all())
        rest = np.arange(snapshot.rows >> 3 << 3, snapshot.rows)
        return bool((held[: snapshot.rows >> 3] == 255).all() and (held[rest >> 3] & _BIT[rest & 7]).all())

    def set_run(self, first: int, last: int) -> None:
        held = self._room(last)
        whole = slice(-(-first // 8), last // 8)
        if whole.start < whole.stop:
            held[whole] = 255
        rest = np.arange(first, last) if last - first < 16 else np.r_[first : 8 * whole.start, 8 * whole.stop : last]
        np.bitwise_or.at(held, rest >> 3, _BIT[rest & 7])

    def set(self, rows: Int64, total: int) -> None:
        if len(rows) > 16 and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((rows[1:] > rows[:-1]).all()):
            self._room(total)
            self.set_run(int(rows[0]), int(rows[-1]) + 1)
        else:
            np.bitwise_or.at(self._room(total), rows >> 3, _BIT[rows & 7])

    def _room(self, total: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        held = self._bytes
        if total > 8 * len(held):
            grown = np.zeros(max(2 * len(held), (total >> 3) + 1), np.uint8)
            grown[: len(held)] = held
            self._bytes = held = grown
        return held


def _either(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return one | other
