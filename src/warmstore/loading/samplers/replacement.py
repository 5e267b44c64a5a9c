"""Uniform and Weighted: samplers that draw with replacement."""

from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from warmstore.loading.samplers.counter_rng import MOST_SEED, Int64, UInt64, bounded, derive_keys, random_bits
from warmstore.loading.samplers.lengths import describe_numbers
from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.validation import MOST_SAMPLES, check_whole, integer, options_of, set_fields


@final
@dataclass(frozen=True)
class Uniform(Sampler):
    """Samples drawn with replacement, each equally likely at every place.

    SplitMix64 at (seed, epoch, place), scaled by multiply and shift: a sample's probability is 1 / n within a factor of
    1 ± n / 2**64, which is 1 ± 3e-10 for n below 2**32.

    Args:
        seed: an integer from 0 to 2**64 - 1.
        samples: draws in an epoch; by default n.

    Raises:
        ValueError: an invalid seed, or samples that are no integer above zero; in use, n = 0.
    """

    seed: int = 0
    _: KW_ONLY
    samples: int | None = None

    def __post_init__(self) -> None:
        _check_options(self)

    def _length(self, n: int) -> int:
        if self.samples and not n:
            raise ValueError(f"{self!r} cannot draw out of 0 samples")
        return self.samples or n

    def _positions(self, places: UInt64, n: int, epoch: int) -> UInt64:
        return bounded(random_bits(places, derive_keys("uniform", self.seed, epoch, n)[0]), n)


@final
@dataclass(frozen=True, eq=False)
class Weighted(Sampler):
    """Samples drawn with replacement, each in proportion to its weight.

    A draw of 53 bits (SplitMix64 at (seed, epoch, place)) is looked up in the cumulative weights by bisection.
    Probabilities are exact to about 2**-53 of the total; a sample of weight zero is never drawn. Weights and cumulative
    weights take 16 bytes a sample.

    Args:
        weights: [n] finite numbers, none negative, at least one above zero. They are copied, as float64.
        seed: an integer from 0 to 2**64 - 1.
        samples: draws in an epoch; by default n.

    Raises:
        ValueError: invalid weights, seed or samples; in use, an n that is not the number of weights.
    """

    weights: ArrayLike
    _: KW_ONLY
    seed: int = 0
    samples: int | None = None
    _sums: np.ndarray[Any, np.dtype[np.float64]] = field(init=False, repr=False)
    _described: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_options(self)
        weights = _weights(self.weights)
        # Scaled by a power of two, the largest to about 1, so that sums neither overflow nor become subnormal.
        sums = np.cumsum(np.ldexp(weights, -np.frexp(weights.max())[1]))
        sums.setflags(write=False)
        set_fields(self, weights=weights, _sums=sums, _described=describe_numbers(weights))

    def describe(self) -> dict[str, Any]:
        """Kind and options as JSON values; for weights their number and a BLAKE2b hash."""
        return {**super().describe(), "weights": dict(self._described)}

    def __eq__(self, other: object) -> bool:
        return self.describe() == other.describe() if isinstance(other, Weighted) else NotImplemented

    def __hash__(self) -> int:
        return hash((self._described["digest"], self.seed, self.samples))

    def __reduce__(self) -> Any:
        return partial(Weighted, **options_of(self)), ()

    def _length(self, n: int) -> int:
        if n != len(self._sums):
            raise ValueError(f"one weight for each sample: got {len(self._sums):,} weights for {n:,} samples")
        return self.samples or n

    def _positions(self, places: UInt64, n: int, epoch: int) -> Int64:
        drawn = random_bits(places, derive_keys("weighted", self.seed, epoch, n)[0])
        # At most 1 - 2**-53, so the product stays below the total after rounding.
        targets = (drawn >> np.uint64(11)).astype(np.float64)
        targets *= 2.0**-53
        targets *= self._sums[-1]
        # Sorted look-ups read a large table in order, which takes half the time.
        by_size = np.argsort(targets)
        positions = np.empty(len(targets), np.int64)
        positions[by_size] = np.searchsorted(self._sums, targets[by_size], side="right")
        return positions


def _check_options(sampler: Uniform | Weighted) -> None:
    set_fields(sampler, seed=integer("seed", sampler.seed, 0, MOST_SEED))
    if sampler.samples is not None:
        set_fields(sampler, samples=integer("samples", sampler.samples, 1, MOST_SAMPLES))


def _weights(given: ArrayLike) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A read-only copy of the weights, float64 [n]."""
    check_whole("weight", given)
    try:
        weights = np.array(given, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"weights must be numbers; got {given!r:.80}") from None
    if weights.ndim != 1 or not len(weights):
        raise ValueError(f"weights must be a row of numbers, one for each sample; got shape {weights.shape}")
    invalid = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(invalid):
        raise ValueError(f"weights must be finite and not negative; weight {invalid[0]:,} is {weights[invalid[0]]}")
    if not weights.any():
        raise ValueError(f"at least one weight must be above zero; all {len(weights):,} are 0")
    weights += 0.0  # -0.0 becomes 0.0, so that equal weights have equal bytes
    weights.setflags(write=False)
    return weights
