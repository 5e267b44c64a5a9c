"""Hugging Face data sets as sources."""

from typing import Any, final

import numpy as np

from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.sources.source import Source
from warmstore.records.arrays import is_tensor, to_numpy


@final
class HuggingFaceSource(Source):
    """A `datasets.Dataset`, its columns as NumPy arrays unless it has a format of its own."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset if dataset.format["type"] else dataset.with_format("numpy")

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, positions: Int64) -> dict[str, Any]:
        batch = self._dataset[positions.tolist()]
        return {name: _column(values) for name, values in batch.items()}


def _column(values: Any) -> Any:
    array = to_numpy(values) if is_tensor(values) else values
    # Text, and arrays of several shapes.
    return list(array) if isinstance(array, np.ndarray) and array.dtype.kind in "OUS" else array
