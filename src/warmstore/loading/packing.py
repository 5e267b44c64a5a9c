"""Packing: values that vary in length, several to a row, in rows of one fixed length.

Static shapes as with padding, and little room wasted. What says where one sample ends and the next begins within a row
comes along: attention that keeps samples apart needs it.
"""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from warmstore.errors import SchemaMismatch
from warmstore.loading.first_fit import first_fit
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.validation import integer, set_fields

_MOST_LENGTH = 2**31 - 1  # places of a row are int32
_MOST_ROWS = 2**20


@final
@dataclass(frozen=True)
class PackRows:
    """Pack values along their first dimension into rows of a fixed length, first-fit in the order of the batch.

    A field becomes a dict of four arrays:
        "values": [rows, length, ...], the values' dtype, `pad` where no value is.
        "segments": int32 [rows, length], 1, 2, ... by sample within the row, 0 where padded.
        "positions": int32 [rows, length], the place within the sample, 0 where padded.
        "samples": int32 [rows, length], the number of the sample within the batch, -1 where padded.
    Fields whose values have equal lengths have equal layouts. Empty and absent values are in no row. Batches that
    `RowBudget(rows, length, lengths)` cuts fit into `rows` rows.

    Args:
        length: of each row, below 2**31.
        rows: exactly so many rows, at most 2**20, so that all batches have one shape; None takes as many as the values
            need.
        pad: what fills up, converted to the values' dtype.

    Raises:
        ValueError: a length or number of rows that is no integer above zero.
    """

    length: int
    rows: int | None = None
    pad: Any = 0

    def __post_init__(self) -> None:
        set_fields(self, length=integer("length of PackRows", self.length, 1, _MOST_LENGTH))
        if self.rows is not None:
            set_fields(self, rows=integer("rows of PackRows", self.rows, 1, _MOST_ROWS))


def pack_rows(values: np.ndarray[Any, Any], offsets: Int64, way: PackRows, name: str) -> dict[str, Any]:
    """Values one after the other as rows.

    Args:
        values: [total length, ...].
        offsets: int64 [n + 1], where each value begins.
        name: of the field, for errors.

    Raises:
        SchemaMismatch: a value longer than a row, or values that do not fit into the rows there are.
    """
    what, lengths, length = name or "the batch", np.diff(offsets), way.length
    longest = int(lengths.argmax()) if len(lengths) else 0
    if len(lengths) and lengths[longest] > length:
        raise SchemaMismatch(
            f"value {longest:,} of {what} has length {lengths[longest]:,}, more than the {length:,} of a row"
        )
    placed = first_fit(lengths.tolist(), way.rows or max(len(lengths), 1), length)
    if len(placed) < len(lengths):
        raise SchemaMismatch(
            f"{len(lengths):,} values of {what}, {len(values):,} long together, do not fit into {way.rows:,} rows of "
            f"{length:,}: no row has room for value {len(placed):,}, of length {lengths[len(placed)]:,}. Batches of "
            f"ws.RowBudget({way.rows}, {length}, lengths) fit"
        )
    row = np.array(placed, np.int64)
    rows = way.rows or int(row[lengths > 0].max(initial=-1)) + 1
    segment, begin = _within_rows(row, lengths)
    # Where each token goes, counted through all rows.
    sample = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(len(sample)) - offsets[sample]
    goes_to = (row * length + begin)[sample] + position
    packed = np.full((rows * length, *values.shape[1:]), way.pad, values.dtype)
    packed[goes_to] = values
    return {
        "values": packed.reshape(rows, length, *values.shape[1:]),
        "segments": _spread(segment[sample], goes_to, rows, length, 0),
        "positions": _spread(position, goes_to, rows, length, 0),
        "samples": _spread(sample, goes_to, rows, length, -1),
    }


def _within_rows(row: Int64, lengths: Int64) -> tuple[Int64, Int64]:
    """Of each sample its number in its row, from 1 on and without the empty ones, and the place where it begins."""
    order = np.argsort(row, kind="stable")
    first = np.searchsorted(row[order], row[order])  # of the row, in that order
    segment, begin = np.empty_like(row), np.empty_like(row)
    for counted, found in (((lengths > 0).astype(np.int64), segment), (lengths, begin)):
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(counted[order])))
        found[order] = before[:-1] - before[first]
    return segment + 1, begin


def _spread(values: Int64, goes_to: Int64, rows: int, length: int, empty: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    found = np.full(rows * length, empty, np.int32)
    found[goes_to] = values
    return found.reshape(rows, length)
