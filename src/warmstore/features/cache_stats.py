"""CacheStats: the figures of a feature cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warmstore.display.html import html_method
from warmstore.features.cache_html import stats_html
from warmstore.features.keyed.cache_versions import CacheVersion, read_versions
from warmstore.features.keyed.usage_counters import Usage

if TYPE_CHECKING:
    from warmstore.features.keyed.cache_session import CacheSession


@dataclass(frozen=True)
class CacheStats:
    """A cache's figures at one moment, summed over the versions that this process has opened.

    entries: rows on the disk. pending: samples accepted and not committed yet.
    hits, misses: samples looked up by this process. damaged: misses whose stored row did not match its checksum.
    bytes: on the disk. bytes_read: bytes of outputs returned to this process.
    computed_seconds: seconds that the module computed misses in this process.
    seconds_saved: hits times the average seconds to compute a sample, over all runs.
    versions: all versions on the disk.
    hot_hits: hits that came from the hot tier. hot_bytes: bytes of the hot tier, in RAM or on the device.
    window: seconds within which a write to a wrapped module that leaves no trace is found, such as one through NumPy;
        None if no module is wrapped.
    max_size: the limit on the bytes of all versions, None for no limit. evicted: rows evicted for this limit since the
        last rebalance.
    """

    entries: int
    pending: int
    hits: int
    misses: int
    damaged: int
    bytes: int
    bytes_read: int
    computed_seconds: float
    seconds_saved: float
    versions: tuple[CacheVersion, ...] = ()
    hot_hits: int = 0
    hot_bytes: int = 0
    max_size: int | None = None
    evicted: int = 0
    window: float | None = None

    _repr_html_ = html_method(stats_html)

    @property
    def hit_rate(self) -> float:
        """Hits among the samples looked up, 0 to 1."""
        return self.hits / max(self.hits + self.misses, 1)


def stats_of(sessions: Sequence[CacheSession], window: float | None) -> CacheStats:
    """The figures of the open versions of a cache. The first one has the cache's limit."""
    versions = [session.version for session in sessions]
    stored = [version.stored for version in versions]
    use, saved, bytes_read = usage_of(sessions)
    first = versions[0]
    return CacheStats(
        entries=sum(rows.length for rows in stored),
        pending=sum(len(version.blocks) for version in versions),
        hits=use.hits,
        misses=use.misses,
        damaged=sum(session.damaged for session in sessions),
        bytes=sum(rows.nbytes for rows in stored),
        bytes_read=bytes_read,
        computed_seconds=use.seconds,
        seconds_saved=saved,
        versions=read_versions(first.folder, first.name),
        hot_hits=sum(version.hot.hits for version in versions if version.hot is not None),
        hot_bytes=sum(version.hot.nbytes for version in versions if version.hot is not None),
        max_size=first.quota.max_size if first.quota is not None else None,
        window=window,
        evicted=sum(rows.evicted for rows in stored),
    )


def usage_of(sessions: Sequence[CacheSession]) -> tuple[Usage, float, int]:
    """The use by this process, the seconds that hits saved, and the bytes that they read."""
    costs = [session.version.cost for session in sessions]
    use = sum((cost.here for cost in costs), Usage())
    saved = sum(cost.here.hits * cost.in_all().per_sample for cost in costs)
    return use, saved, sum(session.bytes_read for session in sessions)
