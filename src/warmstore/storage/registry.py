"""The registry: which folders of this machine hold stores and caches of this user.

One small file per folder, in the user's state folder. Its name is a hash of the real path, its content says what the
folder holds, and its modification time is when the folder was last opened. Nothing here raises: a registry that cannot
be read or written is empty. `WARMSTORE_REGISTRY=0` turns it off.
"""

import contextlib
import json
import logging
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path

import xxhash

_log = logging.getLogger("warmstore")

VARIABLE = "WARMSTORE_REGISTRY"
STORE, FEATURES, FUNCTIONS = "store", "features", "functions"
PIPELINE, COMPILED, COPY = "pipeline", "compiled", "copy"
"""What a folder holds: a record store, one version of a feature cache, the results of a cached function; the disk tier
of pipelines, a compile cache, or the local copy of a store at a URL."""

_DRAFT = re.compile(r"/\.[^/]+\.(draft|staged|converting|tmp)(/|$)|/warmstore-\d+-scratch")
_INTERVAL = 60.0  # seconds in which a folder that is opened again is not written down again
_SWEPT = 1 / 64  # share of new folders that sweep the registry, so that short-lived folders do not fill it


@dataclass(frozen=True)
class RegistryEntry:
    """One folder. created, opened: times of its first and last use, in seconds since 1970. file: of the entry."""

    kind: str
    path: Path
    created: float
    opened: float
    file: Path


def register(kind: str, folder: str | os.PathLike[str]) -> None:
    """Write down that a folder was opened. Takes some 20 µs if it was written down in the last minute. Drafts of
    new stores are left out."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # RuntimeError: there is no home
        if os.environ.get(VARIABLE) == "0":
            return
        real = os.path.realpath(folder)
        if _DRAFT.search(real):
            return
        entry = registry_folder() / f"{xxhash.xxh3_128_hexdigest(os.fsencode(real))}.json"
        now = time.time()
        try:
            if abs(now - entry.stat().st_mtime) > _INTERVAL:
                os.utime(entry)
        except FileNotFoundError:
            from warmstore.storage.atomic import replace_file  # whoever only reads entries needs no NumPy

            entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            content = json.dumps({"kind": kind, "path": real, "created": now})
            replace_file(entry, content.encode(), durable=False)
            if int(entry.name[:2], 16) < 256 * _SWEPT:
                sweep()


def registered() -> list[RegistryEntry]:
    """All entries whose file can be read, by path. Their folders may be gone."""
    entries = []
    with contextlib.suppress(OSError, RuntimeError), os.scandir(registry_folder()) as files:
        for file in files:
            entry = _read(file) if file.name.endswith(".json") else None
            if entry is not None:
                entries.append(entry)
    return sorted(entries, key=lambda entry: entry.path)


def sweep() -> list[RegistryEntry]:
    """Forget entries whose folder is gone. Returns those whose folder is there; the others cannot be looked at now."""
    found = []
    for entry in registered():
        try:
            is_there = stat.S_ISDIR(entry.path.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            is_there = False
        except OSError:  # such as of a folder above it that this user may not enter, or of a disk that does not answer
            continue
        if is_there:
            found.append(entry)
        else:
            forget(entry)
    return found


def forget(entry: RegistryEntry) -> None:
    """Remove an entry. The next process that opens its folder writes it down again."""
    with contextlib.suppress(OSError):
        entry.file.unlink()


def registry_folder() -> Path:
    """The folder of the registry: below $XDG_STATE_HOME if that is an absolute path, else ~/.local/state.

    Raises:
        RuntimeError: the user has no home.
    """
    base = Path(os.environ.get("XDG_STATE_HOME") or "")
    return (base if base.is_absolute() else Path("~/.local/state").expanduser()) / "warmstore" / "folders"


def _read(file: "os.DirEntry[str]") -> RegistryEntry | None:
    """The entry in a file; None for a file that cannot be read, which is removed if it is damaged."""
    try:
        with open(file.path, "rb") as opened:
            content = json.load(opened)
        opened_at = file.stat().st_mtime
        return RegistryEntry(
            str(content["kind"]), Path(content["path"]), float(content["created"]), opened_at, Path(file.path)
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        with contextlib.suppress(OSError):
            os.unlink(file.path)  # noqa: PTH108
    except OSError as error:
        _log.debug("%s: %s", file.path, error.strerror)
    return None
