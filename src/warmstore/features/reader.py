"""Reading a cache's rows: find them by key, believe only those that carry it, and turn them into leaf values."""

import copy
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from warmstore.features.hot import HotTier
from warmstore.features.hot_columns import Values, Varying, decode_words
from warmstore.features.schema import KEY, Schema
from warmstore.features.structure import Leaf, is_array
from warmstore.records.arrays import to_numpy
from warmstore.records.fields import Array, Field, Ragged
from warmstore.records.files import Files
from warmstore.records.gather import Gatherer
from warmstore.records.key_index import KeyIndex
from warmstore.records.keys import Keys
from warmstore.records.rows import Gathered
from warmstore.records.store import RecordStore
from warmstore.records.values import decode, decode_array

Int64 = np.ndarray[Any, np.dtype[np.int64]]
MISSING, DAMAGED = -1, -2  # in place of a row; any row is larger


class Reader:
    """Finds and reads committed rows. Safe to use from several threads."""

    def __init__(self, store: RecordStore, index: KeyIndex, schema: Schema, hot: HotTier | None = None) -> None:
        self._store = store
        self._index = index
        self._hot = hot
        self.schema = schema
        self._names = [KEY, *(schema.field_name(path) for path in schema.fields)]

    def read_all(self, keys: Keys) -> dict[str, Any] | None:
        """The leaves of all keys, or None when any of them is not there as it should be."""
        rows = self._index.lookup_all(keys, self._store.snapshot.rows)
        if rows is None:
            return None
        leaves, good = self._read(keys, rows)
        return self._decoded(leaves) if good is None else None

    def _read(self, keys: Keys, rows: Int64) -> tuple[list[Values], Any]:
        return self.stored(keys, rows) if self._hot is None else self._hot.read(self, keys, rows)

    def stored(self, keys: Keys, rows: Int64) -> tuple[list[Values], Any]:
        """The values by leaf of rows that should carry some keys; and which do and are sound, bool [n], or None."""
        own, *leaves = self._store.read_rows(self._names, rows)
        assert own.data is not None
        good = None
        if own.data.tobytes() != keys.halves.tobytes() or any(one.bad is not None for one in (own, *leaves)):
            good = (own.data.view(np.uint64) == keys.halves).all(axis=1)
            for one in (own, *leaves):
                good &= True if one.bad is None else ~one.bad
        fields = self.schema.fields.values()
        return [_undecoded(field, one) for field, one in zip(fields, leaves, strict=True)], good

    def keys_of(self, rows: Int64) -> Keys:
        """The keys that rows carry, damaged ones too."""
        return _keys_of(self._store, rows)

    @property
    def gatherer(self) -> Gatherer:
        """What reads now."""
        return self._store.session.generation.gatherer

    def _decoded(self, leaves: list[Values]) -> dict[str, Any]:
        return {path: _leaf(field, one) for (path, field), one in zip(self.schema.fields.items(), leaves, strict=True)}

    def find(self, keys: Keys) -> Int64:
        """The row that holds each key, MISSING or DAMAGED: int64 [n]."""
        rows = self._index.lookup(keys)
        some = np.flatnonzero((rows >= 0) & (rows < self._store.snapshot.rows))
        found = np.full(len(keys), MISSING, np.int64)
        if len(some):
            # What the index proposes is believed only where the row itself carries the key.
            (own,) = self._store.read_rows([KEY], rows[some])
            assert own.data is not None
            same = (own.data.view(np.uint64) == keys.halves[some]).all(axis=1)
            found[some] = np.where(same, rows[some], MISSING)
            if own.bad is not None:
                found[some[own.bad]] = DAMAGED
        return found

    def values(self, keys: Keys, rows: Int64) -> tuple[dict[str, Any], Any]:
        """The leaves of rows that carry some keys, arrays or lists; and which are damaged, bool [n] or None."""
        leaves, good = self._read(keys, rows)
        return self._decoded(leaves), None if good is None else ~good


def _undecoded(field: Field, gathered: Gathered) -> Values:
    if gathered.data is not None:
        return gathered.data
    assert gathered.spans is not None
    views, shapes = gathered.spans.views(), gathered.shapes
    if gathered.bad is not None:
        # Damaged bytes are not decoded; a stand-in keeps the places until the caller takes them out.
        stand_in = memoryview(b"" if isinstance(field, Ragged) else b"null")
        views = [stand_in if wrong else view for view, wrong in zip(views, gathered.bad, strict=True)]
        shapes = None if shapes is None else np.where(gathered.bad[:, None], 0, shapes)
    return Varying(views, shapes)


def _leaf(field: Field, values: Values) -> Any:
    if isinstance(field, Array):
        return decode_words(field, values) if isinstance(values, torch.Tensor) else decode_array(field, values)
    decoded = decode(field, values.views, values.shapes)
    # The caller may write to what it gets; the mapped file is read-only.
    return [one.copy() for one in decoded] if isinstance(field, Ragged) else decoded


def open_index(store: RecordStore, files: Files) -> KeyIndex:
    """The key index of a cache's store."""
    manifest = store.manifest
    read_keys = functools.partial(_read_keys, store)
    return KeyIndex(store.path, manifest.id, manifest.generation, read_keys, files, write=store.mode == "a")


def _read_keys(store: RecordStore, first: int, last: int) -> Keys:
    return _keys_of(store, np.arange(first, last, dtype=np.int64))


def _keys_of(store: RecordStore, rows: Int64) -> Keys:
    (gathered,) = store.read_rows([KEY], rows)
    assert gathered.data is not None
    return Keys.of_halves(gathered.data.reshape(-1).view(np.uint64).reshape(-1, 2))


def no_values(schema: Schema) -> dict[str, Any]:
    """The leaves of no rows."""

    def nothing(field: Field) -> Any:
        return decode_array(field, np.zeros((0, field.width), np.uint8)) if isinstance(field, Array) else []

    return {path: nothing(field) for path, field in schema.fields.items()}


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
            known = to_numpy(values[path])
            whole = np.empty((count, *field.shape), known.dtype)
            whole[stored] = known
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
    return values[torch.from_numpy(which).to(values.device) if isinstance(values, torch.Tensor) else which]
