"""Filling the tiers of a plan before training."""

from typing import Any, final

import numpy as np

from warmstore.loading.fill_result import FillResult
from warmstore.loading.loader import Loader
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.samplers.sequential import Sequential
from warmstore.loading.source import Source
from warmstore.pipeline.pipeline_source import PipelineSource
from warmstore.storage.progress import new_bar


@final
class _Missing(Source):
    """Samples missing from the tiers. Reading a batch computes and stores it, and returns how many were computed."""

    def __init__(self, source: PipelineSource, indices: Int64) -> None:
        self._source = source
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, positions: Int64) -> Any:
        return self._source.fill(self._indices[positions])

    def finish(self) -> None:
        self._source.finish()

    def notes(self) -> list[str]:
        return self._source.notes()

    def release(self) -> None:
        self._source.cached.close()


def fill(
    source: PipelineSource, batch_size: int, workers: int, start_method: str | None, progress: bool | None
) -> FillResult:
    """See `Pipeline.fill`."""
    stores = source.cached.open()
    if stores is None:
        return FillResult(0, 0, 0)
    missing = np.flatnonzero(source.cached.missing(stores))
    found = int(source.cached.wanted(stores).sum()) - len(missing)
    if workers:
        source.cached.close()
    batches = computed = 0
    loader = Loader(
        _Missing(source, missing), batch_size, Sequential(), epochs=1, workers=0, processes=workers,
        start_method=start_method, rank=0, world_size=1,
    )  # fmt: skip
    with loader, new_bar(shown=progress, total=len(missing), desc="fill", unit=" samples") as bar:
        for count in loader:
            batches += 1
            computed += count
            bar.update(min(batch_size, len(missing) - bar.n))
    return FillResult(batches, computed, found)
