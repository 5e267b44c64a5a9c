"""Reads a cache's rows: finds them by key, accepts rows that have this key, and decodes them into leaf values."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from warmstore.features.keyed.cache_store import check_signed
from warmstore.features.keyed.row_values import Values, Varying
from warmstore.features.outputs.leaves import Leaf, is_array
from warmstore.features.outputs.output_schema import KEY, OutputSchema
from warmstore.records.format.array_interop import is_tensor, on_device, to_numpy, to_torch, torch_dtype
from warmstore.records.format.codecs import codec_of
from warmstore.records.format.encoded_rows import ByteRanges, GatheredColumn
from warmstore.records.format.fields import Array, Bytes, Field, Ragged
from warmstore.records.format.manifest import NAME, read_manifest
from warmstore.records.format.value_encoding import decode, decode_array, decode_gathered, decompressed
from warmstore.records.index.sample_keys import Keys
from warmstore.records.keyed_store import IndexedStore, bad_rows, keys_of, without_absent
from warmstore.records.read.gather import Gatherer
from warmstore.storage.array_types import Bools, Int64

if TYPE_CHECKING:
    from warmstore.features.keyed.hot_tier import HotTier


class StoredFigures(NamedTuple):
    """What a store has: rows, their bytes on the disk, and rows that were evicted since the last rebalance."""

    length: int = 0
    nbytes: int = 0
    evicted: int = 0


class CacheReader:
    """Finds and reads the committed rows of a cache's store. Safe to use from several threads.

    Args:
        unpickles: whether the values may be unpickled, so that all of the store's samples must have been signed.
    """

    def __init__(
        self, keyed: IndexedStore, schema: OutputSchema, hot: "HotTier | None" = None, *, unpickles: bool = False
    ) -> None:
        self.keyed = keyed
        self.store = keyed.store
        self.schema = schema
        self._hot = hot
        self._unpickles = unpickles and any(isinstance(field, Bytes) for field in schema.fields.values())
        self._checked: tuple[int, int] | None = None  # the store.json that was found to be of signed samples
        self._names = (*map(schema.field_name, schema.fields), KEY)  # keys last: see `KeyTable.fetch`

    @property
    def figures(self) -> StoredFigures:
        """What the store has now."""
        gaps = self.store._snapshot.gaps
        return StoredFigures(self.store._snapshot.length, self.store.nbytes, 0 if gaps is None else gaps.count)

    def read_all(self, keys: Keys) -> dict[str, Any] | None:
        """The leaves of all keys; None if a row is missing, damaged or has another key."""
        if self._hot is None and len(keys):
            fetched = self._fetched(keys)
            if fetched is not None:
                return fetched
        rows = self.keyed.index.lookup_all(keys, self.store._snapshot.rows)
        if rows is None:
            return None
        leaves, good = self._read(keys, rows)
        return self._decoded(leaves) if good is None else None

    def _fetched(self, keys: Keys) -> dict[str, Any] | None:
        """`read_all` in one native call. None unless all leaves have fixed widths and all rows are verified."""
        columns = self.store._gatherer.columns(self._names)
        values = None if columns is None else self.keyed.index.fetch(keys, columns)
        return None if values is None else dict(zip(self.schema.fields, values, strict=True))

    def _read(self, keys: Keys, rows: Int64) -> tuple[list[Values], Bools | None]:
        return self.stored(keys, rows) if self._hot is None else self._hot.read(self, keys, rows)

    def stored(self, keys: Keys, rows: Int64) -> tuple[list[Values], Bools | None]:
        """The values by leaf of the rows of some keys; and which rows are intact and have their key, bool [n].

        None stands for all. Rows that were removed since they were found, with their chunk or generation, are False.
        """
        gatherer = self.gatherer
        last = gatherer.snapshot.rows - 1
        if last < 0:
            return [_placeholders(field, len(rows)) for field in self.schema.fields.values()], np.zeros(len(rows), bool)
        # A row number of another generation may be too large. The last row replaces it: it has another key.
        rows = np.minimum(rows, last)
        *columns, stored_keys = map(without_absent, gatherer.read_rows(self._names, rows))
        bad = bad_rows(len(rows), *columns, stored_keys) | (keys_of(stored_keys).halves != keys.halves).any(axis=1)
        fields = self.schema.fields.values()
        leaves = [_undecoded(field, column) for field, column in zip(fields, columns, strict=True)]
        return leaves, ~bad if bad.any() else None

    @property
    def gatherer(self) -> Gatherer:
        """The current gatherer of the store."""
        return self.store._gatherer

    def _decoded(self, leaves: list[Values]) -> dict[str, Any]:
        if self._unpickles:
            self._check_signed()
        fields = self.schema.fields.items()
        return {path: _leaf(field, values) for (path, field), values in zip(fields, leaves, strict=True)}

    def _check_signed(self) -> None:
        """Raise NotTrusted if another process has pulled samples that nobody signed: it notes so before their rows."""
        try:
            status = (self.store.path / NAME).stat()
            if (status.st_ino, status.st_mtime_ns) != self._checked:
                check_signed(read_manifest(self.store.path, self.store._files).metadata, self.store.path)
                self._checked = status.st_ino, status.st_mtime_ns
        except FileNotFoundError:
            return  # the cache was removed, and nobody pulls into it

    def values(self, keys: Keys, rows: Int64) -> tuple[dict[str, Any], Bools | None, int]:
        """The leaves of the rows of some keys.

        Returns:
            [n, *shape] arrays or lists; which rows are bad, bool [n] or None; and how many of these are damaged. The
            other bad rows were removed since they were found, with their chunk or generation.
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
    """Rows after decompression. Bad rows are not read: placeholders replace them."""
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
    """The good rows of a column at their places, with placeholders at the places of bad rows."""
    assert gathered.spans is not None
    spans = ByteRanges(gathered.spans.space, gathered.spans.starts[good], gathered.spans.lengths[good])
    shapes = None if gathered.shapes is None else gathered.shapes[good]
    rows, good_rows = _placeholders(field, len(good)), _undecoded(field, GatheredColumn(None, spans, shapes, None))
    if isinstance(field, Array):
        rows[good] = good_rows
        return rows
    for at, view in zip(np.flatnonzero(good).tolist(), good_rows.views, strict=True):
        rows.views[at] = view
    if shapes is not None:
        rows.shapes[good] = shapes
    return rows


