"""A content-addressed store of compiled artifacts in one folder, within a byte limit that holds at every moment.

Blobs are files named by their BLAKE3; what is known of them is in SQLite. One process changes a store at a time, any
number read. Room is made and booked before a blob is written, and booked space is given back only after its file is
gone, so that a process killed at any moment leaves a store that counts too much rather than too little.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import platform
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from blake3 import blake3
from filelock import FileLock, Timeout

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.environment import Environment
from warmstore.compiling.index import BLOCK, Index, is_damage, on_disk, seal, sealed
from warmstore.compiling.policies import order_of
from warmstore.compiling.rules import choose
from warmstore.errors import BadArtifact, Closed, Damaged, NoArtifact, ReadOnly, StorageFailed, TooLarge
from warmstore.owner import Owner
from warmstore.sizes import parse_size

LEAST = 4 << 20
"""The smallest limit: the index needs some of it."""

_SLACK = 1 << 20  # what the index may grow by in one change, its WAL included
_WAIT = 30.0  # seconds for the lock of a store before a change is given up
_AT_ONCE = 8  # artifacts evicted in one transaction

_log = logging.getLogger("warmstore")
_T = TypeVar("_T")


@dataclass(frozen=True)
class StoreStats:
    """What a store holds and how it fares. `size` counts everything in its folder, and `claimed` what is elsewhere.

    `counters` are sums since the store was made: "hit", "miss", "incompatible", "damaged", "evicted", "put".
    `seconds_saved` is what the hits would have cost to make again.
    """

    folder: Path
    limit: int
    size: int
    claimed: int
    artifacts: int
    blobs: int
    hits: int
    seconds_saved: float
    kinds: Mapping[str, tuple[int, int]]
    jobs: Mapping[str, int]
    counters: Mapping[str, int]
    read_only: bool


class ArtifactStore(Owner):
    """Compiled artifacts by key, kind and environment. Threads and processes may share it; forked children too.

    Args:
        folder: where it lies; made when it is not there.
        max_size: bytes, or a string such as "100GB". Everything in the folder counts, in whole blocks, and what others
            claimed. At least 4 MiB.
        eviction: what goes first when it is full: "lru" unused for longest, "lfu" used least often, "size" largest,
            "age" oldest.

    A folder that cannot be written, or not made, is a store to read from: `read_only` is True, changes raise ReadOnly.

    Raises:
        ValueError: a limit or an eviction that makes no sense.
        NewerFormat: a newer warmstore made the store.
        StorageFailed: the folder can be neither written nor read.
    """

    def __init__(self, folder: str | os.PathLike[str], max_size: int | str = "100GB", eviction: str = "lru") -> None:
        self.folder = Path(folder).expanduser()
        self.limit = parse_size(max_size)
        if self.limit < LEAST:
            raise ValueError(f"max_size {max_size!r} is less than the {LEAST:,} bytes that a store needs")
        self._order = order_of(eviction)
        self._mutex = threading.RLock()
        self._counts: Counter[str] = Counter()
        self.read_only = not _writable(self.folder)
        self._file_lock = FileLock(self.folder / "lock", thread_local=False)
        self._index = Index(self.folder, read_only=self.read_only)
        self.closed = False
        self.own()
        if self.read_only:
            self._reading(lambda connection: None)
        else:
            with self._writing():
                self._make_room(0)

    # -- reading

    def find(self, key: str, kind: str | Sequence[str] | None, environment: Environment) -> Artifact | None:
        """The most specific artifact of a key that may be used in an environment; None is a counted miss.

        `kind` is one kind, several, or None for any. `explain` says why there was none.
        """
        return self.explain(key, kind, environment)[0]

    def explain(
        self, key: str, kind: str | Sequence[str] | None, environment: Environment
    ) -> tuple[Artifact | None, list[str]]:
        """What `find` finds, and why each other candidate may not be used. No candidates, no reasons."""
        kinds = None if kind is None else (kind,) if isinstance(kind, str) else tuple(kind)
        candidates = [one for one in self._rows("a.key = ?", (key,)) if kinds is None or one.kind in kinds]
        best, reasons = choose(candidates, environment)
        self.count("hit" if best else "incompatible" if candidates else "miss")
        return best, reasons

    def below(self, path: str, environment: Environment) -> Iterator[tuple[Artifact | None, list[str]]]:
        """What `explain` finds for every key that is `path`, or that starts with it where it ends with a slash."""
        until = path[:-1] + "0" if path.endswith("/") else path + "\0"
        candidates = self._rows("a.key >= ? AND a.key < ?", (path, until))
        for _, group in groupby(candidates, key=lambda one: one.key):
            yield choose(group, environment)

    def all(self, job: str | None = None, kind: str | None = None) -> list[Artifact]:
        """Every artifact, or those of a job, or of a kind; by key."""
        conditions, values = ["1"], []
        if job is not None:
            conditions.append("a.key IN (SELECT key FROM jobs WHERE job = ?)")
            values.append(job)
        if kind is not None:
            conditions.append("a.kind = ?")
            values.append(kind)
        return self._rows(" AND ".join(conditions), values)

    def read(self, artifact: Artifact) -> bytes:
        """The bytes of an artifact, verified.

        Raises:
            Damaged: they are not what was put. The artifact was dropped: it is a miss from now on.
            NoArtifact: it was evicted meanwhile.
        """
        path = self._blob(artifact.digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            self._drop(artifact.digest)
            raise NoArtifact(
                f"the artifact {artifact.key!r} ({artifact.kind}) was evicted from {self.folder}"
            ) from None
        except OSError as error:
            raise Damaged(error.errno, f"the artifact {artifact.key!r} cannot be read: {error}", str(path)) from error
        if blake3(data).hexdigest() != artifact.digest:
            self.count("damaged")
            self._drop(artifact.digest)
            raise Damaged(
                errno.EIO, f"the artifact {artifact.key!r} ({artifact.kind}) is damaged and was dropped", str(path)
            )
        return data

    def copy_to(self, artifact: Artifact, path: str | os.PathLike[str]) -> None:
        """Make a file of the artifact's bytes, which are verified before anything is seen at `path`.

        Raises:
            Damaged, NoArtifact: as `read`.
            OSError: the file cannot be written.
        """
        data = self.read(artifact)
        path = Path(path)
        whole = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            try:
                whole.write_bytes(data)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                whole.write_bytes(data)
            whole.replace(path)
        except BaseException:
            whole.unlink(missing_ok=True)
            raise

    def job(self, name: str) -> list[str]:
        """The keys that a job used, whether they are still here or not. Empty for a job nobody recorded."""
        rows = self._reading(
            lambda db: db.execute("SELECT key FROM jobs WHERE job = ? ORDER BY key", (name,)).fetchall()
        )
        return [key for (key,) in rows]

    # -- changing

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
        """Store an artifact, in place of what the same environment stored for that key, kind and requirements.

        Args:
            key: what was compiled.
            kind: into what, one of `rules.KINDS` or a name of one's own.
            data: its bytes, or the file that has them.
            environment: what it was made in.
            seconds: what it took to make.
            job: a job that uses it.
            requirements: values for fields of the environment that it needs instead of those it was made in, as JSON.

        Raises:
            TooLarge: the limit has no room for it, were it alone.
            StorageFailed: the disk refused, or another process held the store too long. Nothing was stored.
            ReadOnly: the folder cannot be written.
            BadArtifact: requirements that JSON cannot say.
        """
        content = data.read_bytes() if isinstance(data, Path) else bytes(data)
        try:
            wanted = json.dumps(dict(requirements or {}), sort_keys=True, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise BadArtifact(f"the requirements of {key!r} cannot be written as JSON: {error}") from error
        digest = blake3(content).hexdigest()
        with self._writing():
            self._store_blob(digest, content, key)
            now = time.time()
            with self._index.transaction() as db:
                db.execute("UPDATE blobs SET ready = 1 WHERE digest = ? AND NOT ready", (digest,))
                db.execute(
                    "INSERT OR IGNORE INTO environments VALUES (?, ?)", (environment.digest, environment.to_json())
                )
                self._insert(db, key, kind, environment.digest, wanted, digest, len(content), now, seconds)
                if job is not None:
                    db.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", (job, key, now))
            self.count("put")
        return Artifact(
            key, kind, digest, len(content), environment, json.loads(wanted), now, platform.node(), seconds, 0, now
        )

    def used(self, artifacts: Iterable[Artifact]) -> None:
        """Count one use now of each artifact, in few changes. Nothing happens in a store that cannot be written."""
        if self.read_only:
            return
        uses = Counter((one.key, one.kind, one.digest) for one in artifacts)
        now = time.time()
        items = list(uses.items())
        with self._writing():
            for first in range(0, len(items), 256):
                with self._index.transaction() as db:
                    db.executemany(
                        "UPDATE uses SET hits = hits + ?, last_used = max(last_used, ?) WHERE id IN "
                        "(SELECT id FROM artifacts WHERE key = ? AND kind = ? AND digest = ?)",
                        [(count, now, *which) for which, count in items[first : first + 256]],
                    )
            self._flush_counts()

    def record_job(self, job: str, keys: Iterable[str]) -> None:
        """Remember that a job uses these keys, whether they are in the store or not."""
        now = time.time()
        with self._writing(), self._index.transaction() as db:
            db.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", [(job, key, now) for key in keys])

    def claim(self, name: str, size: int) -> None:
        """Say that `size` bytes outside of this folder count too, until the same name claims another size; 0 is none.

        Raises:
            TooLarge: the claims alone are over the limit; what was claimed before stays.
        """
        with self._writing():
            self._make_room(size, name, without=name)
            with self._index.transaction() as db:
                db.execute("INSERT OR REPLACE INTO claims VALUES (?, ?)", (name, on_disk(size)))

    def count(self, name: str, times: int = 1) -> None:
        """Add to a counter of `stats`; written with the next use, or at `close`."""
        with self._mutex:
            self._counts[name] += times

    def clear(self, *, job: str | None = None, kind: str | None = None, unused_for: float | None = None) -> int:
        """Remove everything, or what is of a job, of a kind, unused for so many seconds. Returns how many artifacts.

        What a job shares with others goes with it; the others compile it again.
        """
        with self._writing():
            if job is None and kind is None and unused_for is None:
                return self._clear_all()
            until = time.time() if unused_for is None else time.time() - unused_for
            kept = {one.key for one in self.all(job, kind) if one.last_used <= until}
            ids = [
                number
                for number, key, own in self._index.connection().execute("SELECT id, key, kind FROM artifacts")
                if key in kept and (kind is None or own == kind)
            ]
            for first in range(0, len(ids), _AT_ONCE):
                self._evict(ids[first : first + _AT_ONCE])
            if job is not None:
                with self._index.transaction() as db:
                    db.execute("DELETE FROM jobs WHERE job = ?", (job,))
            return len(ids)

    def stats(self) -> StoreStats:
        """What is in the store, and the counters."""

        def ask(db: sqlite3.Connection) -> StoreStats:
            hits, saved = db.execute(
                "SELECT coalesce(sum(hits), 0), coalesce(sum(hits * seconds), 0) FROM artifacts JOIN uses USING (id)"
            ).fetchone()
            kinds = db.execute("SELECT kind, count(*), sum(size) FROM artifacts GROUP BY kind ORDER BY kind").fetchall()
            counters = Counter(dict(db.execute("SELECT name, value FROM counters").fetchall()))
            counters.update(self._counts)
            return StoreStats(
                folder=self.folder,
                limit=self.limit,
                size=self._size(db),
                claimed=self._claimed(db),
                artifacts=sum(count for _, count, _ in kinds),
                blobs=db.execute("SELECT blobs FROM totals").fetchone()[0],
                hits=hits,
                seconds_saved=saved,
                kinds={kind: (count, size) for kind, count, size in kinds},
                jobs=dict(db.execute("SELECT job, count(*) FROM jobs GROUP BY job ORDER BY job").fetchall()),
                counters=dict(counters),
                read_only=self.read_only,
            )

        return self._reading(ask)

    def close(self) -> None:
        """Write the counters and let go of the files. Closing twice is fine."""
        if self.closed:
            return
        if self._counts and not self.read_only:
            with suppress(StorageFailed), self._writing():
                self._flush_counts()
        self.closed = True
        self.disown()
        self._index.close()

    def _after_fork(self) -> None:
        self._mutex = threading.RLock()
        self._file_lock = FileLock(self.folder / "lock", thread_local=False)
        self._counts.clear()
        self._index.forget()

    # -- rows

    def _rows(self, condition: str, values: Sequence[object]) -> list[Artifact]:
        statement = (
            "SELECT a.*, e.record, u.hits, u.last_used FROM artifacts a "
            "JOIN environments e ON e.digest = a.environment "
            "JOIN uses u ON u.id = a.id JOIN blobs b ON b.digest = a.digest "
            f"WHERE b.ready AND {condition} ORDER BY a.key, a.kind, a.created"
        )

        def ask(db: sqlite3.Connection) -> list[Artifact]:
            cursor = db.execute(statement, values)
            cursor.row_factory = sqlite3.Row
            return [artifact for row in cursor.fetchall() if (artifact := _artifact(row)) is not None]

        return self._reading(ask)

    def _insert(
        self, db: sqlite3.Connection, key: str, kind: str, environment: str, requirements: str, digest: str,
        size: int, created: float, seconds: float, host: str | None = None,
    ) -> None:  # fmt: skip
        row = (key, kind, environment, requirements)
        for number, old in db.execute(
            "SELECT id, digest FROM artifacts WHERE key = ? AND kind = ? AND environment = ? AND requirements = ?", row
        ).fetchall():
            db.execute("DELETE FROM artifacts WHERE id = ?", (number,))
            db.execute("DELETE FROM uses WHERE id = ?", (number,))
            if old != digest:
                self._remove_blob_if_unused(db, old)
        seconds = float(seconds)
        host = platform.node() if host is None else host
        whole = seal(key, kind, environment, requirements, digest, size, seconds)
        number = db.execute(
            "INSERT INTO artifacts VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, digest, size, created, host, seconds, whole),
        ).lastrowid
        db.execute("INSERT OR REPLACE INTO uses VALUES (?, 0, ?)", (number, created))

    # -- room

    def _make_room(self, size: int, what: str = "", *, without: str | None = None) -> None:
        """Evict until `size` more bytes fit. Called under the lock."""
        db = self._index.connection()
        claimed = self._claimed(db, without)
        if on_disk(size) + _SLACK + claimed > self.limit:
            raise TooLarge(
                f"{what!r} takes {size:,} bytes, and {self.folder} may have {self.limit:,} in all; raise max_size"
            )
        limit = self.limit - on_disk(size) - _SLACK - claimed
        if self._size(db) <= limit:
            return
        self._index.aside.unlink(missing_ok=True)
        evicted = 0
        while self._size(db) > limit:
            ids = [
                number
                for (number,) in db.execute(
                    f"SELECT id FROM artifacts JOIN uses USING (id) ORDER BY {self._order} LIMIT {_AT_ONCE}"
                )
            ]
            if not ids:
                db.execute("PRAGMA incremental_vacuum")
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                break
            self._evict(ids)
            evicted += len(ids)
        self.count("evicted", evicted)

    def _size(self, db: sqlite3.Connection) -> int:
        """Bytes of everything in the folder, in whole blocks."""
        blobs, size = map(int, db.execute("SELECT blobs, size FROM totals").fetchone())
        folders = 2 + min(blobs, 256)
        return size + self._index.size() + folders * BLOCK + BLOCK

    def _claimed(self, db: sqlite3.Connection, without: str | None = None) -> int:
        return int(
            db.execute("SELECT coalesce(sum(size), 0) FROM claims WHERE name IS NOT ?", (without,)).fetchone()[0]
        )

    def _evict(self, ids: Sequence[int]) -> None:
        marks = ",".join("?" * len(ids))
        with self._index.transaction() as db:
            digests = {one for (one,) in db.execute(f"SELECT digest FROM artifacts WHERE id IN ({marks})", ids)}
            db.execute(f"DELETE FROM artifacts WHERE id IN ({marks})", ids)
            db.execute(f"DELETE FROM uses WHERE id IN ({marks})", ids)
            for digest in digests:
                self._remove_blob_if_unused(db, digest)

    def _remove_blob_if_unused(self, db: sqlite3.Connection, digest: str) -> None:
        # The file goes before its row is committed away: killed in between, the store counts it still.
        if not db.execute("SELECT 1 FROM artifacts WHERE digest = ? LIMIT 1", (digest,)).fetchone():
            self._blob(digest).unlink(missing_ok=True)
            db.execute("DELETE FROM blobs WHERE digest = ?", (digest,))

    def _clear_all(self) -> int:
        db = self._index.connection()
        count: int = db.execute("SELECT count(*) FROM artifacts").fetchone()[0]
        shutil.rmtree(self.folder / "blobs", ignore_errors=True)
        with self._index.transaction():
            for table in ("artifacts", "uses", "blobs", "environments", "jobs", "counters"):
                db.execute(f"DELETE FROM {table}")
            db.execute("UPDATE totals SET blobs = 0, size = 0")
        self._counts.clear()
        self._index.aside.unlink(missing_ok=True)
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return count

    # -- blobs

    def _blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest[:2] / digest[2:]

    def _store_blob(self, digest: str, content: bytes, what: str) -> None:
        """Have the blob's file whole on the disk, its room booked before. Called under the lock."""
        path = self._blob(digest)
        db = self._index.connection()
        known = db.execute("SELECT 1 FROM blobs WHERE digest = ?", (digest,)).fetchone()
        if known and path.exists() and path.stat().st_size == len(content):
            return
        if not known:
            self._make_room(len(content), what)
            with self._index.transaction():
                db.execute("INSERT INTO blobs VALUES (?, ?, 0)", (digest, len(content)))
        whole = path.with_name(path.name + ".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            whole.write_bytes(content)
            whole.replace(path)
        except OSError:
            self._clean_up()
            raise

    def _clean_up(self) -> None:
        """Remove what a writer left that was killed before its blob was whole. Called under the lock."""
        db = self._index.connection()
        left = [digest for (digest,) in db.execute("SELECT digest FROM blobs WHERE NOT ready")]
        for digest in left:
            path = self._blob(digest)
            path.with_name(path.name + ".partial").unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        if left:
            with self._index.transaction():
                db.executemany("DELETE FROM blobs WHERE digest = ?", [(digest,) for digest in left])

    def _drop(self, digest: str) -> None:
        """Forget a blob that is gone or damaged, and all artifacts made of it."""
        if self.read_only:
            return
        with suppress(StorageFailed, ReadOnly), self._writing():
            with suppress(OSError):
                if blake3(self._blob(digest).read_bytes()).hexdigest() == digest:
                    return  # somebody stored it again
            with self._index.transaction() as db:
                db.execute("DELETE FROM uses WHERE id IN (SELECT id FROM artifacts WHERE digest = ?)", (digest,))
                db.execute("DELETE FROM artifacts WHERE digest = ?", (digest,))
                self._remove_blob_if_unused(db, digest)

    # -- locks and damage

    def _flush_counts(self) -> None:
        with self._mutex:
            counts, self._counts = self._counts, Counter()
        with self._index.transaction() as db:
            db.executemany(
                "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                counts.items(),
            )

    def _reading(self, ask: Callable[[sqlite3.Connection], _T]) -> _T:
        self._check_open()
        with self._mutex:
            try:
                return ask(self._index.connection())
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise _failed(error, self.folder) from error
                self._rebuild(error)
                try:
                    return ask(self._index.connection())
                except sqlite3.Error as again:
                    raise _failed(again, self.folder) from again

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the store alone among threads and processes. Nests."""
        self._check_open()
        if self.read_only:
            raise ReadOnly(errno.EROFS, "the compile cache cannot be written; choose another folder", str(self.folder))
        with self._mutex:
            try:
                with self._file_lock.acquire(timeout=_WAIT, poll_interval=0.005):
                    self._usable()
                    self._clean_up()
                    yield
            except Timeout as error:
                raise StorageFailed(
                    errno.ETIMEDOUT, f"another process has held the lock for {_WAIT:.0f} s", str(self.folder / "lock")
                ) from error
            except sqlite3.Error as error:
                raise _failed(error, self.folder) from error
            except (Damaged, StorageFailed, ReadOnly):
                raise
            except OSError as error:
                raise StorageFailed(error.errno, f"{error.strerror}; nothing was stored", str(self.folder)) from error

    def _usable(self) -> None:
        """Have an index that can be worked with; a damaged one is made anew."""
        try:
            self._index.connection().execute("SELECT blobs FROM totals").fetchone()
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            self._rebuild(error)

    def _rebuild(self, reason: sqlite3.Error) -> None:
        """Move the damaged index aside and make one of the rows that are whole; blobs without a row go."""
        if self.read_only:
            raise _failed(reason, self.folder) from reason
        with self._file_lock.acquire(timeout=_WAIT, poll_interval=0.005):
            self._index.close()
            self._index.move_aside()
            rows = self._index.salvaged()
            kept: set[str] = set()
            with self._index.transaction() as db:
                for row in rows:
                    path = self._blob(row["digest"])
                    with suppress(OSError):
                        if path.stat().st_size != row["size"]:
                            continue
                        kept.add(row["digest"])
                        db.execute(
                            "INSERT OR IGNORE INTO environments VALUES (?, ?)", (row["environment"], row["record"])
                        )
                        db.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?, 1)", (row["digest"], row["size"]))
                        self._insert(
                            db, row["key"], row["kind"], row["environment"], row["requirements"], row["digest"],
                            row["size"], row["created"], row["seconds"], row["host"],
                        )  # fmt: skip
            for path in (self.folder / "blobs").glob("*/*"):
                if path.parent.name + path.name not in kept:
                    path.unlink(missing_ok=True)
            _log.warning(
                "the index of the compile cache %s was damaged (%s): %d artifacts of it were kept, the damaged file "
                "is %s", self.folder, reason, len(rows), self._index.aside,
            )  # fmt: skip
            self.count("rebuilt")

    def _check_open(self) -> None:
        if self.closed:
            raise Closed(f"the artifact store {self.folder} is closed")


def _artifact(row: sqlite3.Row) -> Artifact | None:
    if not sealed(row):
        return None
    try:
        environment = Environment.from_json(row["record"])
    except BadArtifact:
        return None
    if environment.digest != row["environment"]:
        return None
    return Artifact(
        row["key"], row["kind"], row["digest"], row["size"], environment, json.loads(row["requirements"]),
        row["created"], row["host"], row["seconds"], row["hits"], row["last_used"],
    )  # fmt: skip


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False


def _failed(error: sqlite3.Error, folder: Path) -> StorageFailed:
    code = errno.ENOSPC if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL else errno.EIO
    return StorageFailed(code, f"the index of the compile cache failed: {error}", str(folder))
