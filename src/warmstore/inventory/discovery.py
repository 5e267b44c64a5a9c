"""Which folders of this machine hold stores and caches: those of the registry, or those below given folders."""

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from warmstore.errors import NotAStore
from warmstore.records.maintenance.store_summary import DESCRIPTION
from warmstore.storage.registry import COMPILED, PIPELINE, STORE, sweep

_MARKER = "WARMSTORE"
_INDEX = "index.sqlite"
_DRAFTS = (".draft", ".tmp", ".staged", ".converting")


@dataclass(frozen=True)
class FoundFolder:
    """A folder with a store or a cache.

    kind: `registry.STORE` for record stores, feature caches and copies of remotes, which their descriptions tell apart;
    `PIPELINE` or `COMPILED`. opened: its last use by the registry, in seconds since 1970; 0 if unknown.
    """

    kind: str
    path: Path
    opened: float = 0.0


def find(folders: Iterable[Path] = ()) -> list[FoundFolder]:
    """The stores and caches in some folders and below them; without folders those that the registry knows, and those in
    the default places. Entries of the registry whose folder is gone are forgotten.

    Raises:
        NotAStore: a folder does not exist.
    """
    chosen = list(folders)
    opened = {entry.path: entry.opened for entry in sweep()}
    places = chosen or [*opened, *_default_places()]
    found: dict[Path, FoundFolder] = {}
    for place in places:
        real = Path(os.path.realpath(place)) if place not in opened else place  # the registry has real paths
        if not real.is_dir():
            if chosen:
                raise NotAStore(f"{place} is not a folder")
            continue
        for kind, path in _below(real):
            found.setdefault(path, FoundFolder(kind, path, opened.get(path, 0.0)))
    return [found[path] for path in sorted(found)]


def _default_places() -> Iterator[Path]:
    """Folders that are looked at even if the registry does not know them."""
    variable = os.environ.get("WARMSTORE_CACHE_DIR")
    if variable:
        yield Path(variable).expanduser()
    with contextlib.suppress(ImportError):  # the extra `compile` brings platformdirs
        from platformdirs import user_cache_path

        yield user_cache_path("warmstore") / "compiled"
    with contextlib.suppress(RuntimeError):  # there is no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "warmstore" / "remote"
    for parent in (Path("/dev/shm"), Path(tempfile.gettempdir())):  # memory tiers of pipelines
        with contextlib.suppress(OSError):
            yield from parent.glob(f"warmstore-{os.getuid()}-*/")


def _below(folder: Path) -> Iterator[tuple[str, Path]]:
    """The kind and path of every store and cache in a folder and below it. Links are not followed; folders that cannot
    be read, and drafts of new stores, are passed over."""
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except OSError:
        return
    names = {entry.name for entry in listed}
    kind = STORE if DESCRIPTION in names else PIPELINE if _MARKER in names else COMPILED if _INDEX in names else None
    if kind is not None:
        yield kind, folder
        return
    for entry in listed:
        if entry.is_dir(follow_symlinks=False) and not (entry.name.startswith(".") and entry.name.endswith(_DRAFTS)):
            yield from _below(Path(entry.path))
