"""CompileRecorder: writes the lookups of a process, and why they missed, into the history of the compile cache."""

from __future__ import annotations

import contextlib
import textwrap
import threading
from collections import Counter
from collections.abc import Iterable, Mapping

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.misses.lookup_log import FOLDER, Lookup
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.storage.history import History, Pace, is_recorded

_MOST_REASONS = 30  # in a record
_LONGEST = 200  # characters of a reason


class CompileRecorder:
    """Counts lookups and artifacts between two records. Safe to use from several threads.

    A compiler looks up a lot at the start of a program and nothing later, so the harvester's thread calls `record` too.

    Args:
        used: The artifacts that this process restored, read or stored, by key. Others add to it.
    """

    def __init__(self, store: ArtifactStore, job: str, used: Mapping[str, Artifact]) -> None:
        self._store = store
        self._history = History(store.folder / FOLDER, "compiled", limit=store.limit, files=store.files)
        self._job = job
        self._used = used
        self._lock = threading.Lock()
        self._pace = Pace()
        self._known: set[str] = set()  # the keys of artifacts that are counted
        self._compiled: list[Artifact] = []
        self._restored: list[Artifact] = []
        self._clear()

    def _clear(self) -> None:
        self._new: list[Artifact] = []
        self._hits = self._misses = self._left = self._made = self._bytes_written = 0
        self._waited = 0.0
        self._evicted = self._store.evicted
        self._reasons: Counter[str] = Counter()

    def leave(self) -> None:
        """In a forked child: replace the lock, which another thread of the parent may have held."""
        self._lock = threading.Lock()

    def looked_up(self, lookup: Lookup) -> None:
        """Count a lookup."""
        with self._lock:
            self._waited += lookup.waited
            if lookup.hit:
                self._hits += 1
            else:
                self._misses += 1
                self._left += lookup.left
                self._reasons[_shortened(lookup.why)] += 1

    def withdrawn(self, lookup: Lookup) -> None:
        """A lookup that was counted is replaced by a later one."""
        with self._lock:
            if lookup.hit:
                self._hits -= self._hits > 0
            else:
                self._misses -= self._misses > 0
                self._reasons -= Counter([_shortened(lookup.why)])

    def made(self, artifact: Artifact) -> None:
        """Count an artifact that was compiled and stored."""
        with self._lock:
            self._known.add(artifact.key)
            self._made += 1
            self._bytes_written += artifact.size
            self._new.append(artifact)

    def record_if_due(self) -> None:
        """`record`, if the last record is old enough."""
        if self._pace.is_due():
            self.record()

    def record(self) -> None:
        """Record what was counted since the last record, if anything."""
        if self._store.read_only or not is_recorded():
            return
        with self._lock:
            self._pace.wrote()
            restored = [artifact for key, artifact in list(self._used.items()) if key not in self._known]
            evicted = self._store.evicted - self._evicted
            if not (self._hits or self._misses or self._made or restored or evicted):
                return
            self._known.update(artifact.key for artifact in restored)
            figures = {
                "job": self._job,
                "hits": self._hits,
                "misses": self._misses,
                "left": self._left or None,
                "reasons": dict(self._reasons.most_common(_MOST_REASONS)) or None,
                "made": self._made or None,
                "restored": len(restored) or None,
                "computed_seconds": _add(self._compiled, self._new),
                "saved_seconds": _add(self._restored, restored),
                "waited_seconds": self._waited or None,
                "bytes_read": sum(artifact.size for artifact in restored) or None,
                "bytes_written": self._bytes_written or None,
                "evicted": evicted or None,
            }
            self._clear()
        with contextlib.suppress(OSError):
            self._history.path.parent.mkdir(exist_ok=True, mode=0o700)
        self._history.append("lookups", **figures)


def _add(known: list[Artifact], artifacts: Iterable[Artifact]) -> float:
    """Add artifacts to known ones, and return by how much their `compile_seconds` grow."""
    before = compile_seconds(known)
    known += artifacts
    return compile_seconds(known) - before


def compile_seconds(artifacts: Iterable[Artifact]) -> float:
    """The seconds in which artifacts were compiled. Those of one graph are compiled at the same time: each was begun
    `seconds` before it was created, and a second in which several were compiled on one host counts once."""
    spans = sorted((artifact.host, artifact.created - artifact.seconds, artifact.created) for artifact in artifacts)
    total, host, until = 0.0, "", 0.0
    for where, began, ended in spans:
        if where != host:
            host, until = where, began
        total += max(ended - max(began, until), 0.0)
        until = max(until, ended)
    return total


def _shortened(reason: str) -> str:
    return textwrap.shorten(reason, _LONGEST, placeholder=" ...")
