"""Shuffle: every sample once, in random order."""

from dataclasses import dataclass
from typing import final

from warmstore.loading.samplers.counter_rng import MOST_SEED, UInt64, derive_keys
from warmstore.loading.samplers.permutation import permuted
from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.validation import integer, set_fields


@final
@dataclass(frozen=True)
class Shuffle(Sampler):
    """Every sample once, in a pseudorandom order that depends on seed, epoch and n.

    The permutation is computed place by place, in constant memory for any n. See `permutation.permuted` for the method,
    its sources and its tests.

    Args:
        seed: an integer from 0 to 2**64 - 1.

    Raises:
        ValueError: an invalid seed.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        set_fields(self, seed=integer("seed", self.seed, 0, MOST_SEED))

    def _length(self, n: int) -> int:
        return n

    def _positions(self, places: UInt64, n: int, epoch: int) -> UInt64:
        return permuted(places, n, derive_keys("shuffle", self.seed, epoch, n))
