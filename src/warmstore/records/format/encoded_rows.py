"""The values of one field for some records as bytes, before they are written or after they were read.

`EncodedRows` holds fixed-width values as a byte matrix, and values of varying length as one byte string with offsets.
value_encoding.py converts between bytes and values.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from warmstore.records.format.fields import Array, Field, Ragged
from warmstore.storage.array_types import Bools, Bytes, Int64
from warmstore.storage.memory.address_space import AddressSpace
from warmstore.storage.memory.buffer_pool import LARGE, Allocate, take, together


@dataclass(frozen=True)
class EncodedRows:
    """One field of `count` records.

    data: uint8 [count, width] where `offsets` is None, else uint8 [bytes].
    offsets: int64 [count + 1], or None.
    shapes: int64 [count, ndim] for ragged fields, else None.
    absent: bool [count], records without a value (their bytes are zeros, or there are none); None if all have one.
    """

    count: int
    data: Bytes
    offsets: Int64 | None = None
    shapes: Int64 | None = None
    absent: Bools | None = None

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.data, self.offsets, self.shapes) if part is not None)

    def equals(self, other: "EncodedRows") -> bool:
        """Whether both have the same rows of one field, bit for bit."""
        none = np.zeros(self.count, bool)
        absent, others = (none if rows.absent is None else rows.absent for rows in (self, other))
        pairs = ((self.data, other.data), (self.offsets, other.offsets), (self.shapes, other.shapes), (absent, others))
        return all(
            one is two or (one is not None and two is not None and np.array_equal(one, two)) for one, two in pairs
        )

    def views(self) -> list[memoryview]:
        """One read-only view per row."""
        flat = self.data.reshape(-1).data.toreadonly()
        if self.offsets is None:
            width = self.data.shape[1]
            return (
                [flat[at : at + width] for at in range(0, self.count * width, width)] if width else [flat] * self.count
            )
        edges = self.offsets.tolist()
        return [flat[first:last] for first, last in itertools.pairwise(edges)]

    def slice(self, first: int, last: int) -> "EncodedRows":
        """Rows [first, last), without a copy of the data."""
        shapes = None if self.shapes is None else self.shapes[first:last]
        absent = None if self.absent is None else self.absent[first:last]
        if self.offsets is None:
            return EncodedRows(last - first, self.data[first:last], None, shapes, absent)
        edges = self.offsets[first : last + 1]
        return EncodedRows(last - first, self.data[edges[0] : edges[-1]], edges - edges[0], shapes, absent)


@dataclass(frozen=True)
class ByteRanges:
    """The location of values of varying length in the mapped files.

    starts, lengths: int64 [n], byte addresses in `space`, and bytes.
    """

    space: AddressSpace
    starts: Int64
    lengths: Int64

    def __len__(self) -> int:
        return len(self.starts)

    def views(self) -> list[memoryview]:
        """One read-only view per value. It keeps the mapping alive."""
        return self.space.spans(self.starts, self.lengths)

    def in_memory(self) -> tuple[Bytes, Int64, Int64]:
        """Memory, and the starts and lengths of the values in it. It is the mapping itself, or a copy of the values."""
        if self.space.reads_mapping:
            return self.space.memory, np.ascontiguousarray(self.starts), np.ascontiguousarray(self.lengths)
        copy = self.copied()
        assert copy.offsets is not None
        return copy.data, copy.offsets[:-1], np.diff(copy.offsets)

    def copied(self, allocate: Allocate = take) -> "EncodedRows":
        """The values concatenated, in memory from `allocate`."""
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.lengths, out=offsets[1:])
        data = allocate(int(offsets[-1]))
        self.space.gather_spans(self.starts, self.lengths, data)
        return EncodedRows(len(self), data, offsets)


@dataclass(frozen=True)
class GatheredColumn:
    """Some rows of one field, in the order asked for.

    data: uint8 [n, width] for fields of fixed width, else None.
    spans: the location of the rows of other fields, else None.
    shapes: int64 [n, ndim] for ragged fields.
    bad: bool [n], rows that are damaged or missing; None if there are none.
    absent: bool [n], records without a value; None if all have one.

    Values of a field with a codec are still compressed.
    """

    data: Bytes | None
    spans: ByteRanges | None
    shapes: Int64 | None
    bad: Bools | None
    absent: Bools | None = None


def join(parts: Sequence[EncodedRows]) -> EncodedRows:
    """The rows of several parts of one field, concatenated."""
    if len(parts) == 1:
        return parts[0]
    count = sum(part.count for part in parts)
    shape = (sum(len(part.data) for part in parts), *parts[0].data.shape[1:])
    data = together([part.data for part in parts])
    if data is None:
        data = take(math.prod(shape))
        np.concatenate([part.data for part in parts], out=data.reshape(shape))
    data = data.reshape(shape)
    edges = [part.offsets for part in parts if part.offsets is not None]
    shapes = [part.shapes for part in parts if part.shapes is not None]
    offsets = None
    if edges:
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(np.concatenate([np.diff(edge) for edge in edges]), out=offsets[1:])
    absent = None
    if any(part.absent is not None for part in parts):
        absent = np.concatenate([np.zeros(part.count, bool) if part.absent is None else part.absent for part in parts])
    return EncodedRows(count, data, offsets, np.concatenate(shapes) if shapes else None, absent)


def absent_rows(field: Field, count: int) -> EncodedRows:
    """The rows of records without a value for a field."""
    absent = np.ones(count, bool)
    if isinstance(field, Array):
        return EncodedRows(count, np.zeros((count, field.width), np.uint8), absent=absent)
    shapes = np.zeros((count, field.ndim), np.int64) if isinstance(field, Ragged) else None
    return EncodedRows(count, np.zeros(0, np.uint8), np.zeros(count + 1, np.int64), shapes, absent)


def spread(field: Field, some: EncodedRows, absent: Bools) -> EncodedRows:
    """The rows of n records, of which only some have values.

    Args:
        some: the rows of the records with a value, in order.
        absent: bool [n], the records without a value.
    """
    present = ~absent
    rows = absent_rows(field, len(absent))
    if some.offsets is None:
        rows.data[present] = some.data
        return EncodedRows(len(absent), rows.data, absent=absent)
    lengths = np.zeros(len(absent), np.int64)
    lengths[present] = np.diff(some.offsets)
    if rows.shapes is not None and some.shapes is not None:
        rows.shapes[present] = some.shapes
    return EncodedRows(len(absent), some.data, np.concatenate(([0], np.cumsum(lengths))), rows.shapes, absent)


def packed(views: Sequence[Any], shapes: Int64 | None = None, allocate: Allocate = take) -> EncodedRows:
    """Concatenated bytes-like values, in memory from `allocate`."""
    offsets = np.zeros(len(views) + 1, np.int64)
    np.cumsum([len(view) for view in views], out=offsets[1:])
    total = int(offsets[-1])
    if total < LARGE and allocate is take:
        return EncodedRows(len(views), np.frombuffer(b"".join(views), np.uint8), offsets, shapes)
    data = allocate(total)
    target = data.data
    for first, last, view in zip(offsets[:-1].tolist(), offsets[1:].tolist(), views, strict=True):
        target[first:last] = view
    return EncodedRows(len(views), data, offsets, shapes)


def stored_rows(gathered: GatheredColumn) -> EncodedRows:
    """Gathered rows as they are stored: values of a field with a codec stay compressed."""
    if gathered.data is not None:
        return EncodedRows(len(gathered.data), gathered.data, absent=gathered.absent)
    assert gathered.spans is not None
    return replace(gathered.spans.copied(), shapes=gathered.shapes, absent=gathered.absent)
