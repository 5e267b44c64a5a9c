"""Versions: the caches of one id that were filled by different weights, code or settings, side by side.

The first version lies in the folder of the id. Every other one lies beside it, in a folder whose name ends with a hash
of its fingerprint, so that every process finds the version of its module without asking anybody.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import xxhash

from warmstore.errors import WarmstoreError
from warmstore.records.files import Files
from warmstore.records.manifest import NAME, read_manifest
from warmstore.records.store import RecordStore

Fingerprint = dict[str, str]
"""Hashes by what they cover, named as a message to the user would: "weights", "code", ..."""

POLICIES = ("raise", "new", "ignore")
SUFFIX = "@0123456789abcdef"  # as long as any; ids are quoted, so "@" stands in no other folder's name
_VERSION = re.compile(r"(.*)@[0-9a-f]{16}")


@dataclass(frozen=True)
class CacheVersion:
    """One version of a cache, as it lies on the disk.

    name: of its folder. entries: rows. bytes: of the whole folder. fingerprint: what it was filled under, by what each
    hash covers; None for a cache that was filled by `put_batch` alone.
    """

    name: str
    entries: int
    bytes: int
    fingerprint: Fingerprint | None


def digest(fingerprint: Fingerprint) -> str:
    """16 hexadecimal digits: the xxh3-64 of the fingerprint as compact JSON with sorted keys."""
    return xxhash.xxh3_64_hexdigest(json.dumps(fingerprint, sort_keys=True, separators=(",", ":")).encode())


def version_folder(folder: Path, name: str, fingerprint: Fingerprint) -> Path:
    """Where the version of a fingerprint lies when it is not the first one."""
    return folder / f"{name}@{digest(fingerprint)}"


def differing(known: Fingerprint, given: Fingerprint) -> list[str]:
    """The parts in which two fingerprints differ."""
    return [part for part in {**known, **given} if known.get(part) != given.get(part)]


def version_paths(folder: Path, name: str) -> list[Path]:
    """The folders of all versions of the cache `name`, the first one first, the others by name."""
    others = folder.iterdir() if folder.is_dir() else ()
    found = [path for path in others if (match := _VERSION.fullmatch(path.name)) and match[1] == name]
    return [path for path in (folder / name, *sorted(found)) if (path / NAME).is_file()]


def id_name(path: Path) -> str:
    """The folder name of the first version, given that of any."""
    match = _VERSION.fullmatch(path.name)
    return match[1] if match else path.name


def read_version(path: Path) -> CacheVersion:
    """What stands on the disk of one version.

    Raises:
        NotAStore, Damaged, NewerFormat: as when a store is opened.
    """
    with RecordStore.open(path) as store:
        return CacheVersion(path.name, store.snapshot.length, store.nbytes, store.metadata.get("fingerprint"))


def read_versions(folder: Path, name: str) -> tuple[CacheVersion, ...]:
    """All versions that can be read; one that is damaged or was just removed is left out."""
    found = []
    for path in version_paths(folder, name):
        try:
            if "structure" in read_manifest(path, Files()).metadata:
                found.append(read_version(path))
        except (WarmstoreError, FileNotFoundError):
            continue
    return tuple(found)
