"""A cache's record store: its creation, whether a store is one, its schema, and the state of its dimensions."""

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warmstore.errors import NotTrusted, ReadOnly, StoreExists
from warmstore.features.outputs.output_schema import OutputSchema, are_fields_of_cache
from warmstore.records.format.manifest import Manifest
from warmstore.records.local_store import LocalStore
from warmstore.storage.files import Files, ensure_folder, is_read_only

UNSETTLED = {"batches": "of one"}
"""In the metadata of a cache whose first batches had one sample, and so did not show the dimension of samples."""
SETTLED = "settled"
"""In the metadata of such a cache, once a batch of several samples was computed."""

UNSIGNED = "unsigned"
"""In the metadata of a cache that has taken over samples that nobody signed. Nothing in it is unpickled or signed."""


def is_cache(store: LocalStore | Manifest) -> bool:
    """Whether a store is a feature cache, by its fields and metadata, of which a record store may have some too."""
    structure = store.metadata.get("structure")
    return isinstance(structure, dict) and "node" in structure and are_fields_of_cache(store.fields)


def holds_pickles(manifest: Manifest) -> bool:
    """Whether outputs in a cache are pickled, and so are read with `allow_pickle` and from signed parts alone."""
    schema = OutputSchema.of_store(manifest.metadata["structure"], manifest.fields)
    return any(node == "pickled" for node, _ in schema.nodes.values())


def check_signed(metadata: Mapping[str, Any], path: Path) -> None:
    """Raise NotTrusted if a cache in a folder has samples that nobody signed, by the metadata of its store."""
    if metadata.get(UNSIGNED):
        raise NotTrusted(
            errno.EPERM,
            "it holds samples of a remote that nobody signed, which must be neither unpickled nor signed; remove the "
            "folder and pull again with allow_pickle=True or sign=True, or open it without both",
            str(path),
        )


def is_settled(metadata: Mapping[str, Any]) -> bool:
    """Whether the dimension of samples in the outputs of a cache is known, by the metadata of its store."""
    return not UNSETTLED.items() <= metadata.items() or bool(metadata.get(SETTLED))


def schema_of(store: LocalStore) -> OutputSchema:
    """The schema of the outputs in a cache's store.

    Raises:
        StoreExists: the store is no feature cache.
    """
    if not is_cache(store):
        raise StoreExists(f"{store.path} is a record store and no feature cache; use another folder or cache id")
    return OutputSchema.of_store(store.metadata["structure"], store.fields)


def create_store(
    path: Path, schema: OutputSchema, metadata: dict[str, Any], files: Files, writing: Mapping[str, Any]
) -> LocalStore:
    """Create the store of a cache.

    Raises:
        StoreExists: the folder is not empty; another process may have created the store.
        ReadOnly: the folder cannot be written.
    """
    try:
        ensure_folder(path.parent.absolute(), files)
        return LocalStore.create(path, schema.store_fields(), metadata=metadata, files=files, **writing)
    except OSError as error:
        if is_read_only(error):
            raise unwritable(error, path.parent) from error
        raise


def unwritable(error: OSError, path: Path) -> ReadOnly:
    """The error of a cache that this process must write to, and cannot."""
    return ReadOnly(error.errno, "the cache's folder cannot be written; pass read_only=True to only read", str(path))
