"""What a cache did: counted in this process, and what its samples cost to compute, remembered beside the store."""

import contextlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from warmstore.features.versions import CacheVersion


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

    @property
    def hit_rate(self) -> float:
        """Hits among the samples looked up, 0 to 1."""
        return self.hits / max(self.hits + self.misses, 1)


class Cost:
    """Seconds and samples computed over all runs, in a small file. An estimate: racing writers may lose a little."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seconds = 0.0
        self.samples = 0
        self._saved = (0.0, 0)

    def move(self, path: Path) -> None:
        """Count for another file from now on."""
        self._path = path

    def add(self, seconds: float, samples: int) -> None:
        """Count some computed samples."""
        self.seconds += seconds
        self.samples += samples

    def per_sample(self) -> float:
        """Average seconds a sample has cost, over all runs."""
        seconds, samples = self._earlier()
        seconds += self.seconds - self._saved[0]
        samples += self.samples - self._saved[1]
        return seconds / samples if samples else 0.0

    def save(self) -> None:
        """Add what this process computed to the file. A folder that cannot be written costs only the estimate."""
        seconds, samples = self.seconds - self._saved[0], self.samples - self._saved[1]
        if not samples:
            return
        earlier = self._earlier()
        draft = self._path.with_suffix(f".{secrets.token_hex(4)}.tmp")
        with contextlib.suppress(OSError):
            draft.write_text(json.dumps({"seconds": earlier[0] + seconds, "samples": earlier[1] + samples}))
            draft.replace(self._path)
            self._saved = (self.seconds, self.samples)

    def _earlier(self) -> tuple[float, int]:
        try:
            content = json.loads(self._path.read_bytes())
            return float(content["seconds"]), int(content["samples"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0.0, 0
