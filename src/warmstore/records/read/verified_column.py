"""VerifiedColumn: the fast path of a gather, for a field of fixed width whose rows were all checked."""

from typing import Any

import numpy as np

from warmstore._native import floor, threads_for
from warmstore.records.format.fields import Array
from warmstore.records.read.column_plan import ColumnPlan
from warmstore.records.read.snapshot import Snapshot
from warmstore.storage.array_types import Int64
from warmstore.storage.memory.buffer_pool import LARGE, take

Values = np.ndarray[Any, Any]


class VerifiedColumn:
    """A field of fixed width of a snapshot whose rows were all checked. Reading rows is one call of the native gather.

    Training reads through this class most of the time, so it has few lines: after a pause a line of Python costs ten
    times as much as in a loop.

    bases: addresses of the field in each batch. place: the arguments of the native gather that all columns share: the
    first rows of batches, the span, and the number of rows.
    """

    __slots__ = ("_dtype", "_shape", "bases", "memory", "name", "place", "snapshot", "width")

    def __init__(self, snapshot: Snapshot, memory: Any, plan: ColumnPlan, name: str, field: Array) -> None:
        self.snapshot, self.memory, self.bases = snapshot, memory, snapshot.address[plan.data]
        self.place = snapshot.first_row, snapshot.span, snapshot.rows
        self.name, self.width = name, field.width
        self._dtype, self._shape = field.numpy, field.shape

    def read(self, rows: Int64) -> Values | None:
        """The values of rows, [n, *shape]; None if a row is outside the snapshot.

        Args:
            rows: int64 [n], contiguous.
        """
        values = self.room(len(rows))
        return values if self.read_into(rows, values) else None

    def read_into(self, rows: Int64, out: Values) -> bool:
        """Copy rows into contiguous memory of their size. False, without a copy, if a row is outside the snapshot."""
        threads = threads_for(len(rows) * self.width)
        return bool(floor.gather_rows(self.memory, self.bases, *self.place, rows, self.width, out, threads))

    def room(self, count: int) -> Values:
        """Uninitialised memory for values, [count, *shape]."""
        if count * self.width < LARGE:
            return np.empty((count, *self._shape), self._dtype)
        return take(count * self.width).view(self._dtype).reshape(count, *self._shape)
