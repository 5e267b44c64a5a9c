"""A content-addressed store of compiled artifacts in one folder, within a byte limit that holds at every moment.

Blobs are files named by their BLAKE3. Their metadata is in an SQLite index. Every read is verified. A damaged artifact
is dropped, and its next lookup is a miss.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import platform
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from blake3 import blake3

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.environment import Environment
from warmstore.compiling.rules import choose
from warmstore.compiling.store.artifact_index import Index, check_whole
from warmstore.compiling.store.artifact_quota import LEAST, ArtifactQuota
from warmstore.compiling.store.blobs import Blobs
from warmstore.compiling.store.index_rows import ArtifactRows
from warmstore.compiling.store.shared_index import WAIT, SharedIndex
from warmstore.compiling.store.store_stats import StoreStats, stats_of
from warmstore.compiling.store.transactions import Transactions, as_json
from warmstore.errors import BadArtifact, Closed, Damaged, NoArtifact, ReadOnly, TooLarge, WriteFailed
from warmstore.storage.files import PLAIN, Files, read_whole
from warmstore.storage.humanize import parse_size
from warmstore.storage.lifecycle import Closeable
from warmstore.storage.user_paths import user_path

_SHORTLY = 1.0  # seconds that a reader waits for the lock, to drop a damaged artifact

_log = logging.getLogger("warmstore")


class ArtifactStore(Closeable):
    """Compiled artifacts by key, kind and environment. Threads, processes and forked children may share a store.

    A store in a folder that cannot be written is `read_only`. Changes of such a store raise ReadOnly.

    Args:
        folder: Created with mode 0700 if missing.
        max_size: Bytes, or a string such as "100GB"; at least 8 MiB. Everything in the folder counts, in whole blocks,
            and the bytes that processes have reserved elsewhere. A fuller store is reduced as it is opened; `UNLIMITED`
            evicts nothing.
        eviction: What is evicted first: "lru" unused for longest, "lfu" used least often, "size" largest, "age" oldest.
        files: The file operations.

    Raises:
        ValueError: The limit or eviction is invalid.
        NewerFormat: A newer warmstore made the store.
        NotAStore: The folder has an index.sqlite of another program.
    """

    _has_pending = False

    def __init__(
        self,
        folder: str | os.PathLike[str],
        max_size: int | str = "100GB",
        eviction: str = "lru",
        *,
        files: Files = PLAIN,
    ) -> None:
        self.files = files
        self.folder = user_path(folder)
        self.limit = parse_size(max_size)
        if self.limit < LEAST:
            raise ValueError(f"max_size {max_size!r} is less than the {LEAST:,} bytes that a store needs")
        self._blobs = Blobs(self.folder / "blobs", self.files)
        self._quota = ArtifactQuota(self.folder, self._blobs, self.limit, eviction)
        self._changes = Transactions(self._blobs, self._quota, self._count_evicted)
        self._counting = threading.Lock()
        self._counts: Counter[str] = Counter()
        self.evicted = 0
        """The number of artifacts that this process has evicted."""
        self._rows = ArtifactRows()
        self._index = SharedIndex(self.folder, self._blobs, read_only=not _writable(self.folder))
        if not self.read_only:
            try:
                self._index.ask(self._fits)
            except (WriteFailed, ReadOnly) as error:
                _log.warning("the compile cache %s is only read: %s", self.folder, error)
                self._index.close()
                self._index = SharedIndex(self.folder, self._blobs, read_only=True)
        if self.read_only:
            self._index.ask(lambda db: None)
        self.closed = False
        self._register()

    @property
    def read_only(self) -> bool:
        """Whether nothing can be stored."""
        return self._index.read_only

    # Reading

    def find(self, key: str, kind: str | Sequence[str] | None, environment: Environment) -> Artifact | None:
        """The most specific usable artifact of a key, of one kind, several kinds, or any (None). None on a miss."""
        return self.explain(key, kind, environment)[0]

    def explain(
        self, key: str, kind: str | Sequence[str] | None, environment: Environment
    ) -> tuple[Artifact | None, list[str]]:
        """The artifact that `find` returns, and why each other candidate is not usable. Counts a hit or a miss."""
        kinds = None if kind is None else (kind,) if isinstance(kind, str) else tuple(kind)
        # In a damaged index a key may lead to the intact row of another key.
        rows = [artifact for artifact in self._select("a.key = ?", key) if artifact.key == key]
        candidates = [artifact for artifact in rows if kinds is None or artifact.kind in kinds]
        best, reasons = choose(candidates, environment)
        self.count("hit" if best else "incompatible" if candidates else "miss")
        return best, reasons

    def below(self, path: str, environment: Environment) -> Iterator[tuple[Artifact | None, list[str]]]:
        """For the key `path`, or every key below it if it ends with a slash: the most specific usable artifact, and why
        others are not usable. Nothing is counted."""
        end = path[:-1] + "0" if path.endswith("/") else path + "\0"
        found = self._select("a.key >= ? AND a.key < ?", path, end)
        rows = [artifact for artifact in found if path <= artifact.key < end]
        for _, group in groupby(rows, key=lambda artifact: artifact.key):
            yield choose(group, environment)

    def all(self, job: str | None = None, kind: str | None = None) -> list[Artifact]:
        """All artifacts, or those of a job and kind, sorted by key."""
        wanted = {"a.key IN (SELECT key FROM jobs WHERE job = ?)": job, "a.kind = ?": kind}
        conditions = {condition: value for condition, value in wanted.items() if value is not None}
        return self._select(" AND ".join(conditions) or "1", *conditions.values())

    def newest(self, kind: str, below: str, count: int, *, job: str | None = None) -> list[Artifact]:
        """The `count` newest artifacts of a kind whose key starts with `below`, which ends with a slash; of one job or
        of any."""
        condition, values = "a.kind = ? AND a.key >= ? AND a.key < ?", [kind, below, below[:-1] + "0"]
        if job is not None:
            condition, values = f"{condition} AND a.key IN (SELECT key FROM jobs WHERE job = ?)", [*values, job]
        order = f"a.created DESC LIMIT {count}"
        return self._opened().ask(lambda db: self._rows.select(db, condition, tuple(values), order))

    def job(self, name: str) -> list[str]:
        """The keys that a job used, evicted ones included. Empty for an unknown job."""
        rows = self._opened().ask(
            lambda db: db.execute("SELECT key FROM jobs WHERE job = ? ORDER BY key", (name,)).fetchall()
        )
        return [key for (key,) in rows]

    def read(self, artifact: Artifact) -> bytes:
        """The bytes of an artifact, verified. Raises NoArtifact if it was evicted, and Damaged if its bytes changed;
        then it is dropped and a miss from now on."""
        self._opened()
        what, path = f"the artifact {artifact.key!r} ({artifact.kind})", self._blobs.path(artifact.digest)
        try:
            data = self._blobs.read(artifact.digest)
        except FileNotFoundError:
            self._drop(artifact.digest)
            raise NoArtifact(f"{what} was evicted from {self.folder}") from None
        except OSError as error:
            raise Damaged(error.errno, f"{what} cannot be read: {error.strerror}", str(path)) from error
        if data is None:
            self.count("damaged")
            self._drop(artifact.digest)
            raise Damaged(errno.EIO, f"{what} was damaged and is dropped; it will be compiled again", str(path))
        return data

    def stats(self) -> StoreStats:
        """The content of the store, and the counters."""
        index = self._opened()
        with self._counting:
            unwritten = Counter(self._counts)
        return index.ask(lambda db: stats_of(db, self.folder, self._quota, unwritten, read_only=self.read_only))

    # Changing

    def put(
        self,
        key: str,
        kind: str,
        data: bytes | Path,
        *,
        environment: Environment,
        seconds: float = 0.0,
        job: str | None = None,
        requirements: Mapping[str, Any] | None = None,
    ) -> Artifact:
        """Store an artifact. Replaces the artifact with the same key, kind, environment and requirements.

        Args:
            key: Identifies what was compiled.
            kind: The form of the result, one of `rules.KINDS` or another name.
            data: The bytes, or a file with the bytes.
            environment: Where it was made.
            seconds: The time that compiling took.
            job: A job that uses it.
            requirements: See `Artifact`; values that JSON has.

        Raises:
            TooLarge: It does not fit into an empty store.
            WriteFailed: The disk refused, or another process held the store for too long. Nothing was stored.
            ReadOnly: The folder cannot be written.
            BadArtifact: The requirements cannot be written as JSON.
        """
        self._opened()
        content = read_whole(self.files, data) if isinstance(data, Path) else bytes(data)
        try:
            wanted = as_json(requirements or {})
        except (TypeError, ValueError) as error:
            raise BadArtifact(f"the requirements of {key!r} cannot be written as JSON: {error}") from error
        digest, now, host = blake3(content).hexdigest(), time.time(), platform.node()
        row = (key, kind, environment.digest, wanted, digest, len(content), now, host, float(seconds))
        self._index.change(lambda index: self._changes.put(index, row, content, environment, job))
        self.count("put")
        return Artifact(
            key, kind, digest, len(content), environment, json.loads(wanted), now, host, float(seconds), 0, now
        )

    def adopt(self, artifacts: Sequence[Artifact], jobs: Mapping[str, Sequence[str]], name: str) -> None:
        """Add artifacts whose blobs were staged and verified, in one change. Releases the reservation of `name`."""
        self._opened().change(lambda index: self._changes.adopt(index, artifacts, jobs, name))

    def take(self, found: Sequence[tuple[Artifact, bytes]], job: str | None = None) -> None:
        """Store a few artifacts of other machines, with their verified bytes and unchanged metadata. Raises as
        `put`."""
        self._opened().change(lambda index: self._changes.take(index, found, job))

    def used(self, artifacts: Iterable[Artifact]) -> None:
        """Count one use of each artifact now. Does nothing in a read-only store."""
        self._opened()
        if self.read_only:
            return
        now = time.time()
        counts = Counter((artifact.key, artifact.kind, artifact.digest) for artifact in artifacts)
        uses = [(count, now, *row) for row, count in counts.items()]
        self._index.change(lambda index: self._changes.count_uses(index, uses))
        self._flush_counts(WAIT)

    def record_job(self, job: str, keys: Iterable[str]) -> None:
        """Record that a job uses these keys, in the store or not. Keys unused for 90 days are forgotten."""
        used = list(keys)
        self._opened().change(lambda index: self._changes.record_job(index, job, used))

    def reserve(self, name: str, size: int, wait: float = WAIT) -> None:
        """Reserve `size` bytes outside of this folder, which count towards the limit. Replaces the reservation of the
        same name; 0 removes it. Raises TooLarge if there is no room, then the former reservation stays; and WriteFailed
        if the disk refuses, or another process holds the store for more than `wait` seconds."""
        self._opened().change(lambda index: self._changes.reserve(index, name, size), wait)

    def release(self, name: str, wait: float = WAIT) -> None:
        """Remove the reservation of a name. Raises WriteFailed as `reserve` does."""
        self.reserve(name, 0, wait)

    def reserved(self) -> list[str]:
        """The names of all reservations."""
        return self._opened().ask(lambda db: [name for (name,) in db.execute("SELECT name FROM claims")])

    def count(self, name: str, times: int = 1) -> None:
        """Add to a counter of `stats`. Counters are written with the next uses, or at `close`."""
        with self._counting:
            self._counts[name] += times

    def _count_evicted(self, number: int) -> None:
        self.count("evicted", number)
        self.evicted += number

    def clear(self, *, job: str | None = None, kind: str | None = None, unused_for: float | None = None) -> int:
        """Remove all artifacts, or those of a job and kind that were unused for so many seconds. Returns their number.

        Artifacts that a job shares with other jobs are removed too. The job forgets their keys; without a kind
        and a time, all of its keys.
        """
        if job is None and kind is None and unused_for is None:
            count = self._opened().change(self._changes.forget_everything)
            with self._counting:
                self._counts.clear()
            return count
        last = math.inf if unused_for is None else time.time() - unused_for

        def forget(index: Index) -> int:
            unused = [artifact for artifact in self.all(job, kind) if artifact.last_used <= last]
            if job is None:
                return self._changes.forget(index, unused)
            whole = kind is None and unused_for is None
            keys = self.job(job) if whole else [artifact.key for artifact in unused]
            return self._changes.forget(index, unused, [(job, key) for key in keys])

        return self._opened().change(forget)

    def remove(self, artifacts: Sequence[Artifact]) -> int:
        """Remove these artifacts, except those that were used, replaced or removed since they were read. Returns the
        number of removed ones."""
        return self._opened().change(lambda index: self._changes.forget(index, artifacts))

    def verify(self) -> list[str]:
        """Read every blob. Drop damaged and missing ones, and files without an artifact. Returns a text for each.

        A damaged index is rebuilt.
        """
        index, dropped = self._opened(), []
        if not self.read_only:
            index.ask(check_whole)
        if rebuilt := index.take_rebuilt():  # by this call, or when the store was opened
            self.count("rebuilt", rebuilt)
            dropped.append(
                "the index was damaged, and is rebuilt of its valid rows; what it has lost is compiled again"
            )
        for artifact in self.all():
            try:
                self.read(artifact)
            except (Damaged, NoArtifact) as error:
                dropped.append(str(error))
        if not self.read_only and (swept := self._index.change(self._changes.sweep)):
            dropped.append(f"{swept} files that belonged to no artifact were removed")
        return dropped

    def close(self) -> None:
        """Write the counters and close the index. Safe to call twice."""
        if self.closed:
            return
        if not self.read_only:
            with suppress(WriteFailed, ReadOnly):
                self._flush_counts(_SHORTLY)
        self.closed = True
        self._unregister()
        self._index.close()

    def _after_fork(self) -> None:
        self._counting = threading.Lock()
        self._counts.clear()
        self._index.after_fork()

    def _opened(self) -> SharedIndex:
        """The index. Raises Closed after `close`."""
        if self.closed:
            raise Closed(f"the artifact store {self.folder} is closed")
        return self._index

    def _fits(self, db: sqlite3.Connection) -> None:
        """Enforce the limit at the start: an earlier process may have used a higher one."""
        if not self._quota.is_right(db):
            self._index.change(self._quota.recount)
        if self._quota.is_over(db):
            with suppress(TooLarge):  # because of reservations; then nothing is stored, and artifacts can be read
                self._index.change(lambda index: self._changes.make_room(index, 0, "the store"))

    def _select(self, condition: str, *values: object) -> list[Artifact]:
        return self._opened().ask(lambda db: self._rows.select(db, condition, values))

    def _drop(self, digest: str) -> None:
        """Remove a missing or damaged blob from the index, with its artifacts."""
        with suppress(WriteFailed, ReadOnly):
            self._index.change(lambda index: self._changes.drop(index, digest), _SHORTLY)

    def _flush_counts(self, wait: float) -> None:
        with self._counting:
            self._counts["rebuilt"] += self._index.take_rebuilt()
            counts, self._counts = +self._counts, Counter()
        if counts:
            self._index.change(lambda index: self._changes.add_counts(index, counts), wait)


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)
