"""The batches that hold the rows of a store: those that were appended, or those that they were merged into.

A merge copies the rows of many small chunks into one: batches of kind `copied`, and a `merged` entry. The entry's list
in `numbers` has the merge level of the rows and the first row of each batch. Row numbers do not change.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from warmstore.errors import Damaged
from warmstore.records.log.log_entries import BATCH, COPIED, KINDS, MERGED, STAGED, UPDATE, Entries
from warmstore.records.log.number_lists import NumberLists, Numbers
from warmstore.storage.array_types import Int64

UInt32 = np.ndarray[Any, np.dtype[np.uint32]]

HAS_ROWS = np.array([kind in (BATCH, UPDATE, STAGED) for kind in KINDS])
"""By kind of entry: whether it is a batch whose rows take the next row numbers."""


@dataclass(frozen=True)
class LiveBatches:
    """Batches in the order of their rows.

    entries: int64 [n], the number of each batch's entry. first_row: int64 [n]. rows: the next free row number.
    merged_away: chunks without live batches. levels: how often the rows of each merged chunk were merged.
    """

    entries: Int64
    first_row: Int64
    rows: int
    merged_away: frozenset[int] = frozenset()
    levels: dict[int, int] = field(default_factory=dict)


def live_batches(entries: Entries, first_row: int, numbers: Numbers | NumberLists) -> LiveBatches:
    """The live batches in entries of a log. `first_row` is the next row number before them.

    Raises:
        Damaged: the list of a merge is damaged in both files.
    """
    kinds = entries["kind"]
    base = np.flatnonzero(HAS_ROWS[kinds])
    counts = entries["rows"][base].astype(np.int64)
    ends = first_row + np.cumsum(counts)
    firsts = ends - counts
    rows = int(ends[-1]) if len(ends) else first_row
    copied, merges = np.flatnonzero(kinds == COPIED), np.flatnonzero(kinds == MERGED)
    if not len(copied):
        return LiveBatches(base, firsts, rows)
    starts, levels = _copied_starts(entries, copied, merges, numbers)
    done = np.flatnonzero(starts >= 0)  # the others are left over from a merge that died
    lows = np.searchsorted(firsts, starts[done]).tolist()
    highs = np.searchsorted(firsts, starts[done] + entries["rows"][copied[done]].astype(np.int64)).tolist()
    owner = np.full(len(base), -1, np.int64)  # the copied batch that holds each batch's rows now
    for batch, low, high in zip(done.tolist(), lows, highs, strict=True):
        owner[low:high] = batch
    alive = np.unique(owner[owner >= 0])
    chosen = np.concatenate((base[owner < 0], copied[alive]))
    firsts = np.concatenate((firsts[owner < 0], starts[alive]))
    order = np.argsort(firsts, kind="stable")
    chunks = entries["chunk"]
    merged_away = _without(chunks[np.concatenate((base, copied))], chunks[chosen])
    return LiveBatches(chosen[order], firsts[order], rows, frozenset(merged_away.tolist()), levels)


def _without(numbers: UInt32, others: UInt32) -> Int64:
    """The distinct chunk numbers in `numbers` that are not in `others`."""
    marks = np.zeros(int(numbers.max(initial=0)) + 1, bool)  # chunk numbers are nearly consecutive
    marks[numbers] = True
    marks[others] = False
    return np.flatnonzero(marks)


def _copied_starts(
    entries: Entries, copied: Int64, merges: Int64, numbers: Numbers | NumberLists
) -> tuple[Int64, dict[int, int]]:
    """The first row of each copied batch, int64 [n], -1 without a committed merge; and the levels of their chunks."""
    starts = np.full(len(copied), -1, np.int64)
    levels: dict[int, int] = {}
    merged = entries[merges]
    befores, batches = np.searchsorted(copied, merges).tolist(), merged["header"].tolist()
    for chunk, before, count, numbers_of in zip(
        merged["chunk"].tolist(), befores, batches, numbers.read(merged), strict=True
    ):
        if numbers_of is None or len(numbers_of) != count + 1:
            raise Damaged(
                f"{numbers.where}: the list of a merge is damaged here and in the copy, so the row numbers of chunk "
                f"{chunk} are unknown; restore one of the two files from a copy"
            )
        levels[chunk] = int(numbers_of[0])
        starts[before - count : before] = numbers_of[1:]
    return starts, levels


def first_chunks(entries: Entries, numbers: Numbers | NumberLists) -> dict[int, frozenset[int]]:
    """For each merged chunk, the chunks to which its rows were originally appended."""
    kinds = entries["kind"]
    base = np.flatnonzero(HAS_ROWS[kinds])
    ends = np.cumsum(entries["rows"][base].astype(np.int64))
    firsts = np.append(0, ends[:-1])
    copied = np.flatnonzero(kinds == COPIED)
    if not len(copied):
        return {}
    starts, _ = _copied_starts(entries, copied, np.flatnonzero(kinds == MERGED), numbers)
    found: dict[int, set[int]] = {}
    for start, entry in zip(starts.tolist(), entries[copied], strict=True):
        inside = (firsts >= start) & (firsts < start + int(entry["rows"])) & (start >= 0)
        found.setdefault(int(entry["chunk"]), set()).update(entries["chunk"][base[inside]].tolist())
    return {chunk: frozenset(chunks) for chunk, chunks in found.items()}
