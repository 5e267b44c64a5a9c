"""The quota of a store: counts bytes, and evicts artifacts to make room.

Bytes are counted before a file is written and until after it is removed. So a process killed at any moment leaves a
count that is too high, and never one that is too low.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from warmstore.compiling.store.artifact_index import Index, number
from warmstore.compiling.store.blobs import Blobs
from warmstore.compiling.store.eviction_order import order_of
from warmstore.compiling.store.index_rows import remove
from warmstore.errors import TooLarge
from warmstore.storage.disk_usage import BLOCK, folder_bytes, on_disk
from warmstore.storage.quota import ByteQuota

LEAST = 8 << 20
"""Bytes of the smallest limit, which has room for the index."""
UNLIMITED = 1 << 62
"""Bytes of a limit that nothing exceeds. A store opened with it evicts nothing: for what only looks, since the programs
that fill the store may have another limit than the default."""

_SLACK = 2 << 20  # most bytes by which the index and its WAL grow in one change
_AT_ONCE = 8  # artifacts evicted in one transaction, which stays within the slack
_JOBS_KEPT = 90 * 86400.0  # seconds after which a job forgets an unused key

_NAME = 128  # most bytes of a blob's name in its folder

_TOTALS = f"SELECT count(*), coalesce(sum((size + {BLOCK - 1}) / {BLOCK} * {BLOCK}), 0) FROM blobs"


class ArtifactQuota:
    """The quota of a store's folder, with an eviction of `POLICIES`. Callers hold the lock of the store."""

    def __init__(self, folder: Path, blobs: Blobs, limit: int, eviction: str) -> None:
        self._folder = folder
        self._blobs = blobs
        self.limit = limit
        self.order = order_of(eviction)

    def make_room(self, index: Index, size: int, what: str, *, name: str | None = None) -> int:
        """Evict artifacts until `size` bytes are free. Returns the number of evicted artifacts.

        Args:
            what: What the bytes are for, for messages.
            name: A reservation that the bytes replace.

        Raises:
            TooLarge: The limit has no room.
        """
        fixed = _SLACK + self.claimed(index.connection(), but=name) + self._others()
        if on_disk(size) + fixed > self.limit:
            raise TooLarge(
                f"{what} takes {size:,} bytes; the limit of {self._folder} is {self.limit:,}; raise max_size"
            )
        artifacts = _Artifacts(self, index, what)
        if artifacts.nbytes() + on_disk(size) + fixed > self.limit:
            self._shrink(index)
        ByteQuota(self.limit - fixed, artifacts).make_room(on_disk(size))
        return artifacts.evicted

    def evict(self, index: Index, ids: list[int]) -> None:
        """Remove artifacts by the ids of their rows, and blobs without other artifacts."""
        for first in range(0, len(ids), _AT_ONCE):
            with index.transaction() as db:
                self.forget_blobs(db, remove(db, ids[first : first + _AT_ONCE]))

    def forget_blobs(self, db: sqlite3.Connection, digests: list[str]) -> None:
        """Remove blobs without artifacts, the files before the rows."""
        for digest in digests:
            self._blobs.remove(digest)
            db.execute("DELETE FROM blobs WHERE digest = ?", (digest,))

    def taken(self, db: sqlite3.Connection, index: Index) -> int:
        """Bytes of the store's own files: blobs and index in whole blocks, folders, the lock file."""
        blobs = number(db, "SELECT blobs FROM totals")
        folders = 2 + self._blobs.folders()
        return number(db, "SELECT size FROM totals") + index.size() + folders * BLOCK + blobs * _NAME

    def everything(self, db: sqlite3.Connection) -> int:
        """Bytes of all files in the folder, except scratch directories."""
        return self.taken(db, Index(self._folder, self._blobs.files)) + self._others()

    def _others(self) -> int:
        """Bytes of other files in the folder, such as logs of lookups. Scratch directories have reservations."""
        return sum(
            folder_bytes(folder) for folder in self._folder.iterdir() if folder.name not in ("blobs", "import", "live")
        )

    def claimed(self, db: sqlite3.Connection, *, but: str | None = None) -> int:
        """Bytes of all reservations, except the one named `but`."""
        return number(db, "SELECT coalesce(sum(size), 0) FROM claims WHERE name IS NOT ?", (but,))

    def is_over(self, db: sqlite3.Connection) -> bool:
        """Whether the limit is exceeded."""
        return self.everything(db) + self.claimed(db) > self.limit

    def is_right(self, db: sqlite3.Connection) -> bool:
        """Whether the totals agree with the rows of the blobs, which may not be so in a damaged file."""
        return bool(db.execute(f"SELECT (SELECT blobs, size FROM totals) = ({_TOTALS})").fetchone()[0])

    def recount(self, index: Index) -> None:
        """Compute the totals again."""
        with index.transaction() as db:
            db.execute(f"UPDATE totals SET (blobs, size) = ({_TOTALS})")

    def forget_old_jobs(self, db: sqlite3.Connection) -> None:
        """Remove the keys from jobs that these have not used for 90 days."""
        db.execute("DELETE FROM jobs WHERE used < ?", (time.time() - _JOBS_KEPT,))

    def _shrink(self, index: Index) -> None:
        """Make the index smaller: remove the damaged one, and from a large one the evicted keys of jobs."""
        index.files.remove(index.aside)
        if index.size() > self.limit // 4:
            with index.transaction() as db:
                db.execute("DELETE FROM jobs WHERE key NOT IN (SELECT key FROM artifacts)")
            index.shrink()


class _Artifacts:
    """The artifacts of a store as the content of a `ByteQuota`. `evicted` counts the evicted ones."""

    def __init__(self, quota: ArtifactQuota, index: Index, what: str) -> None:
        self.evicted = 0
        self._quota = quota
        self._index = index
        self._what = what

    def nbytes(self) -> int:
        return self._quota.taken(self._index.connection(), self._index)

    def evict(self, excess: int) -> bool:
        rows = self._index.connection().execute(
            f"SELECT id FROM artifacts JOIN uses USING (id) ORDER BY {self._quota.order} LIMIT {_AT_ONCE}"
        )
        ids = [row for (row,) in rows.fetchall()]
        self._quota.evict(self._index, ids)
        self.evicted += len(ids)
        return bool(ids)

    def refusal(self, size: int) -> TooLarge:
        taken = self._index.size()
        return TooLarge(f"{self._what} has no room: the index of {self._index.path.parent} alone takes {taken:,} bytes")
