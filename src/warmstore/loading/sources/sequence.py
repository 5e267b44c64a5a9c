"""Anything with a length and samples by position as a source: lists, and map-style data sets."""

from typing import Any, final

from warmstore.loading.collate import stack
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.sources.source import Source
from warmstore.records.samples import Samples


@final
class SequenceSource(Source):
    """Anything with a length and samples by position."""

    def __init__(self, samples: Any) -> None:
        self._samples = samples
        self._many = getattr(samples, "__getitems__", None)

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, positions: Int64) -> Any:
        if self._many is None:
            return stack([self._samples[at] for at in positions.tolist()])
        found = self._many(positions.tolist())
        if isinstance(found, Samples):
            return found.batch
        return stack(found) if isinstance(found, list | tuple) else found
