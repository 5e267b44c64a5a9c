"""The quota of a store: what everything takes, and which artifacts go when more is wanted.

Bytes are reserved before anything is written, and released only after their file is gone: a process killed at any
moment leaves a store that counts too much rather than too little.
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
"""The smallest limit: the index needs some of it."""

_SLACK = 2 << 20  # what the index may grow by in one change, its WAL included
_AT_ONCE = 8  # artifacts evicted in one transaction, so that it stays within the slack
_JOBS_KEPT = 90 * 86400.0  # seconds after which a job forgets a key it no longer uses

_NAME = 128  # bytes that a blob's name takes in its folder, at most

_TOTALS = f"SELECT count(*), coalesce(sum((size + {BLOCK - 1}) / {BLOCK} * {BLOCK}), 0) FROM blobs"


class ArtifactQuota:
    """The quota of a store's folder, evicting in the order of `eviction`. Only for who holds the store alone."""

    def __init__(self, folder: Path, blobs: Blobs, limit: int, eviction: str) -> None:
        self._folder = folder
        self._blobs = blobs
        self.limit = limit
        self.order = order_of(eviction)

    def make_room(self, index: Index, size: int, what: str, *, name: str | None = None) -> int:
        """Evict until `size` more bytes are free. Returns how many artifacts went.

        Args:
            name: under which the bytes are reserved, in place of what it had.

        Raises:
            TooLarge: there is not so much room in all.
        """
        fixed = _SLACK + self.claimed(index.connection(), but=name) + self._others()
        if on_disk(size) + fixed > self.limit:
            raise TooLarge(
                f"{what} takes {size:,} bytes; {self._folder} may have {self.limit:,} for everything; raise max_size"
            )
        artifacts = _Artifacts(self, index, what)
        if artifacts.nbytes() + on_disk(size) + fixed > self.limit:
            self._shrink(index)
        ByteQuota(self.limit - fixed, artifacts).make_room(on_disk(size))
        return artifacts.evicted

    def evict(self, index: Index, ids: list[int]) -> None:
        """Remove artifacts by their rows, and the blobs that nothing else is made of."""
        for first in range(0, len(ids), _AT_ONCE):
            with index.transaction() as db:
                self.forget_blobs(db, remove(db, ids[first : first + _AT_ONCE]))

    def forget_blobs(self, db: sqlite3.Connection, digests: list[str]) -> None:
        """Remove blobs that no artifact is made of: first the files, so that what is counted is never too little."""
        for digest in digests:
            self._blobs.remove(digest)
            db.execute("DELETE FROM blobs WHERE digest = ?", (digest,))

    def taken(self, db: sqlite3.Connection, index: Index) -> int:
        """Bytes that the folder takes on the disk: blobs and index in whole blocks, folders, the lock file."""
        blobs = number(db, "SELECT blobs FROM totals")
        folders = 2 + self._blobs.folders()
        return number(db, "SELECT size FROM totals") + index.size() + folders * BLOCK + blobs * _NAME

    def everything(self, db: sqlite3.Connection) -> int:
        """Bytes that the folder takes, what others put there included."""
        return self.taken(db, Index(self._folder, self._blobs.files)) + self._others()

    def _others(self) -> int:
        """Bytes of what is in the folder and is not the store's own: records of runs and the like.

        The live folders of processes are left out: they are gone when those are.
        """
        return sum(
            folder_bytes(folder) for folder in self._folder.iterdir() if folder.name not in ("blobs", "import", "live")
        )

    def claimed(self, db: sqlite3.Connection, *, but: str | None = None) -> int:
        """Bytes elsewhere that others have claimed."""
        return number(db, "SELECT coalesce(sum(size), 0) FROM claims WHERE name IS NOT ?", (but,))

    def is_over(self, db: sqlite3.Connection) -> bool:
        """Whether the limit does not hold."""
        return self.everything(db) + self.claimed(db) > self.limit

    def is_right(self, db: sqlite3.Connection) -> bool:
        """Whether the totals are those of the blobs; a changed byte may have made them wrong."""
        return bool(db.execute(f"SELECT (SELECT blobs, size FROM totals) = ({_TOTALS})").fetchone()[0])

    def recount(self, index: Index) -> None:
        """Set the totals right."""
        with index.transaction() as db:
            db.execute(f"UPDATE totals SET (blobs, size) = ({_TOTALS})")

    def forget_old_jobs(self, db: sqlite3.Connection) -> None:
        """Drop from the jobs what they have not used for a long time."""
        db.execute("DELETE FROM jobs WHERE used < ?", (time.time() - _JOBS_KEPT,))

    def _shrink(self, index: Index) -> None:
        """Have the index take less of the limit: drop the damaged one, and what jobs know that is not here any more."""
        index.files.remove(index.aside)
        if index.size() > self.limit // 4:
            with index.transaction() as db:
                db.execute("DELETE FROM jobs WHERE key NOT IN (SELECT key FROM artifacts)")
            index.shrink()


class _Artifacts:
    """The artifacts of a store as what a quota limits, for one reservation. evicted: how many went."""

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
        return TooLarge(
            f"{self._what} finds no room: the index of {self._index.path.parent} alone takes {taken:,} bytes"
        )
