"""Merging caches: rows that another cache has and this one lacks are read, checked and accepted in blocks."""

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from warmstore.errors import NotAStore, ReadOnly, SchemaMismatch, StaleCache
from warmstore.features.keyed.cache_reader import CacheReader, select
from warmstore.features.keyed.cache_store import UNSIGNED, check_signed, is_settled, schema_of
from warmstore.features.keyed.cache_versions import Fingerprint, have_same_rules
from warmstore.features.open_cache import OpenCache
from warmstore.features.outputs.leaves import Leaf
from warmstore.features.outputs.output_schema import KEY, OutputSchema
from warmstore.features.outputs.output_structure import check_spec
from warmstore.records.format.manifest import holds_store, read_manifest
from warmstore.records.keyed_store import IndexedStore, read_keys
from warmstore.replicate.record_store import RecordStore
from warmstore.storage.progress import progress_bar
from warmstore.storage.user_paths import user_path

_BLOCK_BYTES = 32_000_000
_BLOCK_ROWS = 1 << 16


@dataclass(frozen=True)
class MergeResult:
    """The result of `FeatureCache.merge`, in samples.

    added: copied to this cache. present: in this cache already. damaged: rows of the other cache that do not match
    their checksums; they are not copied.
    """

    added: int
    present: int
    damaged: int


def merge_caches(cache: OpenCache, other: OpenCache | str | os.PathLike[str], progress: bool | None) -> MergeResult:
    """See `FeatureCache.merge`."""
    if not cache.writes:
        raise ReadOnly(f"the cache {cache.path} is only read by this process; open it for writing to merge into it")
    if isinstance(other, str | os.PathLike):
        path = user_path(other)
        if not holds_store(path):
            raise NotAStore(f"{path} is no cache; name the folder of one version, such as FOLDER/ID")
    else:
        other.flush()
        path = other.path
    with contextlib.closing(IndexedStore(RecordStore.open(path), KEY)) as keyed:
        store = keyed.store
        schema = schema_of(store)
        target = _target(cache, path, store.metadata.get("fingerprint"))
        if target.path.absolute() == store.path:
            raise ValueError(f"{path} cannot be merged into itself; name another cache")
        check_same(target._session.expect(schema, settled=is_settled(store.metadata)), schema)
        keyed.catch_up()
        if read_manifest(path, store._files).metadata.get(UNSIGNED):  # behind the log: a pull notes so before its rows
            _mark_unsigned(target, path)
        merged = _copy(target, CacheReader(keyed, schema), progress)
    target.flush()
    return merged


def _mark_unsigned(target: OpenCache, path: Path) -> None:
    """Note that a cache takes samples that nobody signed. Raises NotTrusted if it must not."""
    version = target._session.version
    if version.options.is_signed:
        check_signed({UNSIGNED: True}, path)
    version.created().store.annotate(UNSIGNED, True)


def check_same(known: OutputSchema, given: OutputSchema) -> None:
    """Raise SchemaMismatch if the outputs of two caches differ in structure, dtype or shape."""
    check_spec(known.structure, given.structure)
    for path, field in known.fields.items():
        if replace(given.fields[path], codec="raw", dictionary=None) != replace(field, codec="raw", dictionary=None):
            raise SchemaMismatch(
                f"leaf {path!r} is {field} here and {given.fields[path]} in the other cache; only equal outputs merge"
            )


def _target(cache: OpenCache, path: Path, fingerprint: Fingerprint | None) -> OpenCache:
    """The version of a cache that takes the rows of another one with this fingerprint."""
    known = cache.fingerprint
    if known is not None and fingerprint is not None and not have_same_rules(known, fingerprint):
        raise StaleCache(
            f"{path} was filled under other rules of identity than {cache.path}, so its outputs may be those of "
            "another module. Merge it into another cache, or call put_batch with its values"
        )
    if fingerprint is not None:
        return cache._bind(fingerprint)
    if known is not None:
        raise StaleCache(
            f"{path} was filled by put_batch alone, so its outputs may be those of another module than the one that "
            f"filled {cache.path}. Merge it into another cache, or call put_batch with its values"
        )
    return cache


def _copy(target: OpenCache, reader: CacheReader, progress: bool | None) -> MergeResult:
    store, snapshot = reader.store, reader.store._snapshot
    rows = snapshot.length
    step = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES * rows // max(store.nbytes, 1)))
    added = present = damaged = 0
    with progress_bar(rows, None, 0, target.id, progress) as advance:
        for first in range(0, rows, step):
            numbers = snapshot.rows_at(np.arange(first, min(first + step, rows), dtype=np.int64))
            keys, bad = read_keys(store._gatherer, KEY, numbers)
            damaged += 0 if bad is None else int(bad.sum())
            # If the other cache has several rows of a key, only the row that its own lookups return is copied.
            latest = np.flatnonzero(reader.keyed.find(keys) == numbers)
            missing = latest[target._session.missing(keys.take(latest))]
            present += len(latest) - len(missing)
            values, bad, _ = reader.values(keys.take(missing), numbers[missing])
            if bad is not None:
                damaged += int(bad.sum())
                missing = missing[~bad]
                values = {path: select(value, ~bad) for path, value in values.items()}
            if len(missing):
                leaves = tuple(Leaf(path, values[path]) for path in reader.schema.fields)
                target._session.accept(keys.take(missing), leaves)
            added += len(missing)
            advance(len(numbers), None)
    return MergeResult(added, present, damaged)
