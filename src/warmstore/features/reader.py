"""Reading a cache's rows: find them by key, believe only those that carry it, and turn them into leaf values."""

import copy
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from warmstore.features.schema import KEY, Schema
from warmstore.features.structure import Leaf, is_array
from warmstore.records.arrays import to_numpy
from warmstore.records.fields import Array, Bytes, Field, Ragged
from warmstore.records.files import Files
from warmstore.records.key_index import KeyIndex
from warmstore.records.keys import Keys
from warmstore.records.rows import Bools, Gathered, Spans
from warmstore.records.store import RecordStore
from warmstore.records.values import decode_array, decode_gathered

Int64 = np.ndarray[Any, np.dtype[np.int64]]
MISSING, DAMAGED = -1, -2  # in place of a row; any row is larger


class Reader:
    """Finds and reads committed rows. Safe to use from several threads."""

    def __init__(self, store: RecordStore, index: KeyIndex, schema: Schema) -> None:
        self._store = store
        self._index = index
        self._schema = schema
        self._names = [KEY, *(schema.field_name(path) for path in schema.fields)]

    def read_all(self, keys: Keys) -> dict[str, Any] | None:
        """The leaves of all keys, or None when any of them is not there as it should be."""
        rows = self._index.lookup(keys)
        gatherer = self._store.gatherer
        # As unsigned numbers negative ones are huge: one pass tells that all are there.
        if not len(rows) or int(rows.view(np.uint64).max()) >= gatherer.snapshot.rows:
            return None
        own, *leaves = self._store.read_rows(self._names, rows, gatherer)
        assert own.data is not None
        if not (own.data.view(np.uint64) == keys.halves).all() or any(one.bad is not None for one in (own, *leaves)):
            return None
        return {path: _leaf(field, one) for (path, field), one in zip(self._schema.fields.items(), leaves, strict=True)}

    def find(self, keys: Keys) -> Int64:
        """The row that holds each key, MISSING or DAMAGED: int64 [n]."""
        rows = self._index.lookup(keys)
        gatherer = self._store.gatherer
        gaps = gatherer.snapshot.gaps
        there = (rows >= 0) & (rows < gatherer.snapshot.rows)
        some = np.flatnonzero(there if gaps is None else there & ~gaps.holds(rows))
        found = np.full(len(keys), MISSING, np.int64)
        if len(some):
            # What the index proposes is believed only where the row itself carries the key.
            (own,) = self._store.read_rows([KEY], rows[some], gatherer)
            assert own.data is not None
            same = (own.data.view(np.uint64) == keys.halves[some]).all(axis=1)
            found[some] = np.where(same, rows[some], MISSING)
            if own.bad is not None:
                found[some[own.bad]] = DAMAGED
        return found

    def values(self, rows: Int64, keys: Keys) -> tuple[dict[str, Any], Bools | None, int]:
        """The leaves of the rows of some keys.

        Returns:
            [n, *shape] arrays or lists; which rows are bad, bool [n] or None; and how many of these are damaged. The
            others went since they were found, with their chunk or their generation.
        """
        gatherer = self._store.gatherer
        there = rows < gatherer.snapshot.rows
        if not there.any():
            return _stand_ins(self._schema, len(rows)), np.ones(len(rows), bool), 0
        own, *leaves = self._store.read_rows(self._names, np.where(there, rows, rows[there][0]), gatherer)
        assert own.data is not None
        damaged = _bad(len(rows), [own, *leaves]) & there
        if gatherer.snapshot.gaps is not None:
            damaged &= ~gatherer.snapshot.gaps.holds(rows)
        bad = _bad(len(rows), [own, *leaves]) | (own.data.view(np.uint64) != keys.halves).any(axis=1)
        leaves = [replace(one, bad=bad) for one in leaves]
        values = {
            path: _leaf(field, one) for (path, field), one in zip(self._schema.fields.items(), leaves, strict=True)
        }
        return values, bad if bad.any() else None, int(damaged.sum())

    def latest(self, rows: Int64) -> Bools:
        """Which of some committed rows are worth keeping: whole, and of a key that no later row has. bool [n]."""
        own, *leaves = self._store.read_rows(self._names, rows)
        return (self.find(_keys_of(own)) <= rows) & ~_bad(len(rows), [own, *leaves])


