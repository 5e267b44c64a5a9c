"""Rules for batches of a varying number of samples: as many samples, in the order of the sampler, as a budget allows.

A rule is arithmetic over lengths and reads no samples. Batches are greedy, so where the next one ends depends only on
where it begins: a batch boundary is all that a state has to say.
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
from warmstore.loading.validation import MOST_SAMPLES, integer, set_fields

_MOST_TOKENS = 2**31 - 1  # of a batch, or a row: longest * count fits an int64, and places of a row an int32
_MOST_ROWS = 2**20


class BatchSize(ABC):
    """How many samples a batch has, for a `Loader` or `BatchSampler` in place of a number.

    lengths: int64 [n], of all samples of the source by position, read-only.
    limit: the most samples a batch may have.
    """

    lengths: Int64
    limit: int

    @abstractmethod
    def cut(self, lengths: Int64, final: bool) -> Int64:
        """Where batches end that begin with the first of the samples given, one after the other.

        The cut is Markov: cut again from any of these ends on, the samples have the same ends, however many samples a
        call is given.

        Args:
            lengths: int64 [m], of the next samples in their order.
            final: no samples follow: the last batch ends where the samples end.

        Returns:
            int64 [batches], ascending, each from 1 to m: how many of the samples stand before the end of each batch.
            Unless `final`, a last batch that may still grow is left out. Of `limit` samples and more at least one batch
            is cut.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Kind and options as JSON keeps them. Rules of equal descriptions cut equal batches."""

    def __eq__(self, other: object) -> bool:
        return self.describe() == other.describe() if isinstance(other, BatchSize) else NotImplemented

    def __hash__(self) -> int:
        return hash(repr(self.describe()))


@final
@dataclass(frozen=True, eq=False)
class TokenBudget(BatchSize):
    """As many samples in a row as a number of tokens allows.

    Padded, a batch costs its longest sample, rounded up to `multiple_of`, times the number of samples: what `Pad`
    makes. Otherwise it costs the sum of its lengths: what "packed" makes. A batch is full where one more sample would
    cost more than `tokens`, or at `limit` samples: `max_samples`, or `tokens` divided by the shortest sample's cost (by
    1 where that is 0).

    1,000,000 samples of 20 to 2,000 tokens are cut into batches of 16,384 in 0.2 s padded, and in 0.1 s not padded; in
    half of that where they come in blocks of 32,768.

    Args:
        tokens: the most a batch may cost, below 2**31.
        lengths: [n] integers, none negative: the length of each sample of the source. They are copied.
        padded: whether batches are padded to their longest sample.
        max_samples: the most samples in a batch; None for no other bound than the tokens.
        multiple_of: padded lengths are rounded up to a multiple of this, as attention kernels like them.

    Raises:
        ValueError: a sample that costs more than `tokens` alone, with its position and length; another option that
            cannot be; `multiple_of` without padding.
    """

    tokens: int
    lengths: ArrayLike  # type: ignore[assignment]  # int64 [n] once it is made
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
        wrong = np.flatnonzero(costs > tokens)
        if len(wrong):
            first = int(wrong[0])
            rounded = f", {costs[first]:,} in multiples of {multiple_of:,}" if multiple_of > 1 else ""
            raise ValueError(
                f"{len(wrong):,} of {len(lengths):,} samples are longer than tokens={tokens:,}; the first is sample "
                f"{first:,} of length {lengths[first]:,}{rounded}. Raise tokens, or shorten or leave out such samples"
            )
        limit = tokens // max(int(costs.min(initial=tokens)), 1)
        limit = limit if most is None else min(limit, most)
        set_fields(self, tokens=tokens, lengths=lengths, max_samples=most, multiple_of=multiple_of)
        set_fields(self, limit=limit, _described=describe_numbers(lengths))

    def cut(self, lengths: Int64, final: bool) -> Int64:
        """Where batches end, as `BatchSize.cut` says. O(m log limit) time, O(m) memory."""
        if self.padded:
            ends = _padded_ends(_rounded(lengths, self.multiple_of), self.tokens, self.limit)
        else:
            sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
            ends = np.searchsorted(sums, sums[:-1] + self.tokens, side="right") - 1
            ends = np.minimum(ends, np.arange(len(lengths)) + self.limit)
        return _followed(ends, self.limit, final)

    def describe(self) -> dict[str, Any]:
        """Kind and options as JSON keeps them; of the lengths their number and a BLAKE2b hash."""
        return {
            "kind": "token_budget",
            "tokens": self.tokens,
            "lengths": dict(self._described),
            "padded": self.padded,
            "max_samples": self.max_samples,
            "multiple_of": self.multiple_of,
        }

    def __reduce__(self) -> Any:
        make = partial(TokenBudget, padded=self.padded, max_samples=self.max_samples, multiple_of=self.multiple_of)
        return make, (self.tokens, self.lengths)


@final
@dataclass(frozen=True, eq=False)
class RowBudget(BatchSize):
    """As many samples in a row as first-fit packs into `rows` rows of `length` tokens.

    A batch that was cut so always fits `PackRows(length, rows=rows)`: both place samples by `first_fit`. A batch ends
    before the first sample that no row has room for, or at `limit` samples: rows * length divided by the shortest
    sample (by 1 where that is 0).

    1,000,000 samples of 20 to 2,000 tokens are cut into batches of 8 rows of 2,048 in 0.6 s, of 512 rows in 0.8 s.

    Args:
        rows: rows of a batch, at most 2**20.
        length: tokens of a row, below 2**31.
        lengths: [n] integers, none negative: the length of each sample of the source. They are copied.

    Raises:
        ValueError: a sample that is longer than a row, with its position and length; another option that cannot be.
    """

    rows: int
    length: int
    lengths: ArrayLike  # type: ignore[assignment]  # int64 [n] once it is made
    limit: int = field(init=False, repr=False)
    _described: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rows = integer("rows", self.rows, 1, _MOST_ROWS)
        length = integer("length of a row", self.length, 1, _MOST_TOKENS)
        lengths = lengths_of(self.lengths)
        wrong = np.flatnonzero(lengths > length)
        if len(wrong):
            first = int(wrong[0])
            raise ValueError(
                f"{len(wrong):,} of {len(lengths):,} samples are longer than a row of {length:,}; the first is sample "
                f"{first:,} of length {lengths[first]:,}. Make rows longer, or shorten or leave out such samples"
            )
        limit = rows * length // max(int(lengths.min(initial=length)), 1)
        set_fields(self, rows=rows, length=length, lengths=lengths, limit=limit, _described=describe_numbers(lengths))

    def cut(self, lengths: Int64, final: bool) -> Int64:
        """Where batches end, as `BatchSize.cut` says. O(m log rows): first-fit places one sample after the other."""
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
        """Kind and options as JSON keeps them; of the lengths their number and a BLAKE2b hash."""
        return {
            "kind": "row_budget",
            "rows": self.rows,
            "length": self.length,
            "lengths": dict(self._described),
        }

    def __reduce__(self) -> Any:
        return RowBudget, (self.rows, self.length, self.lengths)


def _rounded(lengths: Int64, multiple_of: int) -> Int64:
    if multiple_of == 1:
        return lengths
    return (lengths + (multiple_of - 1)) // multiple_of * multiple_of


def _padded_ends(costs: Int64, tokens: int, most: int) -> Int64:
    """Where a batch ends that begins at each sample: the most samples with longest * count <= tokens, int64 [m].

    What a batch may hold, each part of it may hold, so the count is found bit by bit, over a table of the longest of
    1, 2, 4, ... samples in a row.
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


def _followed(ends: Int64, most: int, final: bool) -> Int64:
    """The ends of batches that begin where the one before ends, from the first sample on."""
    m, following, end = len(ends), ends.tolist(), 0
    found = []
    while end < m:
        start, end = end, following[end]
        if end == m and end - start < most and not final:
            break
        found.append(end)
    return np.array(found, np.int64)
