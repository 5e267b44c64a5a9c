"""UsageCounters: lookups, computed samples and the seconds to compute them, over all runs of a cache."""

import contextlib
import operator
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from warmstore.storage import checked_json


@dataclass(frozen=True)
class Usage:
    """Samples that processes computed and looked up, and the seconds to compute them."""

    seconds: float = 0.0
    samples: int = 0
    hits: int = 0
    misses: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*map(operator.add, astuple(self), astuple(other)))

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(*map(operator.sub, astuple(self), astuple(other)))

    @property
    def per_sample(self) -> float:
        """Average seconds to compute a sample."""
        return self.seconds / self.samples if self.samples else 0.0

    @property
    def hit_rate(self) -> float:
        """Hits among the samples looked up, 0 to 1."""
        return self.hits / max(self.hits + self.misses, 1)


class UsageCounters:
    """The usage of a cache over all runs, in a small file. Concurrent threads and writers may lose some counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.after_fork()

    def after_fork(self) -> None:
        """Start anew. In a forked child, the counts are the parent's."""
        self._seconds = 0.0
        self._samples = self._hits = self._misses = 0
        self._saved = Usage()

    def move(self, path: Path) -> None:
        """Use another file from now on."""
        self._path = path

    def add(self, seconds: float = 0.0, samples: int = 0, *, hits: int = 0, misses: int = 0) -> None:
        """Count computed samples, or samples that were looked up."""
        self._seconds += seconds
        self._samples += samples
        self._hits += hits
        self._misses += misses

    @property
    def here(self) -> Usage:
        """The usage of this process."""
        return Usage(self._seconds, self._samples, self._hits, self._misses)

    def in_all(self) -> Usage:
        """The usage of all runs, with this process."""
        return read_usage(self._path) + (self.here - self._saved)

    def save(self) -> None:
        """Add the usage of this process to the file. If the folder cannot be written, the counts are lost."""
        from warmstore.storage.atomic import replace_file  # whoever only reads counts needs no NumPy

        here = self.here
        if here == self._saved:
            return
        with contextlib.suppress(OSError):
            content = checked_json.to_bytes(asdict(read_usage(self._path) + (here - self._saved)))
            replace_file(self._path, content, durable=False)
            self._saved = here


def read_usage(path: Path) -> Usage:
    """The usage in a file; zero if the file is missing or damaged."""
    try:
        content = checked_json.from_bytes(path.read_bytes())
        numbers = [content.get(name, 0) for name in ("samples", "hits", "misses")]
        return Usage(float(content["seconds"]), *map(int, numbers))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return Usage()