def _leaf(field: Field, gathered: Gathered) -> Any:
    if gathered.data is not None:
        assert isinstance(field, Array)
        return decode_array(field, gathered.data)
    assert gathered.spans is not None
    if gathered.bad is not None:
        return _expanded(field, gathered, ~gathered.bad)
    decoded = decode_gathered(field, gathered)
    # The caller may write to what it gets; the mapped file is read-only.
    if isinstance(field, Ragged):
        return [one.copy() for one in decoded]
    return [bytes(one) for one in decoded] if isinstance(field, Bytes) else decoded


def _expanded(field: Field, gathered: Gathered, good: Bools) -> Any:
    """A leaf whose bad rows are not decoded; stand-ins keep their places until the caller takes them out."""
    assert gathered.spans is not None
    spans = Spans(gathered.spans.space, gathered.spans.starts[good], gathered.spans.lengths[good])
    shapes = None if gathered.shapes is None else gathered.shapes[good]
    values = _leaf(field, Gathered(None, spans, shapes, None))
    if isinstance(field, Array):
        whole = np.zeros((len(good), *field.shape), field.numpy)
        whole[good] = values
        return whole
    left = iter(values)
    return [next(left) if there else None for there in good.tolist()]


def open_index(store: RecordStore, files: Files, *, largest: int | None = None) -> KeyIndex:
    """The key index of a cache's store."""
    manifest, writing = store.manifest, store.session.writing
    return KeyIndex(
        store.path,
        manifest.id,
        manifest.generation,
        functools.partial(_read_keys, store),
        files,
        write=store.mode == "a",
        room=writing.room,
        largest=largest,
    )


def _read_keys(store: RecordStore, first: int, last: int) -> tuple[Keys, Int64]:
    gatherer = store.gatherer
    gaps, rows = gatherer.snapshot.gaps, np.arange(first, last, dtype=np.int64)
    if gaps is not None:
        rows = rows[~gaps.holds(rows)]
    (gathered,) = store.read_rows([KEY], rows, gatherer)
    return _keys_of(gathered), rows


def _keys_of(gathered: Gathered) -> Keys:
    assert gathered.data is not None
    return Keys.of_halves(gathered.data.reshape(-1).view(np.uint64).reshape(-1, 2))


def _bad(count: int, columns: Sequence[Gathered]) -> Bools:
    """Which rows are bad in any column."""
    bad = np.zeros(count, bool)
    for one in columns:
        if one.bad is not None:
            bad |= one.bad
    return bad


def no_values(schema: Schema) -> dict[str, Any]:
    """The leaves of no rows."""

    def nothing(field: Field) -> Any:
        return decode_array(field, np.zeros((0, field.width), np.uint8)) if isinstance(field, Array) else []

    return {path: nothing(field) for path, field in schema.fields.items()}


def _stand_ins(schema: Schema, count: int) -> dict[str, Any]:
    """Leaves that nobody looks at."""
    return {
        path: np.zeros((count, *field.shape), field.numpy) if isinstance(field, Array) else [None] * count
        for path, field in schema.fields.items()
    }


def merge(
    schema: Schema,
    values: dict[str, Any],
    stored: Int64,
    late: Sequence[tuple[int, Sequence[Leaf], int]],
    count: int,
) -> dict[str, Any]:
    """`count` samples, of which those at `stored` come from `values` and the late ones each from a row of some leaves.

    Args:
        late: for each such sample its place in the result, the leaves that hold it, and its row in them.
    """
    merged: dict[str, Any] = {}
    for number, (path, field) in enumerate(schema.fields.items()):
        fresh = [(place, leaves[number].values[row]) for place, leaves, row in late]
        if isinstance(field, Array):
            whole = np.empty((count, *field.shape), values[path].dtype)
            whole[stored] = values[path]
            for place, value in fresh:
                whole[place] = to_numpy(value)
            merged[path] = whole
            continue
        listed: list[Any] = [None] * count
        for place, value in zip(stored.tolist(), values[path], strict=True):
            listed[place] = value
        for place, value in fresh:
            listed[place] = to_numpy(value).copy() if is_array(value) else copy.deepcopy(value)
        merged[path] = listed
    return merged


def select(values: Any, which: Any) -> Any:
    """The values of some rows: `which` is bool [n]."""
    if isinstance(values, list):
        return [value for value, wanted in zip(values, which.tolist(), strict=True) if wanted]
    return values[which]
