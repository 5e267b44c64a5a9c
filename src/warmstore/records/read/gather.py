"""Gatherer: reads rows at memory speed, and checks each against its checksum the first time this process reads it.

The first read of a row goes to the file, since reading a mapping beyond the end of a file raises SIGBUS. The bytes that
were read are checked and returned. Later reads copy from the mapping without a check, or from the file where memory
cannot hold the store.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np

from warmstore.records.format.checksums import absent_checksums, matrix_checksums, packed_checksums, span_checksums
from warmstore.records.format.encoded_rows import ByteRanges, GatheredColumn
from warmstore.records.format.fields import Array, Fields
from warmstore.records.read.column_plan import ColumnPlan, plan_of
from warmstore.records.read.index_arguments import sorted_unique
from warmstore.records.read.snapshot import Batches, Snapshot
from warmstore.records.read.verified_column import VerifiedColumn
from warmstore.storage.array_types import Bools, Int64, UInt64
from warmstore.storage.memory.address_space import AddressSpace

_WIDE = 1 << 15
"""Bytes of rows that are first read from the mapping: mapping the pages of each takes a call of the system."""

_MOST_ROWS = 1 << 22
"""The most rows of a block."""


class Gatherer:
    """Gathers committed rows of a store by row number. Safe to call from several threads."""

    def __init__(self, batches: Batches, fields: Fields) -> None:
        self.batches = batches
        self._fields = fields
        self._columns: dict[str, VerifiedColumn] = {}
        self._mapped: dict[int, int] = {}  # by buffer: batches whose pages were mapped
        self._together: tuple[Collection[str], Snapshot, Any, tuple[VerifiedColumn, ...]] | None = None
        self._plans = {name: plan_of(name, field, batches.slots) for name, field in fields.items()}
        gaps = batches.snapshot.gaps
        if gaps is not None:  # evicted rows have no bytes to check
            for plan in self._plans.values():
                for first, last in zip(gaps.first.tolist(), gaps.last.tolist(), strict=True):
                    plan.checked.set_run(first, last)

    @property
    def snapshot(self) -> Snapshot:
        """The committed rows that this process has read from the log."""
        return self.batches.snapshot

    @property
    def space(self) -> AddressSpace:
        """The address space that the chunks are mapped into."""
        return self.batches.space

    def gather(self, snapshot: Snapshot, name: str, rows: Int64, which: Int64) -> GatheredColumn:
        """Read one field of some rows.

        Args:
            rows: int64 [n], row numbers below `snapshot.rows`; only live ones where there were edits. Rows of evicted
                chunks are marked as bad.
            which: int64 [n], the batch of each row, `snapshot.batch_of(rows)`.
        """
        plan = self._plans[name]
        bad = None
        self.batches.chunks.weigh()
        if snapshot.unreadable or snapshot.gaps is not None:
            rows, which, bad = _readable(snapshot, plan, rows, which)
            if rows is None:
                return _all_bad(self.batches.space, plan, len(which))
        fresh = self._fresh(snapshot, plan, rows, which)
        if fresh is None:
            return _with_bad(self._read(snapshot, plan, rows, which), bad)
        wide = self._checked_in_place(snapshot, plan, rows, which, fresh)
        if wide is not None:
            return _with_bad(wide, bad)
        checked = self._read(snapshot, plan, rows[fresh], which[fresh], check=True)
        if len(fresh) < len(rows):
            rest = np.ones(len(rows), bool)
            rest[fresh] = False
            checked = _interleaved(
                fresh, checked, np.flatnonzero(rest), self._read(snapshot, plan, rows[rest], which[rest])
            )
        return _with_bad(checked, bad)

    def _checked_in_place(
        self, snapshot: Snapshot, plan: ColumnPlan, rows: Int64, which: Int64, fresh: Int64
    ) -> GatheredColumn | None:
        """Read rows as `gather` does, all from the mapping, and check the copies of the fresh ones.

        Copying from mapped pages is several times as fast as reading a file.

        Args:
            fresh: the indices into `rows` of those to check.

        Returns:
            None for narrow rows, and for rows that are not in the page cache.
        """
        width, space = plan.width or 0, self.batches.space
        if width < _WIDE or plan.data in snapshot.absent:
            return None
        addresses = snapshot.address[plan.data][which] + rows * width
        sums, missing = space.read_rows(snapshot.address[plan.checksums][which[fresh]] + rows[fresh] * 8, 8)
        if missing is not None or not space.maps(addresses[fresh], width):
            return None
        data = space.gather(addresses, width)
        lengths = np.full(len(fresh), width)
        found = span_checksums(data.reshape(-1), fresh * width, lengths, snapshot.seed[which[fresh]])
        good = found == sums.view(np.uint64)[:, 0]
        plan.checked.set(rows[fresh[good]], snapshot.rows)
        bad = None
        if not good.all():
            bad = np.zeros(len(rows), bool)
            bad[fresh[~good]] = True
        return GatheredColumn(data, None, None, bad)

    def _read(
        self, snapshot: Snapshot, plan: ColumnPlan, rows: Int64, which: Int64, *, check: bool = False
    ) -> GatheredColumn:
        """Read one field of some rows from the mapping, or with `check` from the files, and compare their checksums."""
        source = _Source(self.batches.space, check)
        data: Any = None
        spans = shapes = absent = None
        sums: UInt64 | None = None
        sums_at = snapshot.address[plan.checksums][which] + rows * 8
        if check and plan.width:
            row_at = snapshot.address[plan.data][which] + rows * plan.width
            (first, data), source.missing = self.batches.space.read_columns((sums_at, row_at), (8, plan.width))
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
                data[absent] = 0  # no checksum covers these bytes
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
                good = (good | absent) & ~self._contradicts(snapshot, plan, rows, which, absent)
            bad = _either(source.missing, None if good.all() else ~good)
            plan.checked.set(rows if bad is None else rows[~bad], snapshot.rows)
        return GatheredColumn(data, spans, shapes, bad, absent)

    def _contradicts(self, snapshot: Snapshot, plan: ColumnPlan, rows: Int64, which: Int64, absent: Bools) -> Bools:
        """Where the validity bits of Arrow say otherwise than the checksums, bool [n].

        Fields of a record have equal checksums where they have no value, so one that came from another field makes a
        value absent. The field's own bit tells.

        Args:
            absent: bool [n], the rows whose checksums mark them as absent.
        """
        null = np.zeros(len(rows), bool)
        if not plan.has_bytes:  # no column of values, so no bits
            return null
        starts, numbers = snapshot.absent[plan.data][which], rows - snapshot.first_row[which]
        some = np.flatnonzero(starts >= 0)  # in other batches all records have a value
        bits, _ = self.batches.space.read_rows(starts[some] + (numbers[some] >> 3), 1)
        null[some] = bits[:, 0] >> (numbers[some] & 7) & 1 == 0
        differs: Bools = null != absent
        return differs

    def column(self, name: str) -> VerifiedColumn | None:
        """A field of fixed width of the current snapshot if all its rows were checked; else None."""
        snapshot = self.batches.snapshot
        known = self._columns.get(name)
        space = self.batches.space
        if known is not None and known.snapshot is snapshot and known.memory is space.memory:
            return known
        plan = self._plans.get(name)
        self.batches.chunks.weigh()
        if plan is None or not plan.width or not plan.is_steady(snapshot) or not space.reads_mapping:
            return None
        self._map_pages(plan, snapshot)
        known = self._columns[name] = VerifiedColumn(
            snapshot, space.memory, plan, name, cast(Array, self._fields[name])
        )
        return known

    def _map_pages(self, plan: ColumnPlan, snapshot: Snapshot) -> None:
        """Map a field's pages into this process. All rows were read from the files, so they are in the page cache.

        800 MB take 20 ms. Page faults during the second epoch would take twenty times as long. Pages of wide rows were
        mapped when the rows were checked.
        """
        if self.batches.chunks.scarce or not plan.width or plan.width >= _WIDE:
            return
        first, space = self._mapped.get(plan.data, 0), self.batches.space
        self._mapped[plan.data] = max(snapshot.batches - 1, 0)  # the last one may grow
        starts = snapshot.first_row[first : snapshot.batches]
        ends = np.append(starts[1:], snapshot.rows)
        bases = snapshot.address[plan.data][first : snapshot.batches]
        for start, length in zip(
            (bases + starts * plan.width).tolist(), ((ends - starts) * plan.width).tolist(), strict=True
        ):
            if start >= 0:
                space.will_read(start, length)

    def columns(self, names: Collection[str]) -> tuple[VerifiedColumn, ...] | None:
        """`column` of several fields, all of one snapshot; None if one of them is None, or without names.

        Args:
            names: must not be changed afterwards.
        """
        known, snapshot = self._together, self.batches.snapshot
        if (
            known is not None
            and (known[0] is names or known[0] == names)
            and known[1] is snapshot
            and known[2] is self.batches.space.memory
        ):
            return known[3]
        columns = tuple(column for column in map(self.column, names) if column is not None)
        if not columns or len(columns) < len(names) or any(column.snapshot is not snapshot for column in columns):
            return None
        self._together = names, snapshot, columns[0].memory, columns
        return columns

    def values(self, names: Collection[str], positions: Int64) -> dict[str, Any] | None:
        """Values of records by position, if every field has a `column`; else None.

        Args:
            positions: int64 [n], contiguous. If one is negative or outside the store, the result is None.
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

    def stored_bytes(self, name: str, rows: Int64) -> Int64:
        """Bytes of the stored values of a field, int64 [n], found without reading the values.

        0 for rows that are damaged or evicted.
        """
        plan, snapshot = self._plans[name], self.snapshot
        if plan.width is not None:
            return np.full(len(rows), plan.width, np.int64)
        which = snapshot.batch_of(rows)
        here, which_here, bad = _readable(snapshot, plan, rows, which)
        if here is None:
            return np.zeros(len(rows), np.int64)
        lengths = self._spans(snapshot, plan, here, which_here, None, _Source(self.batches.space, True)).lengths
        return lengths if bad is None else np.where(bad, 0, lengths)

    def blocks(
        self, names: Collection[str], positions: range | Int64, about: int, most_rows: int = _MOST_ROWS
    ) -> Iterator[Int64]:
        """Cut positions into blocks, int64 [n], whose stored values memory can hold: of `about` bytes.

        A block that is more than one position takes at most four times as much. Rows take no more than the batches that
        hold them, which the snapshot knows. Only where that is too much the sizes of single values are read.
        """
        snapshot, plans = self.snapshot, [self._plans[name] for name in names]
        varying = [name for name, plan in zip(names, plans, strict=True) if plan.width is None]
        width = sum(16 + 8 * plan.ndim + (plan.width or 0) for plan in plans)
        values = sum((snapshot.size[self._plans[name].data + 1] for name in varying), np.zeros(snapshot.batches))
        step = min(max(int(about / (width + values.sum() / max(snapshot.length, 1) + 1)), 1), most_rows)
        for start in range(0, len(positions), step):
            part = positions[start : start + step]
            if isinstance(part, range):
                part = np.arange(part.start, part.stop)
            rows = snapshot.rows_at(part)
            distinct = sorted_unique(rows)
            touched = sorted_unique(snapshot.batch_of(distinct))
            if len(distinct) == len(rows) and width * len(rows) + values[touched].sum() <= 4 * about:
                yield part
                continue
            ends = np.cumsum(width + sum((self.stored_bytes(name, rows) for name in varying), np.zeros(len(rows))))
            first, before = 0, 0.0
            while first < len(part):
                last = max(int(np.searchsorted(ends, before + about, side="right")), first + 1)
                yield part[first:last]
                first, before = last, ends[last - 1]

    def _fresh(self, snapshot: Snapshot, plan: ColumnPlan, rows: Int64, which: Int64) -> Int64 | None:
        """The indices into `rows` of rows that this process reads for the first time; None without any."""
        if plan.checked.covers(snapshot):
            return None
        fresh = plan.checked.unset(rows, snapshot)
        if not len(fresh):
            return None
        if self.batches.chunks.scarce:
            self._will_need(snapshot, plan, rows[fresh], which[fresh])
        return fresh

    def _will_need(self, snapshot: Snapshot, plan: ColumnPlan, rows: Int64, which: Int64) -> None:
        space = self.batches.space
        space.will_need(snapshot.address[plan.checksums][which] + rows * 8, 8)
        if plan.width is None:
            space.will_need(snapshot.address[plan.data][which] + rows * 8, 16)
        elif plan.width:
            space.will_need(snapshot.address[plan.data][which] + rows * plan.width, plan.width)

    def _spans(
        self, snapshot: Snapshot, plan: ColumnPlan, rows: Int64, which: Int64, absent: Any, source: "_Source"
    ) -> ByteRanges:
        slot, space = plan.data, self.batches.space
        # Offsets i and i + 1 are adjacent: one window of 16 bytes holds the start and the end of a value.
        pairs = source.rows(snapshot.address[slot][which] + rows * 8, 16).view(np.int64)
        first, last = pairs[:, 0], pairs[:, 1]
        if absent is not None:  # empty: the checksum of an absent value does not cover its offsets
            first, last = np.where(absent, 0, first), np.where(absent, 0, last)
        wrong = (first < 0) | (last < first) | (last > snapshot.size[slot + 1][which])
        if wrong.any():
            source.missing = _either(source.missing, wrong)
            first, last = np.where(wrong, 0, first), np.where(wrong, 0, last)
        start = snapshot.address[slot + 1][which]
        if source.check and self.batches.chunks.scarce:
            space.will_need(start + first, int((last - first).max(initial=0)))
        return ByteRanges(space, start + first, last - first)


