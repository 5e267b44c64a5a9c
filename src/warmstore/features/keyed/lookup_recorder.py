"""LookupRecorder: counts what one process looks up in a version of a cache, and writes it into the cache's history.

A cache sees lookups and no epochs. An epoch ends here when the run has looked up as many samples as the cache has
entries, or its share of them with several ranks, and finds a sample again. By this rule, a run that reads a part of a
cache has longer epochs. Records are also written in between, at growing intervals, and by `close`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from warmstore.features.keyed.usage_counters import UsageCounters
from warmstore.records.format.manifest import holds_store
from warmstore.storage.history import History, Pace


class Content(Protocol):
    """The cache at the time of a record; `OpenVersion` implements it."""

    @property
    def writes(self) -> bool:
        """Whether this process writes to the cache."""

    @property
    def entries(self) -> int:
        """Samples in the cache, pending ones too."""

    @property
    def nbytes(self) -> int:
        """Bytes on the disk."""

    @property
    def cost(self) -> UsageCounters:
        """The usage of all runs."""


@dataclass
class _Counts:
    """What was counted since the last record."""

    hits: int = 0
    misses: int = 0
    computed: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    evicted_files: int = 0
    evicted_bytes: int = 0
    damaged: int = 0
    computed_seconds: float = 0.0
    read_seconds: float = 0.0


class LookupRecorder:
    """The counts of one version. Concurrent threads may lose some.

    Args:
        folder: of the version.
        limit: the limit of the cache in bytes, or None.
    """

    def __init__(self, folder: Path, *, limit: int | None) -> None:
        self._history = History(folder, "features", limit=limit)
        self._stale: set[str] = set()
        self.after_fork()

    def after_fork(self) -> None:
        """Start anew. In a forked child, the counts are the parent's."""
        self._counts = _Counts()
        self._waiting: list[dict[str, Any]] = []  # records
        self._pace = Pace()
        self._lock = threading.Lock()
        self._began: float | None = None  # the time of the first lookup since the last record
        self._ended = 0.0  # the time of the end of the last lookup or computation
        self._epoch = self._first_epoch = -1  # now, and at that lookup; -1 before the first one
        self._looked_up = 0  # in this epoch
        self._share = 0  # of the entries that this process looks up in an epoch, when they were counted last

    def move(self, content: Content, folder: Path) -> None:
        """The version gets another folder."""
        self.record(content)
        self._history.move(folder)

    def looked_up(self, content: Content, hits: int, misses: int, nbytes: int, began: float) -> None:
        """Count a lookup that began at a time of `time.perf_counter`. nbytes: of the values that were found."""
        if hits and self._looked_up + hits > self._share:
            self._end_epoch(content, hits, began)
        counts = self._counts
        if self._began is None:
            if self._epoch < 0:
                self._epoch = self._history.begin_epoch()
            self._began, self._first_epoch = began, self._epoch
        counts.hits += hits
        counts.misses += misses
        counts.bytes_read += nbytes
        self._ended = time.perf_counter()
        counts.read_seconds += self._ended - began
        self._looked_up += hits + misses
        if self._ended >= self._pace.due:
            self.record(content)

    def computed(self, seconds: float, samples: int) -> None:
        """Count samples that were computed."""
        self._counts.computed += samples
        self._counts.computed_seconds += seconds
        self._ended = time.perf_counter()

    def wrote(self, nbytes: int) -> None:
        """Count bytes of outputs that were committed, without compression."""
        self._counts.bytes_written += nbytes

    def evicted(self, count: int, nbytes: int) -> None:
        """Count files that this process evicted to make room."""
        self._counts.evicted_files += count
        self._counts.evicted_bytes += nbytes

    def damaged(self, count: int) -> None:
        """Count rows that did not match their checksums."""
        self._counts.damaged += count

    def stale(self, content: Content, fingerprint: str, changed: str) -> None:
        """Record once that the cache refused a module, with what differs."""
        if fingerprint not in self._stale and content.writes:
            self._stale.add(fingerprint)
            self._history.append("stale", changed=changed)

    def flushed(self, content: Content) -> None:
        """The program, or a SIGTERM, asks for a flush: a record is written, unless the last one is recent."""
        if self._pace.may_end():
            self.record(content)

    def record(self, content: Content, until: float | None = None) -> None:
        """Record what was counted since the last record, if anything. Before the store is created, records wait: a
        folder that is not empty could not become a store.

        Args:
            until: the end of the recorded time; that of the last lookup or computation if None.
        """
        with self._lock, contextlib.suppress(OSError):
            counts, self._counts = self._counts, _Counts()
            began, self._began = self._began, None
            self._pace.wrote()
            if counts != _Counts():
                first = self._epoch if began is None else self._first_epoch
                if first < 0:  # samples were put, and none was looked up
                    first = self._history.coming_epoch()
                epochs = max(self._epoch - first, 0) + 1
                self._waiting.append(
                    {
                        "at": round(time.time(), 3),
                        "epoch": first,
                        "epochs": epochs if epochs > 1 else None,
                        "seconds": None if began is None else (until or self._ended) - began,
                        "saved_seconds": counts.hits * content.cost.in_all().per_sample,
                        **{name: figure or None for name, figure in asdict(counts).items()},
                        "entries": content.entries,
                        "bytes": content.nbytes,
                    }
                )
            if not content.writes:
                self._waiting.clear()
            elif holds_store(self._history.path.parent):
                waiting, self._waiting = self._waiting, []
                for figures in waiting:
                    self._history.append("use", **figures)

    def _end_epoch(self, content: Content, hits: int, began: float) -> None:
        """End the epoch before a lookup that began now, if the cache has no more entries to find in it."""
        self._share = -(-content.entries // _world_size())
        if self._looked_up and self._looked_up + hits > self._share:
            if self._pace.may_end():
                self.record(content, began)
            self._epoch = self._history.begin_epoch()
            self._looked_up = 0


def _world_size() -> int:
    """The number of ranks, as torchrun sets it."""
    size = os.environ.get("WORLD_SIZE", "")
    return max(int(size), 1) if size.isdecimal() else 1
