"""store.json: what a store is. Replaced atomically, never edited; a checksum tells a damaged one.

Each generation's folder has a copy, which is written first. A damaged store.json is read through the copy of the
present generation, and the next writer mends it.
"""

import contextlib
import errno
import json
import logging
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from warmstore.errors import Damaged, NewerFormat, NotAStore, WarmstoreError
from warmstore.records.format.checksums import generation_seed
from warmstore.records.format.fields import Fields, fields_from_json, fields_to_json
from warmstore.records.log.commit_log import is_closed
from warmstore.storage.atomic import replace_file
from warmstore.storage.files import COPY, Files, read_whole

_logger = logging.getLogger("warmstore")

FORMAT = 4
"""Of the stores that are written. Those of formats 1 to 3 are read as they are; the first writer upgrades them."""
NAME = "store.json"


@dataclass(frozen=True)
class Manifest:
    """A store's identity, fields, current generation, and what its owner wrote about it."""

    fields: Fields
    metadata: dict[str, Any] = field(default_factory=dict)
    generation: int = 1
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    format: int = FORMAT

    @property
    def generation_folder(self) -> str:
        return f"g{self.generation:04d}"

    @property
    def seed(self) -> int:
        """Of the hashes in this generation's log and files."""
        return generation_seed(self.id, self.generation)


def read_manifest(folder: Path, files: Files) -> Manifest:
    """Read store.json, or its copy where it is missing or damaged.

    Raises:
        NotAStore: there is none.
        NewerFormat: this version cannot read the store.
        Damaged: it does not match its checksum, nor does its copy.
    """
    path = folder / NAME
    try:
        return manifest_of(read_whole(files, path), str(path))
    except (FileNotFoundError, NotADirectoryError):
        what = "Make one with RecordStore.create"
        if (folder / "heads").is_dir():
            what = f"It is what stores are pushed to: open {folder.absolute().as_uri()}, or clone it"
        error: WarmstoreError = NotAStore(f"{folder} is not a warmstore store: it has no {NAME}. {what}")
    except IsADirectoryError:
        error = Damaged(f"{path} is a folder; restore the file from a copy")
    except Damaged as damaged:
        error = damaged
    except OSError as unreadable:
        if unreadable.errno != errno.EIO:
            raise
        error = Damaged(f"{path} cannot be read ({unreadable.strerror}); restore it from a copy")
    copy = _read_copy(folder, files)
    if copy is None:
        raise error from None
    _logger.warning("%s is missing or damaged; its copy is read. verify(repair=True) mends it", path)
    return copy


def _read_copy(folder: Path, files: Files) -> Manifest | None:
    """What the copy in the folder of the present generation says."""
    folders = (path for path in folder.glob("g[0-9]*") if path.name[1:].isdecimal())
    generations = sorted(folders, key=lambda path: int(path.name[1:]))
    for number in reversed(range(len(generations))):
        path = generations[number] / (NAME + COPY)
        try:
            manifest = manifest_of(read_whole(files, path), str(path))
            # A later generation counts once the log before it is closed.
            if manifest.generation_folder == path.parent.name and (
                not number or is_closed(generations[number - 1], files)
            ):
                return manifest
        except (OSError, Damaged):
            continue
    return None


def copy_is_damaged(folder: Path, manifest: Manifest, files: Files) -> bool:
    """Whether the copy of store.json is missing, or says anything else."""
    try:
        return read_whole(files, folder / manifest.generation_folder / (NAME + COPY)) != manifest_bytes(manifest)
    except OSError:
        return True


def is_damaged(folder: Path, files: Files) -> bool:
    """Whether store.json is missing or damaged."""
    try:
        manifest_of(read_whole(files, folder / NAME), NAME)
    except (OSError, Damaged):
        return True
    return False


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
    if content.pop("checksum", None) != _checksum(content):
        raise Damaged(f"{path}, of format {version}, does not match its checksum; restore it from a copy")
    # Only now: one wrong byte makes a 5 of a 4.
    if version > FORMAT:
        raise NewerFormat(
            f"{path} has format {version}; this warmstore reads up to {FORMAT}. Upgrade warmstore to open it"
        )
    fields = fields_from_json(content["fields"])
    return Manifest(fields, content["metadata"], content["generation"], content["id"], version)


def write_manifest(folder: Path, manifest: Manifest, files: Files) -> None:
    """Write store.json and its copy, replacing the old ones; on the disk when this returns."""
    data = manifest_bytes(manifest)
    replace_file(folder / manifest.generation_folder / (NAME + COPY), data, durable=True, files=files)
    replace_file(folder / NAME, data, durable=True, files=files)


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


def remove_leftovers(folder: Path, manifest: Manifest, files: Files) -> None:
    """Remove generations other than the manifest's, and drafts of store.json: what rewrites leave that fail or die.

    Only for the one who holds the lock of editors, without which nobody makes either. What cannot be removed stays.
    """
    for path in folder.glob("g[0-9]*"):
        if path.name[1:].isdecimal() and path.name != manifest.generation_folder:
            with contextlib.suppress(OSError):
                files.remove_folder(path)
    for path in (*folder.glob(f"{NAME}.*.tmp"), *folder.glob(f"*/{NAME}.*.tmp")):
        with contextlib.suppress(OSError):
            files.remove(path)


def _checksum(content: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
