"""Packing: several values of varying length to a row, in rows of one fixed length.

Shapes are static as with padding, and little room is wasted. Segments and positions tell the samples of a row apart, as
block-diagonal attention needs.
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
        "values": [rows, length, ...], the values' dtype, `pad` where padded.
        "segments": int32 [rows, length], 1, 2, ... by sample within the row, 0 where padded.
        "positions": int32 [rows, length], the place within the sample, 0 where padded.
        "samples": int32 [rows, length], the number of the sample within the batch, -1 where padded.
    Fields whose values have equal lengths have equal layouts. Empty and absent values are in no row. Batches that
    `RowBudget(rows, length, lengths)` cuts fit into `rows` rows.

    Args:
        length: of each row, below 2**31.
        rows: rows of every batch, at most 2**20, so that all batches have one shape; None for as many as needed.
        pad: the value of padding, converted to the values' dtype.

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


def padding(shape: tuple[int, ...], value: Any, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array of padding in which values are set: of their dtype, and a masked one if they are masked."""
    padded = np.full(shape, value, values.dtype)
    return np.ma.MaskedArray(padded) if isinstance(values, np.ma.MaskedArray) else padded


def pack_rows(values: np.ndarray[Any, Any], offsets: Int64, way: PackRows, name: str) -> dict[str, Any]:
    """Concatenated values as rows.

    Args:
        values: [total length, ...].
        offsets: int64 [n + 1], where each value begins.
        name: of the field, for errors.

    Raises:
        SchemaMismatch: a value longer than a row, or values that do not fit into `way.rows`.
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
    # The place of each token, counted through all rows.
    sample = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(len(sample)) - offsets[sample]
    places = (row * length + begin)[sample] + position
    packed = padding((rows * length, *values.shape[1:]), way.pad, values)
    packed[places] = values
    return {
        "values": packed.reshape(rows, length, *values.shape[1:]),
        "segments": _spread(segment[sample], places, rows, length, 0),
        "positions": _spread(position, places, rows, length, 0),
        "samples": _spread(sample, places, rows, length, -1),
    }


def _within_rows(row: Int64, lengths: Int64) -> tuple[Int64, Int64]:
    """For each sample its number in its row, from 1 on without empty samples, and its first place in the row."""
    order = np.argsort(row, kind="stable")
    row_start = np.searchsorted(row[order], row[order])  # index in `order` of the first sample of the same row
    segment, begin = np.empty_like(row), np.empty_like(row)
    for counts, result in (((lengths > 0).astype(np.int64), segment), (lengths, begin)):
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts[order])))
        result[order] = before[:-1] - before[row_start]
    return segment + 1, begin


def _spread(values: Int64, places: Int64, rows: int, length: int, empty: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    spread = np.full(rows * length, empty, np.int32)
    spread[places] = values
    return spread.reshape(rows, length)
