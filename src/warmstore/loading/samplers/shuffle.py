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
    """Every sample once, in an order that looks random and is another one for each seed, epoch and n.

    A permutation that is computed place by place, in constant memory for any n: see `permutation.permuted` for the
    method, its sources and how it was tested.

    Args:
        seed: an integer from 0 to 2**64 - 1.

    Raises:
        ValueError: another seed.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        set_fields(self, seed=integer("seed", self.seed, 0, MOST_SEED))

    def _length(self, n: int) -> int:
        return n

    def _positions(self, places: UInt64, n: int, epoch: int) -> UInt64:
        return permuted(places, n, derive_keys("shuffle", self.seed, epoch, n))