class _Source:
    """Reads rows from the mapping, or with `check` from the files.

    missing: bool [n], the rows that the files do not have; None if they have all.
    """

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
        """The bytes of spans, concatenated: uint8."""
        found, missing = self._space.read_packed(spans.starts, spans.lengths)
        self.missing = _either(self.missing, missing)
        return found


def _interleaved(indices: Int64, some: GatheredColumn, other_indices: Int64, others: GatheredColumn) -> GatheredColumn:
    """Two sets of rows as one, given the indices of either in the result."""
    count = len(indices) + len(other_indices)

    def joined(part: Any, other: Any, default: Any = None) -> Any:
        if part is None and other is None:
            return None
        known = part if part is not None else other
        whole = np.empty((count, *known.shape[1:]), known.dtype)
        whole[indices] = default if part is None else part
        whole[other_indices] = default if other is None else other
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
    """uint64 [n]: the checksums that mark rows without a value."""
    return absent_checksums(rows - snapshot.first_row[which], snapshot.seed[which])


def _readable(snapshot: Snapshot, plan: ColumnPlan, rows: Int64, which: Int64) -> Any:
    """Replace rows of unreadable batches by a readable row, so that the gather stays in mapped bytes, and mark them."""
    bad = snapshot.address[plan.checksums][which] + rows * 8 < 0
    if not bad.any():
        return rows, which, None
    if bad.all():
        return None, which, bad
    good = int(np.argmin(bad))
    return np.where(bad, rows[good], rows), np.where(bad, which[good], which), bad


def _all_bad(space: AddressSpace, plan: ColumnPlan, count: int) -> GatheredColumn:
    bad = np.ones(count, bool)
    if plan.width is not None:
        return GatheredColumn(np.zeros((count, plan.width), np.uint8), None, None, bad)
    zeros = np.zeros(count, np.int64)
    shapes = np.zeros((count, plan.ndim), np.int64) if plan.ndim else None
    return GatheredColumn(None, ByteRanges(space, zeros, zeros), shapes, bad)


def _either(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return second if first is None else first
    return first | second
