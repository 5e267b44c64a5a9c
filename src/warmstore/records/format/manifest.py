"""store.json: the description of a store. It is replaced atomically and has a checksum.

Each generation's folder has a copy, which is written first. If store.json is damaged, the copy of the current
generation is read, and the next writer restores store.json.
"""

import contextlib
import errno
import json
import logging
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warmstore.errors import Damaged, NewerFormat, NotAStore, UnsupportedType, WarmstoreError
from warmstore.records.format.checksums import generation_seed
from warmstore.records.format.fields import Fields, fields_from_json, fields_to_json
from warmstore.records.log.log_files import is_closed
from warmstore.storage.atomic import replace_file
from warmstore.storage.cached_property import cached_property
from warmstore.storage.checked_json import checksum_of
from warmstore.storage.files import COPY, Files, read_whole

_logger = logging.getLogger("warmstore")

FORMAT = 4
"""The format of written stores. Stores of formats 1 to 3 are read as they are; their first writer upgrades them."""
NAME = "store.json"
_GENERATIONS = range(1, 1 << 31)
"""A rewrite a second takes 68 years to reach the last one."""


@dataclass(frozen=True)
class Manifest:
    """A store's id, fields, current generation, and the metadata that its owner gave."""

    fields: Fields
    metadata: dict[str, Any] = field(default_factory=dict)
    generation: int = 1
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    format: int = FORMAT

    @property
    def generation_folder(self) -> str:
        return f"g{self.generation:04d}"

    @cached_property
    def digest(self) -> str:
        """A hash of the fields and the metadata."""
        return checksum_of({"fields": fields_to_json(self.fields), "metadata": self.metadata})

    @property
    def seed(self) -> int:
        """The seed of the hashes in this generation's log and files."""
        return generation_seed(self.id, self.generation)


def is_generation(number: Any) -> bool:
    """Whether a number that was read is that of a generation."""
    return type(number) is int and number in _GENERATIONS


def holds_store(folder: Path) -> bool:
    """Whether a folder has store.json, or the copy of it that generations have."""
    return manifest_file(folder).exists()


def manifest_file(folder: Path) -> Path:
    """The store.json of a folder; a copy of it if it is missing and there is one."""
    path = folder / NAME
    return path if path.exists() else max(folder.glob(f"g[0-9]*/{NAME}{COPY}"), default=path)


def read_manifest(folder: Path, files: Files) -> Manifest:
    """Read store.json, or its copy if it is missing or damaged.

    Raises:
        NotAStore: neither exists.
        NewerFormat: this version cannot read the store.
        Damaged: neither matches its checksum.
    """
    path = folder / NAME
    try:
        return manifest_of(read_whole(files, path), str(path))
    except (FileNotFoundError, NotADirectoryError):
        advice = "Make one with RecordStore.create"
        if (folder / "heads").is_dir():
            advice = f"It is a remote: open {folder.absolute().as_uri()}, or clone it"
        error: WarmstoreError = NotAStore(f"{folder} is not a warmstore store: it has no {NAME}. {advice}")
    except IsADirectoryError:
        error = Damaged(f"{path} is a folder; restore the file from a copy")
    except Damaged as damaged:
        error = damaged
    except OSError as unreadable:
        if unreadable.errno != errno.EIO:
            raise
        error = Damaged(f"{path} cannot be read ({unreadable.strerror}); restore it from a copy")
    try:
        copy = _read_copy(folder, files)
        if copy is None:
            raise error from None
    finally:
        del error  # its traceback has this frame, and its callers' with what they hold
    _logger.warning("%s is missing or damaged; its copy is read. verify(repair=True) restores it", path)
    return copy


def _read_copy(folder: Path, files: Files) -> Manifest | None:
    """The copy in the folder of the current generation; None without a valid one."""
    folders = (path for path in folder.glob("g[0-9]*") if path.name[1:].isdecimal())
    generations = sorted(folders, key=lambda path: int(path.name[1:]))
    for number in reversed(range(len(generations))):
        path = generations[number] / (NAME + COPY)
        try:
            manifest = manifest_of(read_whole(files, path), str(path))
            # A later generation is valid once the log of the one before it is closed.
            if manifest.generation_folder == path.parent.name and (
                not number or is_closed(generations[number - 1], files)
            ):
                return manifest
        except (OSError, Damaged):
            continue
    return None


def copy_is_damaged(folder: Path, manifest: Manifest, files: Files) -> bool:
    """Whether the copy of store.json is missing or differs."""
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
    """Parse the bytes of a store.json. `path` is for messages.

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
    if content.pop("checksum", None) != checksum_of(content):
        raise Damaged(f"{path}, of format {version}, does not match its checksum; restore it from a copy")
    # After the checksum: one wrong byte turns a 4 into a 5.
    if version > FORMAT:
        raise NewerFormat.of(path, version, FORMAT)
    try:
        manifest = Manifest(
            fields_from_json(content["fields"]), content["metadata"], content["generation"], content["id"], version
        )
        if not isinstance(manifest.metadata, dict) or not is_generation(manifest.generation):
            raise ValueError
        bytes.fromhex(manifest.id)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        if isinstance(error, WarmstoreError):
            raise
        raise Damaged(f"{path} is no store description; restore it from a copy") from None
    return manifest


def write_manifest(folder: Path, manifest: Manifest, files: Files) -> None:
    """Replace store.json and its copy. Both are on the disk when this returns.

    Raises:
        UnsupportedType: they could not be read again, since JSON changes the metadata. Nothing is written.
    """
    data = manifest_bytes(manifest)
    try:
        manifest_of(data, str(folder / NAME))
    except Damaged:
        raise UnsupportedType(
            f"the metadata of {folder} would not come back from JSON: {manifest.metadata!r:.100}"
        ) from None
    replace_file(folder / manifest.generation_folder / (NAME + COPY), data, durable=True, files=files)
    replace_file(folder / NAME, data, durable=True, files=files)


def manifest_bytes(manifest: Manifest) -> bytes:
    """The bytes of store.json."""
    content: dict[str, Any] = {
        "format": manifest.format,
        "id": manifest.id,
        "generation": manifest.generation,
        "fields": fields_to_json(manifest.fields),
        "metadata": manifest.metadata,
    }
    content["checksum"] = checksum_of(content)
    return json.dumps(content, indent=1, ensure_ascii=False).encode()


def remove_leftovers(folder: Path, manifest: Manifest, files: Files) -> None:
    """Remove generations other than the manifest's, and drafts of store.json. Failed or killed rewrites leave them.

    The caller holds the edit lock, so no other process is making either. What cannot be removed stays.
    """
    for path in folder.glob("g[0-9]*"):
        if path.name[1:].isdecimal() and path.name != manifest.generation_folder:
            with contextlib.suppress(OSError):
                files.remove_folder(path)
    for path in (*folder.glob(f"{NAME}.*.tmp"), *folder.glob(f"*/{NAME}.*.tmp")):
        with contextlib.suppress(OSError):
            files.remove(path)
