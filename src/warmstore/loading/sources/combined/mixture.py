"""MixtureSource: the concatenated sources of a mixture, whose batches have one structure."""

from typing import Any, final

import numpy as np

from warmstore.errors import SchemaMismatch
from warmstore.loading.mixture import Mixture
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.source import Source
from warmstore.loading.sources.combined.joined import joined
from warmstore.loading.sources.parts import Parts


@final
class MixtureSource(Source):
    """The concatenated sources of a mixture."""

    def __init__(self, mixture: Mixture, sources: list[Source]) -> None:
        self.mixture = mixture.without_sources()
        self.inner = tuple(sources)
        widths = [source.sample_bytes for source in sources if len(source)]
        self.sample_bytes = None if None in widths else max(widths, default=None)  # type: ignore[type-var]
        self._parts = Parts(self.lengths)

    @property
    def identity(self) -> Any:
        """The identities of the sources, by name."""
        parts = {name: source.identity for name, source in zip(self.mixture.names, self.inner, strict=True)}
        return {"kind": "mixture", "parts": parts}

    @property
    def lengths(self) -> list[int]:
        """The length of each source."""
        return [len(source) for source in self.inner]

    @property
    def first_positions(self) -> Int64:
        """The position of the first sample of each source that is not empty."""
        return self._parts.first[:-1][np.diff(self._parts.first) > 0]

    def __len__(self) -> int:
        return len(self._parts)

    def read(self, positions: Int64) -> Any:
        return self.read_in(0, positions)

    def read_in(self, epoch: int, positions: Int64) -> Any:
        parts, places, names = [], [], []
        for number, at, within in self._parts.by_part(positions):
            parts.append(self.inner[number].read_in(epoch, within))
            places.append(at)
            names.append(self.mixture.names[number])
        for part, name in zip(parts[1:], names[1:], strict=True):
            _check_alike(parts[0], part, names[0], name, "")
        batch = parts[0] if len(parts) == 1 else joined(parts, places)
        key = self.mixture.source_key
        if key is None:
            return batch
        if not isinstance(batch, dict) or key in batch:
            raise SchemaMismatch(f"source_key {key!r} needs batches that are dicts without this key")
        return {**batch, key: self._parts.part_of(positions)}


def _check_alike(part: Any, other: Any, name: str, other_name: str, path: str) -> None:
    """Raise SchemaMismatch if batches of two sources differ in structure, dtype or shape."""
    if _structure(part) != _structure(other):
        where = f" at {path!r}" if path else ""
        raise SchemaMismatch(
            f"the sources of a mix differ{where}: {name!r} has {_shown(part)}, {other_name!r} has {_shown(other)}"
        )
    if isinstance(part, dict):
        for key in part:
            _check_alike(part[key], other[key], name, other_name, f"{path}.{key}" if path else str(key))
    elif isinstance(part, tuple):
        for at, (inner, other_inner) in enumerate(zip(part, other, strict=True)):
            _check_alike(inner, other_inner, name, other_name, f"{path}.{at}")


def _structure(part: Any) -> tuple[Any, ...]:
    """Parts of equal structure can be joined."""
    if isinstance(part, np.ndarray):
        return np.ndarray, part.dtype, part.shape[1:]
    if isinstance(part, dict):
        return type(part), frozenset(part)
    return type(part), len(part) if isinstance(part, tuple) else None


def _shown(part: Any) -> str:
    if isinstance(part, dict):
        return f"a dict of {list(part)}"
    if isinstance(part, tuple):
        return f"a {type(part).__name__} of {len(part)}"
    if isinstance(part, np.ndarray):
        return f"{part.dtype} of shape {part.shape[1:]}"
    return f"a {type(part).__name__}"
