"""Orders: which sample stands at which place of an epoch.

An order is arithmetic, not a list. Asked for any places of any epoch it computes just those, so that resuming at a
step, splitting over ranks and changing their number are sums of places, and a thousand million samples cost no memory.
"""

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import partial
from hashlib import blake2b
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from warmstore.errors import PositionError
from warmstore.loading.samplers.counter_rng import MOST_SEED, Int64, UInt64, bounded, derive_keys, random_bits
from warmstore.loading.samplers.permutation import permuted
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


@final
@dataclass(frozen=True)
class Sequential(Sampler):
    """Every sample once, from the first to the last."""

    @property
    def shuffles(self) -> bool:
        """False: all epochs are alike."""
        return False

    def _length(self, n: int) -> int:
        return n

    def _positions(self, places: UInt64, n: int, epoch: int) -> UInt64:
        return places


@final
@dataclass(frozen=True)
class Window(Sampler):
    """A window of `size` samples in a row that slides by `step` over the samples, which form a ring.

    Place w * size + j of the windows counted over all epochs holds sample (w * step + j) mod n. Nothing is cut off at
    the end: a window that reaches the last sample goes on with the first, and an epoch begins where the one before it
    ended. An epoch has ceil(n / step) windows, and each sample at least once unless the step is larger than the window.
    With batches of `size` every batch is one window.

    Args:
        size: samples in a window, at most n.
        step: samples from the start of one window to that of the next, at most n; by default `size`: windows that
            touch and do not overlap, as loaderx's sliding window has them.

    Raises:
        ValueError: a size or step that is no integer above zero; in use, one above n.
    """

    size: int
    _: KW_ONLY
    step: int | None = None

    def __post_init__(self) -> None:
        size = integer("size of a window", self.size, 1, MOST_SAMPLES)
        object.__setattr__(self, "size", size)
        step = size if self.step is None else integer("step of a window", self.step, 1, MOST_SAMPLES)
        object.__setattr__(self, "step", step)

    @property
    def shuffles(self) -> bool:
        """False: nothing is drawn, although an epoch begins where the one before it ended."""
        return False

    def _length(self, n: int) -> int:
        return self._windows(n) * self.size

    def _positions(self, places: UInt64, n: int, epoch: int) -> UInt64:
        start = epoch * self._windows(n) * self._step % n
        window = places // np.uint64(self.size)
        # All three are below 2 * n at most, and their sum below 2**64.
        position = places - window * np.uint64(self.size)
        position += window * np.uint64(self._step)
        position += np.uint64(start)
        position %= np.uint64(n)
        return position

    def _windows(self, n: int) -> int:
        if n and max(self.size, self._step) > n:
            raise ValueError(f"size and step of a window are at most the number of samples, {n:,}; got {self!r}")
        return -(-n // self._step)

    @property
    def _step(self) -> int:
        return self.step or self.size


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
        _check_seed(self)

    def _length(self, n: int) -> int:
        return n

    def _positions(self, places: UInt64, n: int, epoch: int) -> UInt64:
        return permuted(places, n, derive_keys("shuffle", self.seed, epoch, n))


@final
@dataclass(frozen=True)
class Uniform(Sampler):
    """Samples drawn with replacement, each equally likely at every place.

    SplitMix64 at (seed, epoch, place), scaled by multiply and shift: a sample's probability is 1 / n within a
    factor of 1 ± n / 2**64, that is 1 ± 3e-10 where n is below 2**32.

    Args:
        seed: an integer from 0 to 2**64 - 1.
        samples: draws in an epoch; by default n.

    Raises:
        ValueError: another seed, or samples that are no integer above zero; in use, samples out of none.
    """

    seed: int = 0
    _: KW_ONLY
    samples: int | None = None

    def __post_init__(self) -> None:
        _check_seed(self)
        _check_samples(self)

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

    A draw of 53 bits (SplitMix64 at (seed, epoch, place)) is looked up in the running sum of the weights by bisection.
    Probabilities are true to about 2**-53 of the total; a weight of zero is never drawn. The running sum is kept: 16
    bytes a sample with the weights.

    Args:
        weights: [n] finite numbers, none negative, one at least above zero. They are copied, as float64.
        seed: an integer from 0 to 2**64 - 1.
        samples: draws in an epoch; by default n.

    Raises:
        ValueError: other weights, seed or samples; in use, an n that is not the number of weights.
    """

    weights: ArrayLike
    _: KW_ONLY
    seed: int = 0
    samples: int | None = None
    _sums: np.ndarray[Any, np.dtype[np.float64]] = field(init=False, repr=False)
    _digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_seed(self)
        _check_samples(self)
        weights = _weights(self.weights)
        # Scaled exactly, the largest to about 1: no sum is infinite, or so small that draws are rounded up to it.
        sums = np.cumsum(np.ldexp(weights, -np.frexp(weights.max())[1]))
        sums.setflags(write=False)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "_sums", sums)
        digest = blake2b(weights.astype("<f8", copy=False).data, digest_size=16).hexdigest()
        object.__setattr__(self, "_digest", digest)

    def describe(self) -> dict[str, Any]:
        """Kind and options as JSON keeps them; of the weights their number and a BLAKE2b hash."""
        weights = {"count": len(self._sums), "digest": self._digest}
        return {"kind": "weighted", "weights": weights, "seed": self.seed, "samples": self.samples}

    def __eq__(self, other: object) -> bool:
        return self.describe() == other.describe() if isinstance(other, Weighted) else NotImplemented

    def __hash__(self) -> int:
        return hash((self._digest, self.seed, self.samples))

    def __reduce__(self) -> Any:
        return partial(Weighted, seed=self.seed, samples=self.samples), (self.weights,)

    def _length(self, n: int) -> int:
        if n != len(self._sums):
            raise ValueError(f"one weight for each sample: got {len(self._sums):,} weights for {n:,} samples")
        return self.samples or n

    def _positions(self, places: UInt64, n: int, epoch: int) -> Int64:
        drawn = random_bits(places, derive_keys("weighted", self.seed, epoch, n)[0])
        # At most 1 - 2**-53: times the total it stays below the total, rounding included.
        wanted = (drawn >> np.uint64(11)).astype(np.float64)
        wanted *= 2.0**-53
        wanted *= self._sums[-1]
        # Looked up by size, a large table is walked through once instead of jumped about in: half the time.
        by_size = np.argsort(wanted)
        found = np.empty(len(wanted), np.int64)
        found[by_size] = np.searchsorted(self._sums, wanted[by_size], side="right")
        return found


_CHOICES = 'a ws.Sampler such as Shuffle(seed=0), "sequential", "shuffle", or None for Sequential()'


def sampler_of(value: Any) -> Sampler:
    """The sampler that a user means: None is Sequential(), "sequential" and "shuffle" are names, a Sampler is itself.

    Raises:
        ValueError: a string that names no sampler.
        TypeError: a number, a class, a sampler of another library, or anything else.
    """
    if value is None:
        return Sequential()
    if isinstance(value, Sampler):
        return value
    if isinstance(value, str):
        if value == "sequential":
            return Sequential()
        if value == "shuffle":
            return Shuffle(seed=0)
        raise ValueError(f"sampler={value!r:.80} names no sampler; pass {_CHOICES}")
    if isinstance(value, bool | np.bool_):
        advice = "Shuffle(seed=0)" if value else "Sequential()"
        raise TypeError(f"sampler must be a sampler; got {value!r}. Did you mean {advice}? Pass {_CHOICES}")
    if isinstance(value, int | np.integer):
        raise TypeError(
            f"sampler must be a sampler; got {value!r}. Did you mean Shuffle(seed={value})? Pass {_CHOICES}"
        )
    if isinstance(value, type) and issubclass(value, Sampler):
        raise TypeError(f"sampler must be an instance; got the class {value.__name__}. Pass {_CHOICES}")
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(f"sampler must be a ws.Sampler; got the {kind} {value!r:.80}. Pass {_CHOICES}")


def _check_seed(order: Shuffle | Uniform | Weighted) -> None:
    object.__setattr__(order, "seed", integer("seed", order.seed, 0, MOST_SEED))


def _check_samples(order: Uniform | Weighted) -> None:
    if order.samples is not None:
        object.__setattr__(order, "samples", integer("samples", order.samples, 1, MOST_SAMPLES))


def _weights(given: ArrayLike) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The weights as a float64 [n] of our own, read-only."""
    try:
        weights = np.array(given, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"weights must be numbers; got {given!r:.80}") from None
    if weights.ndim != 1 or not len(weights):
        raise ValueError(f"weights must be a row of numbers, one for each sample; got shape {weights.shape}")
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise ValueError(f"weights must be finite and not negative; weight {wrong[0]:,} is {weights[wrong[0]]}")
    if not weights.any():
        raise ValueError(f"at least one weight must be above zero; all {len(weights):,} are 0")
    weights += 0.0  # -0.0 becomes 0.0: equal weights are equal bytes
    weights.setflags(write=False)
    return weights
