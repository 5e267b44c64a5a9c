"""ConcatSource: concatenated sources; and `joined`, which makes one batch of batches of several sources."""

from typing import Any, final

import numpy as np

from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.source import Source
from warmstore.loading.sources.parts import Parts
from warmstore.records.sample_batch import SampleBatch
from warmstore.tree.columns import rebuilt


@final
class ConcatSource(Source):
    """Concatenated sources, like torch's ConcatDataset."""

    def __init__(self, sources: list[Source]) -> None:
        self.inner = tuple(sources)
        self._parts = Parts(map(len, sources))
        widths = [source.sample_bytes for source in sources]
        self.sample_bytes = None if None in widths else max(widths, default=None)  # type: ignore[type-var]

    @property
    def identity(self) -> Any:
        """The identities of the sources, by number."""
        return {"kind": "concat", "parts": {str(at): source.identity for at, source in enumerate(self.inner)}}

    def __len__(self) -> int:
        return len(self._parts)

    def read(self, positions: Int64) -> Any:
        return self.read_in(0, positions)

    def read_in(self, epoch: int, positions: Int64) -> Any:
        parts, places = [], []
        for number, at, within in self._parts.by_part(positions):
            parts.append(self.inner[number].read_in(epoch, within))
            places.append(at)
        return parts[0] if len(parts) == 1 else joined(parts, places)


def joined(parts: list[Any], places: list[Int64]) -> Any:
    """One batch of several: row i of part k goes to places[k][i]. Rows of different shapes or types become a list.

    Arrays are masked if any part is. Absent values of a `Packed` are None.
    """
    first = parts[0]
    if isinstance(first, dict) and all(isinstance(part, dict) and part.keys() == first.keys() for part in parts):
        return {name: joined([part[name] for part in parts], places) for name in first}
    if isinstance(first, tuple) and all(isinstance(part, tuple) and len(part) == len(first) for part in parts):
        return rebuilt(first, [joined(list(column), places) for column in zip(*parts, strict=True)])
    count = sum(map(len, places))
    is_array = all(isinstance(part, np.ndarray) for part in parts)
    if is_array and len({(part.dtype, part.shape[1:]) for part in parts}) == 1:
        is_masked = any(isinstance(part, np.ma.MaskedArray) for part in parts)
        batch = (np.ma.empty if is_masked else np.empty)((count, *first.shape[1:]), first.dtype)
        for part, at in zip(parts, places, strict=True):
            batch[at] = part
        return batch
    rows: list[Any] = [None] * count
    for part, at in zip(parts, places, strict=True):
        absent = getattr(part, "absent", None)
        samples = part if isinstance(part, list) else SampleBatch(part, len(at))
        for number, (place, sample) in enumerate(zip(at.tolist(), samples, strict=True)):
            rows[place] = None if absent is not None and absent[number] else sample
    return rows
