"""Which folders of this machine hold stores and caches: those of the registry, or those below given folders."""

import contextlib
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from pathlib import Path

from warmstore.errors import NotAStore
from warmstore.inventory.cached_folder import UNREADABLE
from warmstore.records.maintenance.store_summary import DESCRIPTION
from warmstore.storage.registry import COMPILED, PIPELINE, STORE, sweep

_MARKER = "WARMSTORE"
_ABOUT = "about.json"  # of a version of a pipeline's tier; see `pipeline.tiers.tier_quota`
_INDEX = "index.sqlite"
_DRAFTS = (".draft", ".tmp", ".staged", ".converting", ".converting.new")
_GENERATION = re.compile(r"g\d{4,}")
_OF_COMPILED = ("blobs", "import", "live")


@dataclass(frozen=True)
class FoundFolder:
    """A folder with a store or a cache.

    kind: `registry.STORE` for record stores, feature caches and copies of remotes, which their descriptions tell apart;
    `PIPELINE` for a tier or one version of it; `COMPILED` or `UNREADABLE`. opened: its last use by the registry, in
    seconds since 1970; 0 if unknown.
    inner: the folders in it that are listed by themselves, and are no part of it.
    """

    kind: str
    path: Path
    opened: float = 0.0
    inner: tuple[Path, ...] = ()


def find(folders: Iterable[Path] = ()) -> list[FoundFolder]:
    """The stores and caches in some folders and below them; without folders those that the registry knows, and those in
    the default places. Entries of the registry whose folder is gone are forgotten.

    Raises:
        NotAStore: a folder does not exist.
    """
    chosen = list(folders)
    opened: dict[Path, float] = {}
    for entry in sweep():  # a folder that was moved may have a link in its place, and both may be registered
        real = _real(entry.path)
        opened[real] = max(entry.opened, opened.get(real, 0.0))
    found: dict[tuple[Path, str], FoundFolder] = {}
    for place in chosen or [*opened, *_default_places()]:
        real = _real(place)
        if chosen and not real.is_dir():
            raise NotAStore(f"{place} is not a folder")
        if not os.path.isdir(real):  # noqa: PTH112 - `is_dir` raises where this user may not look
            continue
        for kind, path in _below(real):
            found.setdefault((path, kind), FoundFolder(kind, path, opened.get(path, 0.0)))
    twice = [(path, kind) for path, kind in found if kind == PIPELINE and (path.parent, kind) in found]  # with its tier
    return _nested([found[key] for key in sorted(found.keys() - twice)])


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _nested(found: list[FoundFolder]) -> list[FoundFolder]:
    """The same folders, sorted by path, with those in them."""
    inner: dict[Path, list[Path]] = {}
    outer: list[Path] = []
    for folder in found:
        while outer and not folder.path.is_relative_to(outer[-1]):
            outer.pop()
        if not outer or outer[-1] != folder.path:
            if outer:
                inner.setdefault(outer[-1], []).append(folder.path)
            outer.append(folder.path)
    return [replace(folder, inner=tuple(inner.get(folder.path, ()))) for folder in found]


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
    """The kind and path of every store and cache in a folder and below it. Links are not followed; drafts of new stores
    are passed over."""
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except FileNotFoundError:
        return  # removed meanwhile
    except OSError:
        yield UNREADABLE, folder
        return
    names = {entry.name for entry in listed}
    if _ABOUT in names and os.path.exists(folder.parent / _MARKER):  # noqa: PTH110 - `exists` of a Path may raise
        yield PIPELINE, folder  # a version of a tier, as `ls` lists it
        return
    kinds = list(_kinds(folder, names))
    for kind in kinds:
        yield kind, folder
    for entry in listed:
        is_draft = entry.name.startswith(".") and entry.name.endswith(_DRAFTS)
        if entry.is_dir(follow_symlinks=False) and not is_draft and not _is_part(entry.name, kinds):
            yield from _below(Path(entry.path))


def _kinds(folder: Path, names: Set[str]) -> Iterator[str]:
    """What the folder with these entries is."""
    copies = (f"{folder}/{name}/{DESCRIPTION}.copy" for name in names if _GENERATION.fullmatch(name))
    if DESCRIPTION in names or any(map(os.path.exists, copies)):
        yield STORE
    if _MARKER in names:
        yield PIPELINE
    if _INDEX in names:
        from warmstore.compiling.store.artifact_index import is_index

        if is_index(folder):
            yield COMPILED


def _is_part(name: str, kinds: Collection[str]) -> bool:
    """Whether a folder of this name belongs to the store or cache that has it."""
    if PIPELINE in kinds:
        from warmstore.pipeline.tiers.tier_folders import parsed_version

        if parsed_version(name):
            return True
    is_of_store = STORE in kinds and (name.startswith(".") or _GENERATION.fullmatch(name) is not None)
    return is_of_store or (COMPILED in kinds and name in _OF_COMPILED)
