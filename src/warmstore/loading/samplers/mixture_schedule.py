"""MixtureSchedule: the source at each place of a mixture, and how many of its samples come before.

The schedule is deterministic, and as even as whole samples allow at every prefix. One period is computed at
construction.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np

from warmstore.errors import PositionError
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.validation import MOST_SAMPLES, set_fields

MOST_PLACES = 100_000  # of a period: shares of five decimals are exact, and a period is computed in 0.2 s


@dataclass(frozen=True)
class MixtureSchedule:
    """An endless sequence of places, assigned to sources in proportion to their weights.

    In every prefix of i places a source has its share of i within less than one sample: within one half for two
    sources, within 1 - 1 / (2 * K - 2) for K sources of positive weight. This is Tijdeman's bound ("The chairman
    assignment problem", Discrete Mathematics 32, 1980), which is optimal. Places are assigned by his rule: the earliest
    deadline among the released samples.

    Shares are whole numbers of places out of a period of at most 100,000. Weights with such ratios, as 7:2:1 or 0.7,
    0.2, 0.1, are exact; other weights are rounded to 1 / 100,000.

    Args:
        weights: a number for each source, none negative and at least one above zero. A source of weight zero has no
            places.

    Raises:
        ValueError: other weights, or a positive weight below half of 1 / 100,000 of the sum.
    """

    weights: tuple[float, ...]
    shares: tuple[int, ...] = field(init=False)  # of each source, places in a period
    _source: Int64 = field(init=False, repr=False, compare=False)
    _before: Int64 = field(init=False, repr=False, compare=False)

    def __init__(self, weights: Sequence[float]) -> None:
        checked = _checked(weights)
        shares = _shares(checked)
        source, before = _one_period(shares)
        set_fields(self, weights=checked, shares=shares, _source=source, _before=before)

    @property
    def period(self) -> int:
        """Places after which the schedule repeats."""
        return len(self._source)

    def sources(self, first: int, last: int) -> tuple[Int64, Int64]:
        """The sources at the places [first, last), in O(last - first).

        Returns:
            Two int64 [last - first]: the source at each place, and the number of earlier places of that source.

        Raises:
            PositionError: places below 0 or above 2**62.
        """
        if not 0 <= first <= last <= MOST_SAMPLES:
            raise PositionError(f"places must be from 0 to 2**62, the first one first; got {first:,} to {last:,}")
        return self.at(np.arange(last - first), first)

    def at(self, places: Int64, start: int = 0) -> tuple[Int64, Int64]:
        """As `sources`, at any places, int64 [m], each counted from `start`.

        Raises:
            PositionError: places below 0 or above 2**62.
        """
        self.check_places(places, start)
        # Python's integers divide `start`, so that no sum overflows an int64.
        periods, begin = divmod(start, self.period)
        places = places + begin
        further_periods = places // self.period
        places -= further_periods * self.period
        source = self._source[places]
        before = np.asarray(self.shares)[source]
        before *= further_periods + periods
        before += self._before[places]
        return source, before

    def check_places(self, places: Int64, start: int) -> None:
        """Raise PositionError if a place, counted from `start`, is below 0 or above 2**62."""
        farthest = start + int(places.max(initial=0))
        if start + int(places.min(initial=0)) < 0 or farthest > MOST_SAMPLES:
            raise PositionError(f"places of a mix must be from 0 to 2**62; got one at {farthest:,}")

    def counts(self, length: int) -> tuple[int, ...]:
        """The number of places of each source among the first `length`, in O(period)."""
        periods, rest = divmod(length, self.period)
        last = np.bincount(self._source[:rest], minlength=len(self.shares)).tolist()
        return tuple(share * periods + more for share, more in zip(self.shares, last, strict=True))

    def describe(self) -> dict[str, Any]:
        """Kind and shares as JSON values. Schedules with equal shares are equal at every place."""
        return {"kind": "mix", "shares": list(self.shares)}


def _checked(weights: Any) -> tuple[float, ...]:
    try:
        given = tuple(weights)
        numbers = np.array(given, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"weights of a mix must be numbers, one for each source; got {weights!r:.80}") from None
    if numbers.ndim != 1 or not 0 < len(numbers) <= MOST_PLACES:
        raise ValueError(f"weights of a mix must be 1 to {MOST_PLACES:,} numbers; got shape {numbers.shape}")
    with np.errstate(over="ignore"):
        total = numbers.sum()
    if not (numbers >= 0).all() or not numbers.any() or not np.isfinite(total):
        raise ValueError(
            f"weights of a mix must be finite and not negative, and one at least above zero; got {weights!r:.80}"
        )
    return tuple(number.item() if isinstance(number, np.generic) else number for number in given)


def _shares(weights: tuple[float, ...]) -> tuple[int, ...]:
    """The smallest whole numbers in the proportion of the weights, or the nearest that sum to 100,000."""
    if all(isinstance(weight, int) for weight in weights):
        divisor = math.gcd(*weights)  # type: ignore[arg-type]
        if sum(weights) // divisor <= MOST_PLACES:
            return tuple(int(weight) // divisor for weight in weights)
    # math.fsum, as NumPy's order of summation depends on the processor.
    parts = np.array(weights, np.float64) / math.fsum(weights)
    # Try all periods, some thousands of numbers at a time. 1e-12 is for rounding errors of sums.
    rows = max(1, 1 << 16 >> len(weights).bit_length())
    for first in range(1, MOST_PLACES + 1, rows):
        periods = np.arange(first, min(first + rows, MOST_PLACES + 1))
        shares = periods[:, None] * parts
        whole = np.rint(shares)
        fits = ((np.abs(shares - whole) <= 1e-12 * whole).all(1) & (whole.sum(1) == periods)).nonzero()[0]
        if len(fits):
            return tuple(int(share) for share in whole[fits[0]])
    shares = MOST_PLACES * parts
    floor = np.floor(shares).astype(np.int64)
    # Largest remainders.
    floor[np.argsort(floor - shares, kind="stable")[: MOST_PLACES - int(floor.sum())]] += 1
    rounded_off = (floor == 0) & (parts > 0)
    if rounded_off.any():
        rare = int(np.argmin(np.where(rounded_off, parts, 1)))
        raise ValueError(
            f"every source of a mix needs about 1 in {MOST_PLACES:,} places; weight {rare}, {weights[rare]!r}, "
            f"is {parts[rare]:.2g} of the sum"
        )
    return tuple(floor.tolist())


def _one_period(shares: tuple[int, ...]) -> tuple[Int64, Int64]:
    """One period: the source at each place, and its number of earlier places, both int64 [sum of shares]."""
    positive = np.flatnonzero(shares)  # sources of weight zero are left out
    if len(positive) < len(shares):
        source, before = _one_period(tuple(shares[number] for number in positive))
        return positive[source], before
    period, count = sum(shares), len(shares)
    if count == 1:
        return np.zeros(period, np.int64), np.arange(period)
    # With the bound B = 1 - 1 / (2K - 2), the j-th sample of a source of weight w is released at the first place i
    # (from 1) with j + 1 - w * i <= B. Its deadline is the first place with w * i - j > B. All in whole numbers.
    source = np.repeat(np.arange(count), shares)
    share = np.asarray(shares)[source]
    number = np.arange(period) - np.repeat(np.cumsum(shares) - shares, shares)
    double = 2 * count - 2
    release = -(-period * (1 + number * double) // (share * double))
    deadline = period * (number * double + double - 1) // (share * double) + 1
    by_release = np.argsort(release, kind="stable")
    at_place = np.searchsorted(release[by_release], np.arange(1, period + 1), side="right").tolist()
    urgency = (deadline * count + source)[by_release].tolist()  # one number that sorts by deadline, then by source
    order = np.empty(period, np.int64)
    waiting: list[int] = []
    pushed = 0
    for place, released in enumerate(at_place):
        for job in urgency[pushed:released]:
            heappush(waiting, job)
        pushed = released
        order[place] = heappop(waiting) % count
    before = np.empty(period, np.int64)
    before[np.argsort(order, kind="stable")] = number
    return order, before
