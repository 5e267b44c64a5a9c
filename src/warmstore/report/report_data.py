"""ReportData: what the page and `warmstore top` show: folders on the disk, and the histories of the caches in them."""

import os
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from warmstore.features.keyed.cache_versions import id_name
from warmstore.inventory.cached_folder import CachedFolder
from warmstore.inventory.discovery import find
from warmstore.inventory.folder_states import read_states
from warmstore.pipeline.tiers.tier_quota import SAMPLES
from warmstore.report.cache_history import CacheHistory, RecordedRun
from warmstore.storage.cached_property import cached_property
from warmstore.storage.history import NAME, read_history
from warmstore.storage.registry import COMPILED, FEATURES, FUNCTIONS, PIPELINE

_KINDS = {"features": FEATURES, "pipelines": PIPELINE, "compiled": COMPILED, "functions": FUNCTIONS}  # of records
_LOOKUPS = "runs"  # the folder of the history in a compile cache


@dataclass(frozen=True)
class ReportedCache:
    """A cache with a history. key: short, for references in the page. name: for people. path: of the cache; that of a
    pipeline is the folder of plans. history_path: of the file. folders: what the cache has on the disk."""

    key: str
    kind: str
    name: str
    path: Path
    history_path: Path
    history: CacheHistory
    folders: tuple[CachedFolder, ...]

    @property
    def nbytes(self) -> int:
        """Bytes on the disk."""
        return sum(folder.nbytes for folder in self.folders)


@dataclass(frozen=True)
class ReportData:
    """made: the time, in seconds since 1970. asked: the folders that were named; none for all of this machine. folders:
    all stores and caches, the largest first. caches: those with a history, the last used first. runs: all runs, in the
    order in which they began."""

    made: float
    host: str
    asked: tuple[Path, ...]
    folders: tuple[CachedFolder, ...]
    caches: tuple[ReportedCache, ...]
    runs: tuple[RecordedRun, ...]

    def run_number(self, run: str) -> int:
        """The number of a run in this report, from 1."""
        return self._numbers[run]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {run.id: number for number, run in enumerate(self.runs, 1)}


def collect(asked: Sequence[Path] = (), now: float | None = None) -> ReportData:
    """Read the folders and histories below some folders; without any, those of the machine's registry.

    Raises:
        NotAStore: a folder does not exist.
    """
    folders = sorted(read_states(find(asked)), key=lambda folder: (-folder.nbytes, folder.path))
    found = list(_caches(folders, asked))
    names = Counter(cache.name for cache in found)
    told = [replace(one, name=f"{one.name} in {one.path.parent}") if names[one.name] > 1 else one for one in found]
    caches = sorted(told, key=lambda cache: (-cache.history.last_at, cache.path))
    began: dict[str, RecordedRun] = {}
    for cache in caches:
        for run in cache.history.runs.values():
            known = began.get(run.id)
            if known is None or run.began < known.began:
                began[run.id] = run
    runs = sorted(began.values(), key=lambda run: (run.began, run.id))
    made = time.time() if now is None else now
    return ReportData(made, socket.gethostname(), tuple(asked), tuple(folders), tuple(caches), tuple(runs))


def _caches(folders: Sequence[CachedFolder], asked: Iterable[Path]) -> Iterator[ReportedCache]:
    by_history: dict[Path, list[CachedFolder]] = {}
    for folder in folders:
        by_history.setdefault(_history_of(folder), []).append(folder)
    for path in _histories_below(asked):
        by_history.setdefault(path, [])
    for number, (path, found) in enumerate(by_history.items(), 1):
        records = list(read_history(path))
        if not records:
            continue
        kind = _KINDS.get(records[-1]["kind"], found[0].kind if found else FEATURES)
        place = path.parent.parent if kind == COMPILED else path.parent
        yield ReportedCache(
            f"c{number}", kind, name_of(kind, place), place, path, CacheHistory.of(records), tuple(found)
        )


def name_of(kind: str, path: Path) -> str:
    """What a cache is called: the id and the version of a feature cache, else the name of its folder."""
    if kind == PIPELINE and path.parent.name == SAMPLES:
        return f"{path.parent.parent.name}: {path.name}"
    if kind == FUNCTIONS:
        return unquote(path.name)
    if kind != FEATURES:
        return path.name or str(path)
    name = id_name(path)
    version = path.name.removeprefix(name)
    return unquote(name) + (f" {version[:9]}" if version else "")


def _history_of(folder: CachedFolder) -> Path:
    if folder.kind == COMPILED:
        return folder.path / _LOOKUPS / NAME
    if folder.kind == PIPELINE:
        return folder.path.parent.parent / NAME
    return folder.path / NAME


def _histories_below(folders: Iterable[Path]) -> Iterator[Path]:
    """Histories that belong to no folder on the disk, such as those of plans that keep samples in memory alone."""
    for folder in folders:
        for root, _, names in os.walk(os.path.realpath(folder)):
            if NAME in names:
                yield Path(root) / NAME
