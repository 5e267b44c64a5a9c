"""The use of caches now, for `warmstore top`: what was recorded in the last minutes, by cache."""

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from warmstore.inventory.cached_folder import CachedFolder
from warmstore.report.cache_history import CacheHistory, number
from warmstore.report.report_data import ReportedCache, collect
from warmstore.storage.history import read_history

WINDOW = 900.0
"""Seconds before now whose records count as the present. Running programs record at least every ten minutes."""


@dataclass(frozen=True)
class CacheUse:
    """One cache at one time.

    entries: samples or artifacts; None if unknown. nbytes: allocated on the disk. writers: processes that recorded
    something in the window. hits, misses, samples_per_second, bytes_read: in the window. saved_seconds: in the window.
    total_hits, total_misses, total_saved: over all records. at: of the last record, seconds since 1970. in_use: whether
    a live process holds it.
    """

    kind: str
    name: str
    path: Path
    entries: int | None
    nbytes: int
    in_use: bool
    processes: int
    hits: int
    misses: int
    samples_per_second: float
    bytes_read: int
    saved_seconds: float
    total_hits: int
    total_misses: int
    total_saved: float
    at: float

    @property
    def hit_rate(self) -> float | None:
        """Hits among the lookups of the window, or else of all records; None without any."""
        hits, misses = (self.hits, self.misses) if self.hits + self.misses else (self.total_hits, self.total_misses)
        return hits / (hits + misses) if hits + misses else None


def uses(asked: Sequence[Path], now: float) -> list[CacheUse]:
    """The caches below some folders, or all of this machine: those in use first.

    Raises:
        NotAStore: a folder does not exist.
    """
    data = collect(asked, now)
    with_history = {folder.path for cache in data.caches for folder in cache.folders}
    found = [_use(cache, now) for cache in data.caches]
    found += [_unused(folder) for folder in data.folders if folder.path not in with_history and folder.kind != "store"]
    return sorted(found, key=lambda use: (not use.in_use and not use.processes, -use.at, use.name))


def _use(cache: ReportedCache, now: float) -> CacheUse:
    recent = [record for record in read_history(cache.history_path) if abs(now - number(record, "at")) <= WINDOW]
    history = CacheHistory.of(recent)
    entries = [folder.entries for folder in cache.folders]
    known = [each for each in entries if each is not None]
    return CacheUse(
        kind=cache.kind,
        name=cache.name,
        path=cache.path,
        entries=sum(known) if known else cache.history.entries,
        nbytes=cache.nbytes,
        in_use=any(folder.in_use for folder in cache.folders),
        processes=len({record["run"] for record in recent if _is_alive(record)}),
        hits=int(history.sum("hits")),
        misses=int(history.sum("misses")),
        samples_per_second=sum(_rates(recent)),
        bytes_read=int(history.sum("bytes_read")),
        saved_seconds=history.sum("saved_seconds"),
        total_hits=int(cache.history.sum("hits")),
        total_misses=int(cache.history.sum("misses")),
        total_saved=cache.history.sum("saved_seconds"),
        at=cache.history.last_at,
    )


def _is_alive(record: Mapping[str, Any]) -> bool:
    """Whether the process of a record may still run: on this host it is looked for."""
    if record.get("host") != socket.gethostname():
        return True
    pid = number(record, "pid")
    return 0 < pid < 1 << 31 and psutil.pid_exists(int(pid))


def _rates(records: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    """Samples a second of each process, by its last record with lookups."""
    last = {
        record["run"]: record
        for record in records
        if record["event"] in ("use", "epoch", "part") and number(record, "seconds") > 0
    }
    for record in filter(_is_alive, last.values()):
        yield (number(record, "hits") + number(record, "misses")) / number(record, "seconds")


def _unused(folder: CachedFolder) -> CacheUse:
    from warmstore.report.report_data import name_of

    return CacheUse(
        folder.kind, name_of(folder.kind, folder.path), folder.path, folder.entries, folder.nbytes, folder.in_use,
        0, 0, 0, 0.0, 0, 0.0, folder.hits or 0, folder.misses or 0, 0.0, 0.0,
    )  # fmt: skip
