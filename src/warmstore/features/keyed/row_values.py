"""Rows of a leaf from the store, verified and decompressed, but not decoded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from warmstore.storage.array_types import Int64


@dataclass(frozen=True)
class Varying:
    """Rows of different lengths: bytes-like objects, and the shapes of arrays, int64 [n, ndim], or None."""

    views: Sequence[Any]
    shapes: Int64 | None

    def __len__(self) -> int:
        return len(self.views)

    def __getitem__(self, which: Int64) -> "Varying":
        views = [self.views[at] for at in which.tolist()]
        return Varying(views, None if self.shapes is None else self.shapes[which])


Values = Any
"""Some rows of a leaf: uint8 [n, width], a tensor [n, words] on a device, or `Varying`."""
