"""Reading rows at memory speed, each checked against its checksum the first time this process reads it.

One bit per field and row remembers what was checked, so damage at rest is found and steady reading costs nothing. The
check runs on the gathered copy: what was checked is what the caller gets.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from warmstore.records.address_space import AddressSpace
from warmstore.records.checksums import absent_checksums, matrix_checksums, view_checksums
from warmstore.records.fields import CHECKSUM, SHAPE, Array, Field, Fields, Ragged, field_has_bytes
from warmstore.records.rows import Gathered, Spans
from warmstore.records.snapshot import Batches, Int64, Snapshot

_BIT = np.array([1 << bit for bit in range(8)], np.uint8)


class Gatherer:
    """Gathers committed rows of a store by row number. Safe to call from several threads."""

    def __init__(self, batches: Batches, fields: Fields) -> None:
        self._batches = batches
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

    def gather(self, snapshot: Snapshot, name: str, rows: Int64, which: Int64) -> Gathered:
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
        data = spans = shapes = absent = None
        if plan.data in snapshot.absent or not plan.has_bytes:
            absent = self._checksums(snapshot, plan, rows, which) == _absent(snapshot, rows, which)
        if plan.width is not None:
            data = self._fixed(snapshot, plan.data, rows, which, plan.width)
            if absent is not None:
                data[absent] = 0  # no checksum covers what lies there
        else:
            ahead = fresh is not None and self._batches.scarce
            spans, out = self._varying(snapshot, plan, rows, which, absent, ahead=ahead)
            bad = _either(bad, out)
            if plan.ndim:
                shapes = self._fixed(snapshot, plan.shapes, rows, which, 8 * plan.ndim).view(np.int64)
                if absent is not None:
                    shapes[absent] = 0
        if fresh is not None:
            bad = _either(bad, self._check(snapshot, plan, rows, which, fresh, data, spans, shapes))
        return Gathered(data, spans, shapes, bad, absent)

    def steady(
        self,
        snapshot: Snapshot,
        name: str,
        rows: Int64,
        out: np.ndarray[Any, np.dtype[np.uint8]] | None = None,
        which: Int64 | None = None,
    ) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        """`gather` of a field of fixed width once nothing is left to check: uint8 [n, width]; None when there is.

        The result is `out`, if that is given. `which` may be left out.

        This is what training does all day, so it takes no step it can spare.
        """
        plan = self._plans[name]
        width = plan.width
        if not width or not plan.checked.covers(snapshot) or snapshot.unreadable or plan.data in snapshot.absent:
            return None
        if which is None:
            which = snapshot.batch_of(rows)
        addresses = snapshot.address[plan.data][which] + rows * width
        if snapshot.gaps is not None and len(addresses) and addresses.min() < 0:
            return None
        return self._batches.space.gather(addresses, width, out)

    def read_rows(self, names: Iterable[str], rows: Int64) -> list[Gathered]:
        """Read fields of live committed rows by number; damaged and evicted rows are marked, not raised."""
        snapshot = self.snapshot
        which = snapshot.batch_of(rows)
        found = []
        for name in names:
            data = self.steady(snapshot, name, rows, which=which)
            whole = None if data is None else Gathered(data, None, None, None)
            found.append(whole or self.gather(snapshot, name, rows, which))
        return found

    def _fresh(self, snapshot: Snapshot, plan: "_Plan", rows: Int64, which: Int64) -> Int64 | None:
        """Where in `rows` this process reads a row for the first time, or None."""
        if plan.checked.covers(snapshot):
            return None
        fresh = plan.checked.unset(rows, snapshot)
        if not len(fresh):
            return None
        if self._batches.scarce:
            self._will_need(snapshot, plan, rows[fresh], which[fresh])
        return fresh

    def _will_need(self, snapshot: Snapshot, plan: "_Plan", rows: Int64, which: Int64) -> None:
        space = self._batches.space
        space.will_need(snapshot.address[plan.checksums][which] + rows * 8, 8)
        if plan.width is None:
            space.will_need(snapshot.address[plan.data][which] + rows * 8, 16)
        elif plan.width:
            space.will_need(snapshot.address[plan.data][which] + rows * plan.width, plan.width)

    def _fixed(self, snapshot: Snapshot, slot: int, rows: Int64, which: Int64, width: int) -> Any:
        if not width:
            return np.zeros((len(rows), 0), np.uint8)
        return self._batches.space.gather(snapshot.address[slot][which] + rows * width, width)

    def _checksums(self, snapshot: Snapshot, plan: "_Plan", rows: Int64, which: Int64) -> Any:
        """uint64 [n], as they stand in the file."""
        return self._fixed(snapshot, plan.checksums, rows, which, 8).view(np.uint64)[:, 0]

    def _varying(
        self, snapshot: Snapshot, plan: "_Plan", rows: Int64, which: Int64, absent: Any, *, ahead: bool
    ) -> tuple[Spans, Any]:
        slot, space = plan.data, self._batches.space
        # Offset i and i + 1 lie side by side: one window of 16 bytes holds where a value starts and ends.
        pairs = space.gather(snapshot.address[slot][which] + rows * 8, 16).view(np.int64)
        first, last = pairs[:, 0], pairs[:, 1]
        if absent is not None:  # empty, whatever its offsets say: its checksum does not cover them
            first, last = np.where(absent, 0, first), np.where(absent, 0, last)
        wrong = (first < 0) | (last < first) | (last > snapshot.size[slot + 1][which])
        if wrong.any():
            first, last = np.where(wrong, 0, first), np.where(wrong, 0, last)
        start = snapshot.address[slot + 1][which]
        if ahead:
            space.will_need(start + first, int((last - first).max(initial=0)))
        return Spans(space, start + first, last - first), wrong if wrong.any() else None

    def _check(
        self,
        snapshot: Snapshot,
        plan: "_Plan",
        rows: Int64,
        which: Int64,
        fresh: Int64,
        data: Any,
        spans: Spans | None,
        shapes: Any,
    ) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        seeds = snapshot.seed[which[fresh]]
        if data is not None:
            found = matrix_checksums(data if len(fresh) == len(rows) else data[fresh], seeds)
        else:
            assert spans is not None
            some = Spans(spans.space, spans.starts[fresh], spans.lengths[fresh])
            found = view_checksums(some.views(), None if shapes is None else shapes[fresh], seeds)
        expected = self._checksums(snapshot, plan, rows[fresh], which[fresh])
        good = found == expected
        if plan.data in snapshot.absent or not plan.has_bytes:
            good |= expected == _absent(snapshot, rows[fresh], which[fresh])
        if good.all():
            plan.checked.set(rows[fresh], snapshot.rows)
            return None
        plan.checked.set(rows[fresh[good]], snapshot.rows)
        bad = np.zeros(len(rows), bool)
        bad[fresh[~good]] = True
        return bad


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


def _nothing(space: AddressSpace, plan: "_Plan", count: int) -> Gathered:
    bad = np.ones(count, bool)
    if plan.width is not None:
        return Gathered(np.zeros((count, plan.width), np.uint8), None, None, bad)
    nowhere = np.zeros(count, np.int64)
    shapes = np.zeros((count, plan.ndim), np.int64) if plan.ndim else None
    return Gathered(None, Spans(space, nowhere, nowhere), shapes, bad)


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
    checked: "_Bits"


def _plan(name: str, field: Field, slots: dict[str, int]) -> _Plan:
    has_bytes = field_has_bytes(field)
    width = field.width if isinstance(field, Array) and (field.codec == "raw" or not has_bytes) else None
    ndim = field.ndim if isinstance(field, Ragged) else 0
    return _Plan(
        width, ndim, has_bytes, slots.get(name, -1), slots.get(name + SHAPE, -1), slots[name + CHECKSUM], _Bits()
    )


class _Bits:
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
