"""Reading a cache's rows: find them by key, believe only those that carry it, and turn them into leaf values."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from warmstore.features.keyed.row_values import Values, Varying
from warmstore.features.outputs.output_schema import KEY, OutputSchema
from warmstore.features.outputs.output_structure import Leaf, is_array
from warmstore.records.format.array_interop import is_tensor, to_numpy, to_torch, torch_dtype
from warmstore.records.format.codecs import codec_of
from warmstore.records.format.encoded_rows import ByteRanges, GatheredColumn
from warmstore.records.format.fields import Array, Bytes, Field, Ragged
from warmstore.records.format.value_encoding import decode, decode_array, decode_gathered, decompressed
from warmstore.records.index.sample_keys import Keys
from warmstore.records.keyed_store import IndexedStore, bad_rows, keys_of
from warmstore.records.read.gather import Gatherer
from warmstore.storage.array_types import Bools

if TYPE_CHECKING:
    from warmstore.features.keyed.hot_tier import HotTier

Int64 = np.ndarray[Any, np.dtype[np.int64]]


class CacheReader:
    """Finds and reads the committed rows of a cache's store. Safe to use from several threads."""

    def __init__(self, keyed: IndexedStore, schema: OutputSchema, hot: "HotTier | None" = None) -> None:
        self.keyed = keyed
        self.store = keyed.store
        self.schema = schema
        self._hot = hot
        self._names = (*map(schema.field_name, schema.fields), KEY)  # keys last: see `KeyTable.fetch`

    def read_all(self, keys: Keys) -> dict[str, Any] | None:
        """The leaves of all keys, or None when any of them is not there as it should be."""
        if self._hot is None and len(keys):
            fetched = self._fetched(keys)
            if fetched is not None:
                return fetched
        rows = self.keyed.index.lookup_all(keys, self.store.snapshot.rows)
        if rows is None:
            return None
        leaves, good = self._read(keys, rows)
        return self._decoded(leaves) if good is None else None

    def _fetched(self, keys: Keys) -> dict[str, Any] | None:
        """`read_all` in one call of the floor, where all leaves are of fixed width and nothing is left to check."""
        columns = self.store.gatherer.columns(self._names)
        values = None if columns is None else self.keyed.index.fetch(keys, columns)
        return None if values is None else dict(zip(self.schema.fields, values, strict=True))

    def _read(self, keys: Keys, rows: Int64) -> tuple[list[Values], Bools | None]:
        return self.stored(keys, rows) if self._hot is None else self._hot.read(self, keys, rows)

    def stored(self, keys: Keys, rows: Int64) -> tuple[list[Values], Bools | None]:
        """The values by leaf of rows that should carry some keys; and which do and are sound, bool [n], or None.

        Rows that went since they were found, with their chunk or their generation, are not sound.
        """
        gatherer = self.gatherer
        last = gatherer.snapshot.rows - 1
        if last < 0:
            return [_stand_ins(field, len(rows)) for field in self.schema.fields.values()], np.zeros(len(rows), bool)
        # Of another generation a row may lie behind the last. Any in its place will do: it carries another key.
        rows = np.minimum(rows, last)
        *columns, own = gatherer.read_rows(self._names, rows)
        bad = bad_rows(len(rows), *columns, own) | (keys_of(own).halves != keys.halves).any(axis=1)
        fields = self.schema.fields.values()
        leaves = [_undecoded(field, one) for field, one in zip(fields, columns, strict=True)]
        return leaves, ~bad if bad.any() else None

    @property
    def gatherer(self) -> Gatherer:
        """What reads now."""
        return self.store.gatherer

    def _decoded(self, leaves: list[Values]) -> dict[str, Any]:
        return {path: _leaf(field, one) for (path, field), one in zip(self.schema.fields.items(), leaves, strict=True)}

    def values(self, keys: Keys, rows: Int64) -> tuple[dict[str, Any], Bools | None, int]:
        """The leaves of the rows of some keys.

        Returns:
            [n, *shape] arrays or lists; which rows are bad, bool [n] or None; and how many of these are damaged. The
            others went since they were found, with their chunk or their generation.
        """
        leaves, good = self._read(keys, rows)
        if good is None:
            return self._decoded(leaves), None, 0
        return self._decoded(leaves), ~good, self._damaged(rows[~good])

    def _damaged(self, rows: Int64) -> int:
        gatherer = self.gatherer
        rows = rows[rows < gatherer.snapshot.rows]
        if gatherer.snapshot.gaps is not None:
            rows = rows[~gatherer.snapshot.gaps.holds(rows)]
        return int(bad_rows(len(rows), *gatherer.read_rows(self._names, rows)).sum()) if len(rows) else 0


def _undecoded(field: Field, gathered: GatheredColumn) -> Values:
    """Rows without their codec. Of bad ones nothing is decoded; stand-ins keep their places."""
    if gathered.data is not None:
        return gathered.data
    assert gathered.spans is not None
    if gathered.bad is not None:
        return _expanded(field, gathered, ~gathered.bad)
    if isinstance(field, Array):
        values = decode_gathered(field, gathered)
        return values.reshape(-1).view(np.uint8).reshape(len(values), field.width)
    if codec_of(field.codec, field.dictionary) is None:
        return Varying(gathered.spans.views(), gathered.shapes)
    return Varying(decompressed(field, gathered).views(), gathered.shapes)


def _expanded(field: Field, gathered: GatheredColumn, good: Bools) -> Values:
    assert gathered.spans is not None
    spans = ByteRanges(gathered.spans.space, gathered.spans.starts[good], gathered.spans.lengths[good])
    shapes = None if gathered.shapes is None else gathered.shapes[good]
    whole, some = _stand_ins(field, len(good)), _undecoded(field, GatheredColumn(None, spans, shapes, None))
    if isinstance(field, Array):
        whole[good] = some
        return whole
    for at, view in zip(np.flatnonzero(good).tolist(), some.views, strict=True):
        whole.views[at] = view
    if shapes is not None:
        whole.shapes[good] = shapes
    return whole


def _stand_ins(field: Field, count: int) -> Values:
    """Rows that nobody looks at."""
    if isinstance(field, Array):
        return np.zeros((count, field.width), np.uint8)
    if isinstance(field, Ragged):
        return Varying([memoryview(b"")] * count, np.zeros((count, field.ndim), np.int64))
    return Varying([memoryview(b"null")] * count, None)


def _leaf(field: Field, values: Values) -> Any:
    if isinstance(field, Array):
        if is_tensor(values):  # of the hot tier on a device, [n, words]
            return values.view(torch_dtype(field.numpy)).reshape(len(values), *field.shape)
        return decode_array(field, values)
    decoded = decode(field, values.views, values.shapes)
    # The caller may write to what it gets; the mapped file is read-only.
    if isinstance(field, Ragged):
        return [one.copy() for one in decoded]
    return [bytes(one) for one in decoded] if isinstance(field, Bytes) else decoded


def no_values(schema: OutputSchema) -> dict[str, Any]:
    """The leaves of no rows."""

    def nothing(field: Field) -> Any:
        return decode_array(field, np.zeros((0, field.width), np.uint8)) if isinstance(field, Array) else []

    return {path: nothing(field) for path, field in schema.fields.items()}


def merge(
    schema: OutputSchema,
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
    return values[to_torch(which).to(values.device) if is_tensor(values) else which]
