"""SubsetSource: some samples of a source, by position, without a copy."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from warmstore.errors import PositionError
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.source import PartialBatch, Source
from warmstore.loading.values.content_hash import hash_of_values
from warmstore.records.format.array_interop import is_tensor, to_numpy
from warmstore.records.read.index_arguments import unmasked
from warmstore.storage.cached_property import cached_property


@dataclass(frozen=True)
class Selection:
    """Some samples of a user's value.

    of: the value. source: the source for it, without options. positions: int64 [m].
    """

    of: Any
    source: Source
    positions: Int64

    def select(self, at: Int64) -> "Selection":
        """Some of these samples: int64 [k] indices into `positions`."""
        return Selection(self.of, self.source, self.positions[at])


@final
class SubsetSource(Source):
    """The samples of a source at positions, int64 [m], each from 0 to below its length."""

    def __init__(self, source: Source, positions: Int64) -> None:
        self.inner = (source,)
        self._source = source
        self._positions = positions
        self.sample_bytes = source.sample_bytes

    @property
    def identity(self) -> Any:
        """The identity of the source, and a hash of the positions."""
        return {"kind": "subset", "of": self._source.identity, "positions": self._hash}

    @cached_property
    def _hash(self) -> Any:
        return hash_of_values(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def read(self, positions: Int64) -> Any:
        return self._source.read(self._positions[positions])

    def read_in(self, epoch: int, positions: Int64) -> Any:
        return self._source.read_in(epoch, self._positions[positions])

    def read_partly(self, epoch: int, positions: Int64, *, fills: bool) -> PartialBatch:
        return self._source.read_partly(epoch, self._positions[positions], fills=fills)

    def release(self) -> None:
        self.finish()  # other subsets may still read the source


def positions_of(positions: Any, length: int) -> Int64:
    """The positions for a `positions` argument, as a read-only copy: int64 [m].

    Args:
        positions: integers from 0 to below `length`, in any order, repeated or not; or a bool mask [length], of which
            masked elements are False, as those of a store's.

    Raises:
        PositionError: a position that is outside or masked, or a mask of another length.
        TypeError: no integers, or more than one dimension.
    """
    given = to_numpy(positions) if is_tensor(positions) else np.asarray(unmasked(positions))
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iub"):
        raise TypeError(f"positions must be integers [m] or a bool mask [n]; got {given.dtype} of shape {given.shape}")
    if given.dtype.kind == "b":
        if len(given) != length:
            raise PositionError(f"the mask has {len(given):,} entries; the source has {length:,} samples")
        selected = np.flatnonzero(given)
    else:
        if given.dtype.kind == "u" and len(given) and given.max() >= length:
            raise PositionError(f"position {int(given.max()):,} is outside the source of {length:,} samples")
        selected = given.astype(np.int64)
    if len(selected) and (selected.min() < 0 or selected.max() >= length):
        outside = int(selected.min()) if selected.min() < 0 else int(selected.max())
        raise PositionError(f"position {outside:,} is outside the source of {length:,} samples")
    selected.flags.writeable = False
    return selected
