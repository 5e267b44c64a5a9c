"""Several sources of one length as one, whose batches are dicts."""

from typing import Any, final

from warmstore.errors import BadSource
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.sources.source import Source


@final
class AlignedSource(Source):
    """Several sources of one length, read at the same positions, as a dict."""

    def __init__(self, sources: dict[str, Source]) -> None:
        if not sources:
            raise BadSource("an empty dict of sources; name at least one")
        (first, one), *others = sources.items()
        for name, other in others:
            if len(other) != len(one):
                raise BadSource(
                    f"sources differ in length: {first!r} has {len(one):,} samples, {name!r} has {len(other):,}"
                )
        self._sources = sources
        self.identity = {name: source.identity for name, source in sources.items()}
        widths = [source.sample_bytes for source in sources.values()]
        self.sample_bytes = None if None in widths else sum(widths)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(next(iter(self._sources.values())))

    def read(self, positions: Int64) -> dict[str, Any]:
        return {name: source.read(positions) for name, source in self._sources.items()}

    def read_in(self, epoch: int, positions: Int64) -> dict[str, Any]:
        return {name: source.read_in(epoch, positions) for name, source in self._sources.items()}
