"""The record store of a cache: creating it, opening it, and checking that a store is one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmstore.errors import ReadOnly, StoreExists
from warmstore.features.keyed.cache_quota import CacheQuota
from warmstore.features.keyed.cache_versions import Fingerprint
from warmstore.features.outputs.output_schema import KEY, OutputSchema
from warmstore.records.format.manifest import Manifest
from warmstore.records.local_store import LocalStore
from warmstore.records.write.upgrade import upgrade
from warmstore.records.write.write_options import WriteOptions
from warmstore.storage.files import Files, is_read_only

if TYPE_CHECKING:
    from warmstore.features.calls.call_arguments import Roles

_BATCHES, _OF_ONE = "batches", "of one"  # in the metadata of a cache that was filled in batches of one at first
SETTLED = "settled"
"""In the metadata of such a cache, once a batch of several was computed."""


def open_store(
    path: Path,
    files: Files,
    *,
    read_only: bool,
    must_write: bool,
    quota: CacheQuota | None = None,
    threads: int | None = None,
) -> LocalStore:
    """Open a cache's store, for writing if possible, and within its quota if it has one.

    Args:
        must_write: raise if the store cannot be written; otherwise it is then opened for reading.

    Raises:
        ReadOnly: the store cannot be written, and `must_write` is True.
    """
    if not read_only:
        try:
            store = LocalStore.open_folder(path, "a", writing=WriteOptions.of(**_writing(quota, threads)), files=files)
            if quota is not None:
                upgrade(path, files, wait=True)
            return store
        except ReadOnly as error:
            if must_write:
                raise _read_only(error, path) from error
    return LocalStore.open_folder(path, files=files)


def create_store(
    path: Path,
    schema: OutputSchema,
    fingerprint: Fingerprint | None,
    files: Files,
    quota: CacheQuota | None = None,
    threads: int | None = None,
    *,
    roles: Roles | None = None,
    settled: bool = True,
) -> LocalStore:
    """Create a cache's store.

    Args:
        roles: of the arguments of the module that fills it.
        settled: whether the dimension of samples in outputs is known.

    Raises:
        StoreExists: the folder is not empty; another process may have created the store.
        ReadOnly: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata: dict[str, Any] = {"structure": schema.structure, "fingerprint": fingerprint}
        if roles is not None and len(roles) > 1:  # one argument is the input
            metadata["arguments"] = dict(roles)
        if not settled:
            metadata[_BATCHES] = _OF_ONE
        return LocalStore.create(
            path, schema.store_fields(), metadata=metadata, files=files, **_writing(quota, threads)
        )
    except OSError as error:
        if is_read_only(error):
            raise _read_only(error, path.parent) from error
        raise


def _writing(quota: CacheQuota | None, threads: int | None) -> dict[str, Any]:
    room = {} if quota is None else {"chunk_size": quota.chunk_size, "room": quota.reserve}
    return {"writer_threads": threads, **room}


def is_cache(store: LocalStore | Manifest) -> bool:
    """Whether a store is a feature cache."""
    return store.metadata.get("structure") is not None and KEY in store.fields


def is_settled(metadata: Mapping[str, Any]) -> bool:
    """Whether the dimension of samples in the outputs of a cache is known, by the metadata of its store."""
    return metadata.get(_BATCHES) != _OF_ONE or bool(metadata.get(SETTLED))


def schema_of(store: LocalStore) -> OutputSchema:
    """The schema of the outputs in a cache's store.

    Raises:
        StoreExists: the store is no feature cache.
    """
    if not is_cache(store):
        raise StoreExists(f"{store.path} is a record store and no feature cache; use another folder or cache id")
    return OutputSchema.of_store(store.metadata["structure"], store.fields)


def _read_only(error: OSError, path: Path) -> ReadOnly:
    return ReadOnly(error.errno, "the cache's folder cannot be written; pass read_only=True to only read", str(path))
