"""CacheStats: the figures of a feature cache."""

from dataclasses import dataclass

from warmstore.features.keyed.cache_versions import CacheVersion


@dataclass(frozen=True)
class CacheStats:
    """A cache's figures at one moment.

    entries: rows on the disk. pending: samples accepted and not committed yet.
    hits, misses: samples looked up by this process. damaged: misses whose stored row did not match its checksum.
    bytes: on the disk. bytes_read: of outputs handed out by this process, in bytes.
    computed_seconds: spent in the module on misses, by this process.
    seconds_saved: hits times what a sample has cost on average, in this run and those before.
    versions: those on the disk, also where this process has not used them. All other figures are sums over the
        versions that this cache has opened.
    hot_hits: of the hits those that came from the hot tier. hot_bytes: what that takes now, of memory or of the device.
    window: seconds within which a write to a wrapped module that leaves no trace is found, such as one through NumPy;
        None where no module is wrapped.
    max_size: the bound on the bytes of all versions, None for none. evicted: rows that went for it, since the last
        rebalance.
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

    @property
    def hit_rate(self) -> float:
        """Hits among the samples looked up, 0 to 1."""
        return self.hits / max(self.hits + self.misses, 1)
