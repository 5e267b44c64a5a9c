"""Sampler: which sample stands at which place of an epoch.

A sampler computes positions, it keeps no list: any places of any epoch cost only themselves. Resuming at a step and
splitting over ranks are sums of places, and a thousand million samples cost no memory.
"""

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from warmstore.errors import PositionError
from warmstore.loading.samplers.counter_rng import MOST_SEED, Int64, UInt64
from warmstore.loading.validation import MOST_SAMPLES, integer

BLOCK = 8192  # places computed together: numpy's calls are then cheap, and what they work on stays in the L2 cache


class Sampler(ABC):
    """Which sample stands at which place of an epoch, over a source of n samples (at most 2**62).

    An order is immutable, and its values are a promise: the same options, n and epoch give the same samples in every
    process, on every machine, in every later version. A subclass says how long an epoch is and what stands where.
    """

    @final
    def length(self, n: int) -> int:
        """How many places an epoch over n samples has. Endless streams are epochs one after the other.

        Raises:
            ValueError: the order cannot go over n samples.
        """
        length = self._length(integer("n", n, 0, MOST_SAMPLES))
        if length > MOST_SAMPLES:
            raise ValueError(f"an epoch has at most 2**62 places; {self!r} over {n:,} samples would have {length:,}")
        return length

    @final
    def indices(self, first: int, last: int, n: int, epoch: int) -> Int64:
        """The positions at the places [first, last) of an epoch: int64 [last - first], each below n.

        Time and memory go with last - first only.

        Raises:
            PositionError: places that the epoch does not have.
            ValueError: an n that the order cannot go over, or an epoch that is no integer from 0 to 2**64 - 1.
        """
        length, epoch = self._checked(n, epoch)
        if not 0 <= first <= last <= length:
            raise PositionError(f"places {first:,} to {last:,} are outside the {length:,} of an epoch of {self!r}")
        found = np.empty(last - first, np.int64)
        for start in range(first, last, BLOCK):
            stop = min(start + BLOCK, last)
            places = np.arange(start, stop, dtype=np.uint64)
            found[start - first : stop - first] = self._positions(places, n, epoch)
        return found

    @final
    def at(self, places: ArrayLike, n: int, epoch: int) -> Int64:
        """The positions at any places of an epoch: int64 [m] for integers [m], as `indices` gives them.

        Raises:
            PositionError: places that the epoch does not have, or that are no integers.
            ValueError: as of `indices`.
        """
        length, epoch = self._checked(n, epoch)
        asked = np.asarray(places)
        if asked.ndim != 1 or (asked.dtype.kind not in "iu" and asked.size):
            raise PositionError(f"places must be integers in one dimension; got {asked.dtype} of shape {asked.shape}")
        if asked.size and (int(asked.min()) < 0 or int(asked.max()) >= length):
            wrong = asked[(asked < 0) | (asked >= length)][0]
            raise PositionError(f"place {wrong:,} is outside the {length:,} of an epoch of {self!r}")
        asked = asked.astype(np.uint64)
        found = np.empty(len(asked), np.int64)
        for start in range(0, len(asked), BLOCK):
            found[start : start + BLOCK] = self._positions(asked[start : start + BLOCK], n, epoch)
        return found

    @property
    def shuffles(self) -> bool:
        """Whether another epoch is another order or selection. True unless a subclass says otherwise.

        A loop that was left in the middle of an epoch goes on with the next epoch where this is True, and begins the
        same one again where it is False.
        """
        return True

    def describe(self) -> dict[str, Any]:
        """Kind and options as JSON keeps them. Orders of equal descriptions are equal, place by place."""
        options = {option.name: getattr(self, option.name) for option in fields(self) if option.init}  # type: ignore[arg-type]
        return {"kind": type(self).__name__.lower(), **options}

    @abstractmethod
    def _length(self, n: int) -> int:
        """Places per epoch, for an n from 0 to 2**62."""

    @abstractmethod
    def _positions(self, places: UInt64, n: int, epoch: int) -> UInt64 | Int64:
        """What stands at those places: [m] for uint64 [m], all of which the epoch has."""

    def _checked(self, n: int, epoch: int) -> tuple[int, int]:
        return self.length(n), integer("epoch", epoch, 0, MOST_SEED)
