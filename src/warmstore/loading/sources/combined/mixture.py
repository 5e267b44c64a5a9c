"""The samples of several sources one after the other, as one source whose batches may hold some of each."""

from typing import Any, final

import numpy as np

from warmstore.errors import SchemaMismatch
from warmstore.loading.mixture import Mixture
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.source import Source
from warmstore.loading.sources.parts import Parts
from warmstore.records.format.value_encoding import Packed
from warmstore.tree.columns import rebuilt


@final
class MixtureSource(Source):
    """The sources of a mix, one after the other."""

    def __init__(self, mixed: Mixture, sources: list[Source]) -> None:
        self.mixed = mixed.without_sources()
        self.inner = tuple(sources)
        widths = [source.sample_bytes for source in sources if len(source)]
        self.sample_bytes = None if None in widths else max(widths)  # type: ignore[type-var]
        self._parts = Parts(self.lengths)

    @property
    def identity(self) -> Any:
        """Those of the sources, by name."""
        parts = {name: source.identity for name, source in zip(self.mixed.names, self.inner, strict=True)}
        return {"kind": "mixture", "parts": parts}

    @property
    def lengths(self) -> list[int]:
        """Samples of each source."""
        return [len(source) for source in self.inner]

    @property
    def first_positions(self) -> Int64:
        """The first sample of each source that has any: together they show whether the structures agree."""
        return self._parts.first[:-1][np.diff(self._parts.first) > 0]

    def __len__(self) -> int:
        return len(self._parts)

    def read(self, positions: Int64) -> Any:
        return self.read_in(0, positions)

    def read_in(self, epoch: int, positions: Int64) -> Any:
        parts, places, names = [], [], []
        for number, mine, within in self._parts.by_part(positions):
            parts.append(self.inner[number].read_in(epoch, within))
            places.append(mine)
            names.append(self.mixed.names[number])
        batch = parts[0] if len(parts) == 1 else _joined(parts, places, names, "")
        key = self.mixed.source_key
        if key is None:
            return batch
        if not isinstance(batch, dict) or key in batch:
            raise SchemaMismatch(f"source_key {key!r} needs batches that are dicts without such a key")
        return {**batch, key: self._parts.part_of(positions)}


def _joined(parts: list[Any], places: list[Int64], names: list[str], path: str) -> Any:
    """Batches of some sources as one: row i of part k goes to places[k][i]."""
    first, where = parts[0], f" at {path!r}" if path else ""
    for part, name in zip(parts[1:], names[1:], strict=True):
        if (
            _kind(part) is not _kind(first)
            or (isinstance(first, dict) and part.keys() != first.keys())
            or (isinstance(first, tuple) and len(part) != len(first))
        ):
            raise SchemaMismatch(
                f"the sources of a mix differ{where}: {names[0]!r} has {_shown(first)}, {name!r} has {_shown(part)}"
            )
    if isinstance(first, dict):
        return {
            key: _joined([part[key] for part in parts], places, names, f"{path}.{key}" if path else str(key))
            for key in first
        }
    if isinstance(first, tuple):
        columns = enumerate(zip(*parts, strict=True))
        return rebuilt(first, [_joined(list(column), places, names, f"{path}.{at}") for at, column in columns])
    count = sum(map(len, places))
    if isinstance(first, list | Packed):
        values: list[Any] = [None] * count
        for part, mine in zip(parts, places, strict=True):
            absent = getattr(part, "absent", None)
            for at, place in enumerate(mine.tolist()):
                values[place] = None if absent is not None and absent[at] else part[at]
        return values
    for part, name in zip(parts[1:], names[1:], strict=True):
        if part.dtype != first.dtype or part.shape[1:] != first.shape[1:]:
            raise SchemaMismatch(
                f"the sources of a mix differ{where}: {names[0]!r} has {_shown(first)}, {name!r} has {_shown(part)}"
            )
    masked = any(isinstance(part, np.ma.MaskedArray) for part in parts)
    joined = (np.ma.empty if masked else np.empty)((count, *first.shape[1:]), first.dtype)
    for part, mine in zip(parts, places, strict=True):
        joined[mine] = part
    return joined


def _kind(part: Any) -> type:
    return np.ndarray if isinstance(part, np.ndarray) else type(part)


def _shown(part: Any) -> str:
    if isinstance(part, dict):
        return f"a dict of {list(part)}"
    if isinstance(part, tuple):
        return f"a {type(part).__name__} of {len(part)}"
    if isinstance(part, np.ndarray):
        return f"{part.dtype} of shape {part.shape[1:]}"
    return f"a {type(part).__name__}"
