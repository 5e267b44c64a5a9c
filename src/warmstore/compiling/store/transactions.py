"""The changes of an artifact store. Callers hold the lock of writers.

The order of steps keeps the store valid if the process is killed at any moment: bytes are reserved before a file is
written and released after it is removed, and readers see a row only once its blob is complete.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.environment import Environment
from warmstore.compiling.store.artifact_index import Index
from warmstore.compiling.store.artifact_quota import ArtifactQuota
from warmstore.compiling.store.blobs import Blobs
from warmstore.compiling.store.index_rows import insert, insert_environment, remove
from warmstore.storage.disk_usage import on_disk

_AT_ONCE = 256  # rows updated in one transaction
_IDENTITY = "key, kind, environment, requirements, digest, created, last_used"  # see `_row_of`


class Transactions:
    """The changes of one store. `evicted` is called with the number of artifacts that a change evicted."""

    def __init__(self, blobs: Blobs, quota: ArtifactQuota, evicted: Callable[[int], None]) -> None:
        self._blobs = blobs
        self._quota = quota
        self._evicted = evicted

    def put(
        self, index: Index, row: tuple[Any, ...], content: bytes, environment: Environment, job: str | None
    ) -> None:
        """Add an artifact, its row in the table's order."""
        key, digest, now = row[0], row[4], row[6]
        self._store_blob(index, digest, content, f"the artifact {key!r}")
        with index.transaction() as db:
            db.execute("UPDATE blobs SET ready = 1 WHERE digest = ?", (digest,))
            insert_environment(db, environment.digest, environment.to_json())
            unused = self._retire(db, insert(db, *row))
            if job is not None:
                db.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", (job, key, now))
        self._remove_blobs(index, unused)

    def adopt(self, index: Index, artifacts: Sequence[Artifact], jobs: Mapping[str, Sequence[str]], name: str) -> None:
        """Add artifacts whose blobs were staged. Releases what `name` had reserved."""
        db = index.connection()
        known = {digest for (digest,) in db.execute("SELECT digest FROM blobs")}
        staged = {artifact.digest: artifact.size for artifact in artifacts}
        with index.transaction():
            new = [(digest, size) for digest, size in staged.items() if digest not in known]
            db.executemany("INSERT INTO blobs VALUES (?, ?, 0)", new)
            db.execute("DELETE FROM claims WHERE name = ?", (name,))
        for digest in staged:  # also over a known blob, whose file may be missing or damaged
            self._blobs.take_staged(digest)
        with index.transaction():
            replaced = [digest for artifact in artifacts for digest in self._insert(db, artifact)]
            now = time.time()
            for job, keys in jobs.items():
                db.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", [(job, key, now) for key in keys])
            db.execute("UPDATE blobs SET ready = 1 WHERE NOT ready")
            unused = self._retire(db, replaced)
        self._remove_blobs(index, unused)

    def take(self, index: Index, found: Sequence[tuple[Artifact, bytes]], job: str | None) -> None:
        """Add a few artifacts of other machines, with their bytes."""
        for artifact, content in found:
            self._store_blob(index, artifact.digest, content, f"the artifact {artifact.key!r}")
        now, replaced = time.time(), []
        with index.transaction() as db:
            for artifact, _ in found:
                replaced += self._insert(db, artifact)
                db.execute("UPDATE blobs SET ready = 1 WHERE digest = ?", (artifact.digest,))
                if job is not None:
                    db.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", (job, artifact.key, now))
            unused = self._retire(db, replaced)
        self._remove_blobs(index, unused)

    def count_uses(self, index: Index, uses: Sequence[tuple[int, float, str, str, str]]) -> None:
        """Count uses. Each has a count, a time, and the key, kind and digest of an artifact."""
        self.make_room(index, 0, "the index")
        for first in range(0, len(uses), _AT_ONCE):
            with index.transaction() as db:
                db.executemany(
                    "UPDATE uses SET hits = hits + ?, last_used = max(last_used, ?) WHERE id IN "
                    "(SELECT id FROM artifacts WHERE key = ? AND kind = ? AND digest = ?)",
                    uses[first : first + _AT_ONCE],
                )

    def record_job(self, index: Index, job: str, keys: Sequence[str]) -> None:
        """Record the keys that a job uses now, and remove those that no job has used for 90 days."""
        now = time.time()
        rows = [(job, key, now) for key in keys]
        self.make_room(index, 200 * len(rows), f"the job {job!r}")
        for first in range(0, len(rows), _AT_ONCE):
            with index.transaction() as db:
                db.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", rows[first : first + _AT_ONCE])
                self._quota.forget_old_jobs(db)

    def reserve(self, index: Index, name: str, size: int) -> None:
        """Replace the reservation of a name; 0 removes it."""
        if size:
            self.make_room(index, size, f"the reservation of {name!r}", name=name)
        with index.transaction() as db:
            db.execute("DELETE FROM claims WHERE name = ?", (name,))
            if size:
                db.execute("INSERT INTO claims VALUES (?, ?)", (name, on_disk(size)))

    def forget(self, index: Index, artifacts: Sequence[Artifact], keys: Sequence[tuple[str, str]] = ()) -> int:
        """Remove artifacts whose rows are as they were read, and from jobs these keys, given as (job, key), that no
        artifact has any longer. Returns the number of artifacts."""
        read = {_row_of(artifact) for artifact in artifacts}
        rows = index.connection().execute(f"SELECT id, {_IDENTITY} FROM artifacts JOIN uses USING (id)")
        ids = [number for number, *row in rows if tuple(row) in read]
        self._forget_rows(index, ids, keys)
        return len(ids)

    def forget_everything(self, index: Index) -> int:
        """Remove all artifacts, jobs and counters. Returns the number of artifacts."""
        ids = [row for (row,) in index.connection().execute("SELECT id FROM artifacts")]
        with index.transaction() as db:
            db.execute("DELETE FROM jobs")
            db.execute("DELETE FROM counters")
        self._forget_rows(index, ids, ())
        self._blobs.sweep(())
        index.files.remove(index.aside)
        return len(ids)

    def _forget_rows(self, index: Index, ids: list[int], keys: Sequence[tuple[str, str]]) -> None:
        """Remove artifacts by the ids of their rows, and jobs' keys without an artifact."""
        self._quota.evict(index, ids)
        with index.transaction() as db:
            db.executemany(
                "DELETE FROM jobs WHERE job = ? AND key = ? AND NOT EXISTS "
                "(SELECT 1 FROM artifacts WHERE artifacts.key = jobs.key)",
                keys,
            )
            db.execute("DELETE FROM environments WHERE digest NOT IN (SELECT environment FROM artifacts)")
        index.shrink()

    def drop(self, index: Index, digest: str) -> None:
        """Remove a missing or damaged blob with its artifacts, unless another process has stored the blob again."""
        with suppress(OSError):
            if self._blobs.read(digest) is not None:
                return
        with index.transaction() as db:
            ids = [row for (row,) in db.execute("SELECT id FROM artifacts WHERE digest = ?", (digest,))]
            self._quota.forget_blobs(db, remove(db, ids) or [digest])

    def sweep(self, index: Index) -> int:
        """Recount the totals and remove files that belong to no blob. Returns the number of removed files."""
        self._quota.recount(index)
        return self._blobs.sweep({digest for (digest,) in index.connection().execute("SELECT digest FROM blobs")})

    def add_counts(self, index: Index, counts: Mapping[str, int]) -> None:
        """Add to the counters."""
        with index.transaction() as db:
            db.executemany(
                "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                counts.items(),
            )

    def make_room(self, index: Index, size: int, what: str, *, name: str | None = None) -> None:
        """Call `ArtifactQuota.make_room`, and count the evicted artifacts."""
        if evicted := self._quota.make_room(index, size, what, name=name):
            self._evicted(evicted)

    def _insert(self, db: sqlite3.Connection, new: Artifact) -> list[str]:
        """Add an artifact. Returns what `insert` does."""
        insert_environment(db, new.environment.digest, new.environment.to_json())
        row = (new.key, new.kind, new.environment.digest, as_json(new.requirements), new.digest, new.size)
        return insert(db, *row, new.created, new.host, new.seconds)

    def _retire(self, db: sqlite3.Connection, digests: Sequence[str]) -> list[str]:
        """Mark blobs that were replaced as incomplete, and return those that no artifact refers to. They are removed
        after the transaction: a process that is killed before its end has replaced nothing."""
        used = "SELECT 1 FROM artifacts WHERE digest = ?"
        unused = [digest for digest in dict.fromkeys(digests) if not db.execute(used, (digest,)).fetchone()]
        db.executemany("UPDATE blobs SET ready = 0 WHERE digest = ?", [(digest,) for digest in unused])
        return unused

    def _remove_blobs(self, index: Index, digests: list[str]) -> None:
        """Remove what `_retire` returned. What the disk refuses to remove now is removed before the next change."""
        if digests:
            with suppress(OSError), index.transaction() as db:
                self._quota.forget_blobs(db, digests)

    def _store_blob(self, index: Index, digest: str, content: bytes, what: str) -> None:
        """Reserve the bytes of a blob, then write its file."""
        known = index.connection().execute("SELECT 1 FROM blobs WHERE digest = ?", (digest,)).fetchone()
        if known and self._blobs.holds(digest, content):
            return
        if not known:
            self.make_room(index, len(content), what)
            with index.transaction() as db:
                db.execute("INSERT INTO blobs VALUES (?, ?, 0)", (digest, len(content)))
        self._blobs.write(digest, content)


def as_json(requirements: Mapping[str, Any]) -> str:
    """The form of requirements in a row. Raises TypeError or ValueError if JSON does not have their values."""
    return json.dumps(dict(requirements), sort_keys=True, separators=(",", ":"))


def _row_of(artifact: Artifact) -> tuple[Any, ...]:
    """The values of `_IDENTITY`, which differ for an artifact that was replaced or used meanwhile."""
    row = (artifact.key, artifact.kind, artifact.environment.digest, as_json(artifact.requirements), artifact.digest)
    return (*row, artifact.created, artifact.last_used)
