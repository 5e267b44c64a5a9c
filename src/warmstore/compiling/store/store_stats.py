"""Statistics of an artifact store."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from warmstore.compiling.store.artifact_index import number
from warmstore.compiling.store.artifact_quota import ArtifactQuota
from warmstore.storage.disk_usage import allocated_bytes


@dataclass(frozen=True)
class StoreStats:
    """Statistics of a store. `size`: bytes that its folder has allocated on the disk, as `warmstore ls` lists them.

    `counted`: bytes that count against the limit: files in whole blocks, without holes and scratch directories.
    `claimed`: bytes of the limit that processes have reserved for what their compilers write.
    `kinds` has the number of artifacts and their bytes for each kind, `jobs` the number of keys for each job.
    `counters` are sums since the store was made: "hit", "miss", "incompatible", "damaged", "evicted", "put", "left"
    (to torch.compile); and of a remote: "remote hit", "remote miss", "remote failed", "remote refused" (not trusted),
    "remote put". `seconds_saved` is the sum over all uses of the seconds that compiling took.
    """

    folder: Path
    limit: int
    size: int
    counted: int
    claimed: int
    artifacts: int
    blobs: int
    hits: int
    seconds_saved: float
    kinds: Mapping[str, tuple[int, int]]
    jobs: Mapping[str, int]
    counters: Mapping[str, int]
    read_only: bool


def stats_of(
    db: sqlite3.Connection, folder: Path, quota: ArtifactQuota, unwritten: Mapping[str, int], *, read_only: bool
) -> StoreStats:
    """The statistics of a store. `unwritten`: counts that its index does not have yet."""
    kinds = db.execute("SELECT kind, count(*), sum(size) FROM artifacts GROUP BY kind ORDER BY kind").fetchall()
    hits, saved = db.execute(
        "SELECT coalesce(sum(hits), 0), coalesce(sum(hits * seconds), 0.0) FROM artifacts JOIN uses USING (id)"
    ).fetchone()
    counters = Counter(dict(db.execute("SELECT name, value FROM counters").fetchall()))
    counters.update(unwritten)
    return StoreStats(
        folder=folder,
        limit=quota.limit,
        size=allocated_bytes(folder),
        counted=quota.everything(db),
        claimed=quota.claimed(db),
        artifacts=sum(count for _, count, _ in kinds),
        blobs=number(db, "SELECT blobs FROM totals"),
        hits=hits,
        seconds_saved=saved,
        kinds={kind: (count, size) for kind, count, size in kinds},
        jobs=dict(db.execute("SELECT job, count(*) FROM jobs GROUP BY job ORDER BY job").fetchall()),
        counters=dict(counters),
        read_only=read_only,
    )
