"""SelectedSamples: some samples of a source, which have the identities that they have in the source."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np


@final
class SelectedSamples:
    """The samples of a source at some indices, int64 [m], each from 0 to below its length. Nothing else is copied."""

    def __init__(self, of: Any, indices: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self.of = of
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.of[int(self.indices[index])]

    def selected(self, values: Sequence[Any]) -> list[Any]:
        """Those of some values, one per sample of the source, that belong to these samples."""
        return [values[index] for index in self.indices.tolist()]
