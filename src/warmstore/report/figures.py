"""The figures of the page, each with its source in the data.

A source is a key and what is taken of it. `c1 hits` is the sum of `hits` over the records of cache c1; "*" stands for
all caches. `run=ID`, `event=NAME`, `epochs=0-3` and, last, `name=NAME` restrict the records; `parts=9` divides by 9,
for a mean. `rate`, `work`, `uncached` and `rest` are derived as in `RecordedEpoch`. `d2 nbytes` is the size of folder
d2.
"""

from collections.abc import Iterable, Sequence

from warmstore.report.cache_history import RecordedEpoch
from warmstore.report.markup import Figure
from warmstore.storage.humanize import format_duration, format_size


def count(value: float, source: str) -> Figure:
    """A number of things."""
    return Figure(value, f"{value:,.0f}", source)


def size(value: float, source: str) -> Figure:
    """Bytes."""
    return Figure(value, format_size(value), source)


def duration(value: float, source: str) -> Figure:
    """Seconds, which may be below zero."""
    text = format_duration(abs(value))
    return Figure(value, f"\N{MINUS SIGN}{text}" if value < 0 and text != "0 s" else text, source)


def share(value: float, source: str) -> Figure:
    """A part of a whole, 0 to 1."""
    return Figure(value, f"{value:.1%}".replace("100.0%", "100%"), source)


class Work:
    """The figures of some epochs of one cache, or of several caches.

    source: which they are: the key of the cache, and restrictions. parts: figures are divided by this number, for
    means of so many epochs.
    """

    def __init__(self, epochs: Iterable[RecordedEpoch], source: str, parts: int = 1) -> None:
        self.epochs: Sequence[RecordedEpoch] = list(epochs)
        key, _, restrictions = source.partition(" ")
        self.source = source if parts == 1 else f"{key} parts={parts} {restrictions}"
        self.parts = parts

    def sum(self, figure: str) -> float:
        """The sum of a figure, or its mean."""
        return sum(epoch[figure] for epoch in self.epochs) / self.parts

    def count(self, figure: str) -> Figure:
        """A sum as a number of things."""
        return count(self.sum(figure), self._source(figure))

    def size(self, figure: str) -> Figure:
        """A sum as bytes."""
        return size(self.sum(figure), self._source(figure))

    def duration(self, figure: str) -> Figure:
        """A sum as seconds."""
        return duration(self.sum(figure), self._source(figure))

    @property
    def looked_up(self) -> float:
        """Samples, or artifacts, that were looked up."""
        return self.sum("hits") + self.sum("misses")

    @property
    def rate(self) -> Figure:
        """Hits among the lookups."""
        return share(self.sum("hits") / max(self.looked_up, 1), self._source("rate"))

    @property
    def work(self) -> Figure:
        """Seconds spent on what is cached."""
        return duration(sum(epoch.work_seconds for epoch in self.epochs) / self.parts, self._source("work"))

    @property
    def uncached(self) -> Figure:
        """Seconds that the same would have taken without a cache."""
        return duration(sum(epoch.uncached_seconds for epoch in self.epochs) / self.parts, self._source("uncached"))

    @property
    def rest(self) -> Figure:
        """Seconds of the program beside."""
        return duration(sum(epoch.rest_seconds for epoch in self.epochs) / self.parts, self._source("rest"))

    def _source(self, figure: str) -> str:
        first, _, restrictions = self.source.partition(" ")
        return f"{first} {figure} {restrictions}".rstrip()