def _placeholders(field: Field, count: int) -> Values:
    """Rows that can be decoded and are not used."""
    if isinstance(field, Array):
        return np.zeros((count, field.width), np.uint8)
    if isinstance(field, Ragged):
        return Varying([memoryview(b"")] * count, np.zeros((count, field.ndim), np.int64))
    return Varying([memoryview(b"null")] * count, None)


def _leaf(field: Field, values: Values) -> Any:
    if isinstance(field, Array):
        if is_tensor(values):  # words of rows from the hot tier of a device, [n, words]
            return values.view(torch_dtype(field.numpy)).reshape(len(values), *field.shape)
        return decode_array(field, values)
    decoded = decode(field, values.views, values.shapes)
    # The caller may write to the values; the mapped file is read-only.
    if isinstance(field, Ragged):
        return [array.copy() for array in decoded]
    return [bytes(view) for view in decoded] if isinstance(field, Bytes) else decoded


def no_values(schema: OutputSchema) -> dict[str, Any]:
    """The leaves of no rows."""
    return {path: _leaf(field, _placeholders(field, 0)) for path, field in schema.fields.items()}


def merge(
    schema: OutputSchema,
    values: dict[str, Any],
    stored: Int64,
    others: Sequence[tuple[int, Sequence[Leaf], int]],
    count: int,
) -> dict[str, Any]:
    """The leaves of `count` samples: `values` at the positions `stored`, and rows of other leaves elsewhere.

    Args:
        others: for each other sample its position in the result, its leaves, and its row in these leaves.
    """
    merged: dict[str, Any] = {}
    for number, (path, field) in enumerate(schema.fields.items()):
        fresh = [(place, leaves[number].values[row]) for place, leaves, row in others]
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
    return values[on_device(to_torch(which), values.device) if is_tensor(values) else which]
