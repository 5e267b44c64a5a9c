"""Rows of a leaf as they come from the store: checked and decompressed, not decoded yet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Int64 = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Varying:
    """Rows of different lengths: bytes-likes, and their shapes, int64 [n, ndim], where there are any."""

    views: Sequence[Any]
    shapes: Int64 | None

    def __len__(self) -> int:
        return len(self.views)

    def __getitem__(self, which: Int64) -> "Varying":
        views = [self.views[at] for at in which.tolist()]
        return Varying(views, None if self.shapes is None else self.shapes[which])


Values = Any
"""Some rows of a leaf: uint8 [n, width], a tensor [n, words] on a device, or `Varying`."""
