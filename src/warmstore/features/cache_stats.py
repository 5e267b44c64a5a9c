"""CacheStats: the figures of a feature cache."""

from dataclasses import dataclass

from warmstore.display.html import html_method
from warmstore.features.cache_html import stats_html
from warmstore.features.keyed.cache_versions import CacheVersion


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
