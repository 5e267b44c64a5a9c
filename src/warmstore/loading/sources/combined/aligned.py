"""Sources of equal length, read at the same positions into one batch."""

from typing import Any, final

from warmstore.errors import BadSource
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.source import Source
from warmstore.tree.columns import rebuilt


@final
class AlignedSource(Source):
    """Several sources of one length, read at the same positions.

    Args:
        sources: a dict, for batches that are dicts; or a tuple or named tuple, for batches of that type.

    Raises:
        BadSource: no sources, or sources of different lengths.
    """

    def __init__(self, sources: dict[Any, Source] | tuple[Source, ...]) -> None:
        if not sources:
            raise BadSource(f"an empty {type(sources).__name__} of sources; pass at least one source")
        self._like = sources if isinstance(sources, tuple) else None
        self._sources = dict(enumerate(sources)) if isinstance(sources, tuple) else dict(sources)
        self.inner = tuple(self._sources.values())
        lengths = {name: len(source) for name, source in self._sources.items()}
        if len(set(lengths.values())) > 1:
            listed = [f"{name!r} has {length:,} samples" for name, length in lengths.items()]
            listed = [*listed[:8], *(["..."] if len(listed) > 8 else [])]
            raise BadSource(f"sources of one batch must have equal lengths; got: {', '.join(listed)}")
        widths = [source.sample_bytes for source in self.inner]
        self.sample_bytes = None if None in widths else sum(widths)  # type: ignore[arg-type]

    @property
    def identity(self) -> Any:
        """The identities of the sources, by name or number."""
        parts = {str(name): source.identity for name, source in self._sources.items()}
        return {"kind": "aligned", "sources": parts}

    def __len__(self) -> int:
        return len(self.inner[0])

    def read(self, positions: Int64) -> Any:
        return self.read_in(0, positions)

    def read_in(self, epoch: int, positions: Int64) -> Any:
        parts = {name: source.read_in(epoch, positions) for name, source in self._sources.items()}
        return parts if self._like is None else rebuilt(self._like, parts.values())
