"""Rules for batches of varying size: as many consecutive samples of the sampler's order as a budget allows.

A rule computes with lengths and reads no samples. Batches are greedy, so the end of a batch depends only on its start,
and a state needs only a batch boundary.
"""

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from warmstore.loading.first_fit import first_fit
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.samplers.lengths import describe_numbers, lengths_of
from warmstore.loading.validation import MOST_SAMPLES, integer, options_of, set_fields

_MOST_TOKENS = 2**31 - 1  # of a batch or a row: longest * count fits an int64, and a place in a row an int32
_MOST_ROWS = 2**20


class BatchSize(ABC):
    """A rule for the number of samples of a batch, for a `Loader` or `BatchSampler` instead of a batch size.

    lengths: int64 [n], of all samples of the source by position, read-only.
    limit: the most samples of a batch.
    """

    lengths: Int64
    limit: int

    @abstractmethod
    def cut(self, lengths: Int64, final: bool) -> Int64:
        """Cut consecutive samples into batches.

        The cut is Markov: a cut that starts at the end of any batch gives the same following ends, whatever the number
        of samples in a call.

        Args:
            lengths: int64 [m], of the next samples in their order.
            final: no samples follow, so the last batch ends with the last sample.

        Returns:
            The end of each batch, counted in samples: int64 [batches], ascending, from 1 to m. Unless `final`, a last
            batch that may still grow is left out. `limit` or more samples give at least one batch.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Kind and options as JSON values. Rules with equal descriptions cut equal batches."""

    def __eq__(self, other: object) -> bool:
        return self.describe() == other.describe() if isinstance(other, BatchSize) else NotImplemented

    def __hash__(self) -> int:
        return hash(repr(self.describe()))


@final
@dataclass(frozen=True, eq=False)
class TokenBudget(BatchSize):
    """As many consecutive samples as a number of tokens allows.

    A padded batch costs its longest sample, rounded up to `multiple_of`, times the number of samples, as with `Pad`. An
    unpadded batch costs the sum of its lengths, as with "packed". A batch is full where one more sample would cost more
    than `tokens`, or at `limit` samples: `max_samples`, or `tokens` divided by the cost of the shortest sample (at
    least 1).

    1,000,000 samples of 20 to 2,000 tokens are cut into batches of 16,384 in 0.2 s padded, and in 0.1 s unpadded; in
    half of that in blocks of 32,768.

    Args:
        tokens: the most that a batch may cost, below 2**31.
        lengths: [n] integers, none negative: the length of each sample of the source. They are copied.
        padded: whether batches are padded to their longest sample.
        max_samples: the most samples in a batch; None for no bound but the tokens.
        multiple_of: padded lengths are rounded up to a multiple of this, as some attention kernels need.

    Raises:
        ValueError: a sample that alone costs more than `tokens`, with its position and length; an invalid option;
            `multiple_of` without padding.
    """

    tokens: int
    lengths: ArrayLike  # type: ignore[assignment]  # int64 [n] after construction
    _: KW_ONLY
    padded: bool = True
    max_samples: int | None = None
    multiple_of: int = 1
    limit: int = field(init=False, repr=False)
    _described: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tokens = integer("tokens", self.tokens, 1, _MOST_TOKENS)
        multiple_of = integer("multiple_of", self.multiple_of, 1, _MOST_TOKENS)
        most = None if self.max_samples is None else integer("max_samples", self.max_samples, 1, MOST_SAMPLES)
        lengths = lengths_of(self.lengths)
        if not isinstance(self.padded, bool):
            raise ValueError(f"padded must be True or False; got {self.padded!r:.80}")
        if multiple_of != 1 and not self.padded:
            raise ValueError(f"multiple_of={multiple_of} rounds padded lengths; with padded=False nothing is padded")
        costs = _rounded(lengths, multiple_of)
        too_long = np.flatnonzero(costs > tokens)
        if len(too_long):
            first = int(too_long[0])
            rounded = f", {costs[first]:,} in multiples of {multiple_of:,}" if multiple_of > 1 else ""
            raise ValueError(
                f"{len(too_long):,} of {len(lengths):,} samples are longer than tokens={tokens:,}; the first is sample "
                f"{first:,} of length {lengths[first]:,}{rounded}. Raise tokens, or shorten or leave out such samples"
            )
        limit = tokens // max(int(costs.min(initial=tokens)), 1)
        limit = limit if most is None else min(limit, most)
        set_fields(self, tokens=tokens, lengths=lengths, max_samples=most, multiple_of=multiple_of)
        set_fields(self, limit=limit, _described=describe_numbers(lengths))

    def cut(self, lengths: Int64, final: bool) -> Int64:
        """See `BatchSize.cut`. O(m log limit) time, O(m) memory."""
        if self.padded:
            ends = _padded_ends(_rounded(lengths, self.multiple_of), self.tokens, self.limit)
        else:
            sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
            ends = np.searchsorted(sums, sums[:-1] + self.tokens, side="right") - 1
            ends = np.minimum(ends, np.arange(len(lengths)) + self.limit)
        return _chained(ends, self.limit, final)

    def describe(self) -> dict[str, Any]:
        """Kind and options as JSON values; for lengths their number and a BLAKE2b hash."""
        return {"kind": "token_budget", **options_of(self), "lengths": dict(self._described)}

    def __reduce__(self) -> Any:
        return partial(TokenBudget, **options_of(self)), ()


