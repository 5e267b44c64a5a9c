"""Sampler: the sample at each place of an epoch.

A sampler computes positions and keeps no list. Any places of any epoch take time for these places only, so resuming and
sharding are sums of places, and 10**9 samples take no memory.
"""

from abc import ABC, abstractmethod
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from warmstore.errors import PositionError
from warmstore.loading.samplers.counter_rng import MOST_SEED, Int64, UInt64
from warmstore.loading.validation import MOST_SAMPLES, integer, options_of

BLOCK = 8192  # places of a call: overhead of NumPy's calls is small, and arrays stay in the L2 cache


class Sampler(ABC):
    """The sample at each place of an epoch, over a source of n samples (at most 2**62).

    A sampler is immutable, and its values are promised: the same options, n and epoch give the same samples in every
    process, on every machine, in every later version. A subclass defines the length of an epoch and the positions.
    """

    @final
    def length(self, n: int) -> int:
        """The places of an epoch over n samples.

        Raises:
            ValueError: n does not fit the sampler.
        """
        length = self._length(integer("n", n, 0, MOST_SAMPLES))
        if length > MOST_SAMPLES:
            raise ValueError(f"an epoch has at most 2**62 places; {self!r} over {n:,} samples would have {length:,}")
        return length

    @final
    def indices(self, first: int, last: int, n: int, epoch: int) -> Int64:
        """The positions at the places [first, last) of an epoch: int64 [last - first], each below n.

        O(last - first) time and memory.

        Raises:
            PositionError: places outside the epoch.
            ValueError: n does not fit the sampler, or an epoch that is no integer from 0 to 2**64 - 1.
        """
        length, epoch = self._checked(n, epoch)
        if not 0 <= first <= last <= length:
            raise PositionError(f"places {first:,} to {last:,} are outside the {length:,} of an epoch of {self!r}")
        positions = np.empty(last - first, np.int64)
        for start in range(first, last, BLOCK):
            stop = min(start + BLOCK, last)
            places = np.arange(start, stop, dtype=np.uint64)
            positions[start - first : stop - first] = self._positions(places, n, epoch)
        return positions

    @final
    def at(self, places: ArrayLike, n: int, epoch: int) -> Int64:
        """As `indices`, at any places: int64 [m] for integers [m].

        Raises:
            PositionError: places outside the epoch, or that are no integers.
            ValueError: as `indices`.
        """
        length, epoch = self._checked(n, epoch)
        array = np.asarray(places)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            raise PositionError(f"places must be integers in one dimension; got {array.dtype} of shape {array.shape}")
        if array.size and (int(array.min()) < 0 or int(array.max()) >= length):
            outside = array[(array < 0) | (array >= length)][0]
            raise PositionError(f"place {outside:,} is outside the {length:,} of an epoch of {self!r}")
        array = array.astype(np.uint64)
        positions = np.empty(len(array), np.int64)
        for start in range(0, len(array), BLOCK):
            positions[start : start + BLOCK] = self._positions(array[start : start + BLOCK], n, epoch)
        return positions

    @property
    def shuffles(self) -> bool:
        """Whether epochs differ in order or selection; True unless overridden.

        After a break a loop continues with the next epoch if this is True, else it begins the same epoch again.
        """
        return True

    def describe(self) -> dict[str, Any]:
        """Kind and options as JSON values. Samplers with equal descriptions are equal at every place."""
        return {"kind": type(self).__name__.lower(), **options_of(self)}

    @abstractmethod
    def _length(self, n: int) -> int:
        """Places of an epoch, for n from 0 to 2**62."""

    @abstractmethod
    def _positions(self, places: UInt64, n: int, epoch: int) -> UInt64 | Int64:
        """The positions at places of the epoch: [m] for uint64 [m]."""

    def _checked(self, n: int, epoch: int) -> tuple[int, int]:
        return self.length(n), integer("epoch", epoch, 0, MOST_SEED)
