"""store.json: what a store is. Replaced atomically, never edited; a checksum tells a damaged one."""

import contextlib
import json
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from warmstore.errors import Damaged, NewerFormat, NotAStore, ReadOnly, StoreExists
from warmstore.records.fields import Fields, fields_from_json, fields_to_json
from warmstore.records.files import Files, is_read_only, replace_whole
from warmstore.records.log import create_log

FORMAT = 3
"""The newest that can be read. Stores are written in format 1 for as long as that says all."""
EVICTING = 2
"""The format of stores whose chunks may be evicted."""
ADOPTING = 3
"""The format of stores that may have chunks of others."""
NAME = "store.json"


@dataclass(frozen=True)
class Manifest:
    """A store's identity, fields, current generation, and what its owner wrote about it."""

    fields: Fields
    metadata: dict[str, Any] = field(default_factory=dict)
    generation: int = 1
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    format: int = 1

    @property
    def generation_folder(self) -> str:
        return f"g{self.generation:04d}"


def read_manifest(folder: Path, files: Files) -> Manifest:
    """Read store.json.

    Raises:
        NotAStore: there is none.
        NewerFormat: this version cannot read the store.
        Damaged: it does not match its checksum.
    """
    path = folder / NAME
    try:
        descriptor = files.open(path)
    except (FileNotFoundError, NotADirectoryError):
        what = "Make one with RecordStore.create"
        if (folder / "heads").is_dir():
            what = f"It is what stores are pushed to: open {folder.absolute().as_uri()}, or clone it"
        raise NotAStore(f"{folder} is not a warmstore store: it has no {NAME}. {what}") from None
    try:
        data = files.read(descriptor, files.size(descriptor), 0)
    except IsADirectoryError:
        raise Damaged(f"{path} is a folder; restore the file from a copy") from None
    finally:
        files.close(descriptor)
    return manifest_of(data, str(path))


def manifest_of(data: bytes | str, path: str) -> Manifest:
    """What the bytes of a store.json say; `path` is for messages.

    Raises:
        NewerFormat: this version cannot read the store.
        Damaged: they do not match their checksum.
    """
    try:
        content = json.loads(data)
        version = content["format"]
        if not isinstance(version, int):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Damaged(f"{path} is not readable as a store description; restore it from a copy") from None
    if version > FORMAT:
        raise NewerFormat(
            f"{path} has format {version}; this warmstore reads up to {FORMAT}. Upgrade warmstore to open it"
        )
    if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
        raise Damaged(f"{path} does not match its checksum; restore it from a copy")
    fields = fields_from_json(content["fields"])
    return Manifest(fields, content["metadata"], content["generation"], content["id"], version)


def write_manifest(folder: Path, manifest: Manifest, files: Files) -> None:
    """Write store.json, replacing the old one; on the disk when this returns."""
    replace_whole(files, folder / NAME, manifest_bytes(manifest))


def manifest_bytes(manifest: Manifest) -> bytes:
    """store.json."""
    content: dict[str, Any] = {
        "format": manifest.format,
        "id": manifest.id,
        "generation": manifest.generation,
        "fields": fields_to_json(manifest.fields),
        "metadata": manifest.metadata,
    }
    content["checksum"] = _checksum(content)
    return json.dumps(content, indent=1, ensure_ascii=False).encode()


def create_folder(folder: Path, manifest: Manifest, files: Files) -> None:
    """Make the folder of a new, empty store. It appears whole or not at all.

    Raises:
        StoreExists: the folder holds something already.
        ReadOnly: its parent cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise StoreExists(f"{folder} is a file; name a new folder")
    if (folder / NAME).exists():
        raise StoreExists(f"{folder} holds a store already; open it with RecordStore.open({str(folder)!r}, mode='a')")
    draft = folder.parent / f".{folder.name}.{manifest.id}.tmp"
    try:
        generation = draft / manifest.generation_folder
        files.make_folder(generation)
        create_log(generation, files)
        write_manifest(draft, manifest, files)
        files.rename(draft, folder)
        files.sync_folder(folder.parent)
    except OSError as error:
        if is_read_only(error):
            raise ReadOnly(error.errno, "the folder cannot be written", str(folder.parent)) from error
        if folder.is_dir() and any(folder.iterdir()):
            raise StoreExists(f"{folder} is not empty; name a new folder, or empty that one first") from error
        raise
    finally:
        with contextlib.suppress(OSError):
            files.remove_folder(draft)


def remove_leftovers(folder: Path, manifest: Manifest, files: Files) -> None:
    """Remove generations other than the manifest's, and drafts of store.json: what rewrites leave that fail or die.

    Only for the one who holds the lock of editors, without which nobody makes either. What cannot be removed stays.
    """
    for path in folder.glob("g[0-9]*"):
        if path.name[1:].isdecimal() and path.name != manifest.generation_folder:
            with contextlib.suppress(OSError):
                files.remove_folder(path)
    for path in folder.glob(f"{NAME}.*.tmp"):
        with contextlib.suppress(OSError):
            files.remove(path)


def _checksum(content: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