@final
@dataclass(frozen=True, eq=False)
class RowBudget(BatchSize):
    """As many consecutive samples as first-fit packs into `rows` rows of `length` tokens.

    These batches always fit `PackRows(length, rows=rows)`, as both use `first_fit`. A batch ends before the first
    sample that fits into no row, or at `limit` samples: rows * length divided by the shortest length (at least 1).

    1,000,000 samples of 20 to 2,000 tokens are cut into batches of 8 rows of 2,048 in 0.6 s, of 512 rows in 0.8 s.

    Args:
        rows: rows of a batch, at most 2**20.
        length: tokens of a row, below 2**31.
        lengths: [n] integers, none negative: the length of each sample of the source. They are copied.

    Raises:
        ValueError: a sample that is longer than a row, with its position and length; an invalid option.
    """

    rows: int
    length: int
    lengths: ArrayLike  # type: ignore[assignment]  # int64 [n] after construction
    limit: int = field(init=False, repr=False)
    _described: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rows = integer("rows", self.rows, 1, _MOST_ROWS)
        length = integer("length of a row", self.length, 1, _MOST_TOKENS)
        lengths = lengths_of(self.lengths)
        too_long = np.flatnonzero(lengths > length)
        if len(too_long):
            first = int(too_long[0])
            raise ValueError(
                f"{len(too_long):,} of {len(lengths):,} samples are longer than a row of {length:,}; the first is "
                f"sample {first:,} of length {lengths[first]:,}. Make rows longer, or shorten or leave out such samples"
            )
        limit = rows * length // max(int(lengths.min(initial=length)), 1)
        set_fields(self, rows=rows, length=length, lengths=lengths, limit=limit, _described=describe_numbers(lengths))

    def cut(self, lengths: Int64, final: bool) -> Int64:
        """See `BatchSize.cut`. O(m log rows), with a Python loop over the samples."""
        values = lengths.tolist()
        ends, end, most = [], 0, self.limit
        while end < len(values):
            placed = first_fit(values, self.rows, self.length, end, most)
            end += len(placed)
            if end == len(values) and len(placed) < most and not final:
                break
            ends.append(end)
        return np.array(ends, np.int64)

    def describe(self) -> dict[str, Any]:
        """Kind and options as JSON values; for lengths their number and a BLAKE2b hash."""
        return {"kind": "row_budget", **options_of(self), "lengths": dict(self._described)}

    def __reduce__(self) -> Any:
        return partial(RowBudget, **options_of(self)), ()


def _rounded(lengths: Int64, multiple_of: int) -> Int64:
    if multiple_of == 1:
        return lengths
    return (lengths + (multiple_of - 1)) // multiple_of * multiple_of


def _padded_ends(costs: Int64, tokens: int, most: int) -> Int64:
    """For each sample the end of the batch that begins with it: the most samples with longest * count <= tokens,
    int64 [m].

    A part of a batch that fits also fits, so counts are found bit by bit (binary lifting), over a table of the longest
    of 1, 2, 4, ... consecutive samples.
    """
    m = len(costs)
    table = [costs]
    while 2 << len(table) - 1 <= min(most, m):
        half = table[-1]
        width = 1 << len(table) - 1
        table.append(np.maximum(half[:-width], half[width:]))
    ends, longest = np.arange(m), np.zeros(m, np.int64)
    start = np.arange(m)
    for level in reversed(range(len(table))):
        inside = np.minimum(ends, len(table[level]) - 1)
        taller = np.maximum(longest, table[level][inside])
        count = ends - start + (1 << level)
        fits = (ends < len(table[level])) & (count <= most) & (taller * count <= tokens)
        ends[fits] += 1 << level
        longest[fits] = taller[fits]
    return ends


def _chained(ends: Int64, most: int, final: bool) -> Int64:
    """The ends of consecutive batches, given the end of the batch that begins with each sample."""
    m, end_of, end = len(ends), ends.tolist(), 0
    chained = []
    while end < m:
        start, end = end, end_of[end]
        if end == m and end - start < most and not final:
            break
        chained.append(end)
    return np.array(chained, np.int64)
