"""Time series: scalers with a fitted state, windows, units, structured arrays, learning rates."""

import datetime
import itertools
import math
import operator
from collections import deque, namedtuple
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce

import numpy as np
from numpy import ndarray

READING = np.dtype([("time", "i4"), ("value", "f4"), ("valid", "?")])
START = datetime.date(2024, 1, 29)
WEEKEND = {5, 6}
Band = namedtuple("Band", ["low", "high"], defaults=[1.5])


class Quantity(ndarray):
    """An array with a unit."""

    factors = {"m": 1.0, "km": 1000.0}

    def __new__(cls, values, unit="m"):
        made = np.asarray(values, dtype=float).view(cls)
        made.unit = unit
        return made

    def __array_finalize__(self, origin):
        self.unit = getattr(origin, "unit", "m")

    def meters(self):
        return np.asarray(self) * self.factors[self.unit]


LIMITS = Quantity([0.5, 1.5], unit="km")


@dataclass(slots=True)
class Scaler:
    """Robust scaling by quantiles; `fit` before use."""

    low: float = 25.0
    high: float = 75.0
    center: float = 0.0
    spread: float = 1.0

    def fit(self, values):
        first, self.center, third = np.percentile(values, [self.low, 50.0, self.high])
        self.spread = float(third - first) or 1.0
        return self

    def __call__(self, values):
        return (values - self.center) / self.spread


class Standardizer:
    """Welford's running mean and variance, frozen when it is called."""

    ddof = 1

    def __init__(self):
        self.count, self.mean, self._squares = 0, 0.0, 0.0

    def update(self, values):
        for value in values:
            self.count += 1
            delta = value - self.mean
            self.mean += delta / self.count
            self._squares += delta * (value - self.mean)
        return self

    @property
    def std(self):
        return math.sqrt(self._squares / (self.count - self.ddof))

    def __call__(self, values):
        return (np.asarray(values) - self.mean) / self.std


def sliding(values, size=4, step=2):
    return np.lib.stride_tricks.sliding_window_view(values, size)[::step].copy()


def exponential(values, half_life=2.0):
    alpha = 1 - 0.5 ** (1 / half_life)
    return np.array(list(itertools.accumulate(values, lambda kept, new: (1 - alpha) * kept + alpha * new)))


def fill_gaps(values, longest=2):
    """Repeat the last value over gaps of at most `longest`."""
    filled, gap = values.copy(), 0
    for at in range(1, len(filled)):
        gap = gap + 1 if math.isnan(values[at]) else 0
        if 0 < gap <= longest:
            filled[at] = filled[at - 1]
    return filled


def detrend(values, degree=1):
    time = np.arange(len(values))
    return np.round(values - np.polyval(np.polyfit(time, values, degree), time), 9)


def outside(values, band=Band(-0.5)):
    return [at for at, value in enumerate(values) if not band.low <= value <= band.high]


def within_limits(values, unit="m"):
    low, high = LIMITS.meters()
    meters = Quantity(values, unit).meters()
    return (meters >= low) & (meters <= high)


def readings(values):
    table = np.zeros(len(values), READING)
    table["time"] = np.arange(len(values)) * 60
    table["value"] = values
    table["valid"] = ~np.isnan(values)
    return table


def calendar(values):
    """Weekly totals without weekends, and the number of each week."""
    totals = {}
    for at, value in enumerate(np.nan_to_num(values)):
        day = START + datetime.timedelta(days=at)
        if day.weekday() not in WEEKEND:
            week = day.isocalendar().week
            totals[week] = totals.get(week, 0.0) + float(value)
    return totals


@np.vectorize
def circular(degrees, wrap=360.0):
    """The same angle in [-wrap / 2, wrap / 2)."""
    return (degrees + wrap / 2) % wrap - wrap / 2


def turned(values, speed=200.0):
    return circular(values * speed)


def peaks(values, neighbours=1):
    recent = deque(maxlen=2 * neighbours + 1)
    found = []
    for at, value in enumerate(values):
        recent.append(value)
        if len(recent) == recent.maxlen and recent[neighbours] == max(recent):
            found.append(at - neighbours)
    return found


def cosine(step, total=10, floor=Fraction(1, 20)):
    return float(floor + (1 - floor) * Fraction(round(500 * (1 + math.cos(math.pi * step / total))), 1000))


def warm(schedule, steps):
    """A schedule after a linear warm-up."""
    calls = 0

    def warmed(step):
        nonlocal calls
        calls += 1
        return (step + 1) / steps * schedule(0) if step < steps else schedule(step - steps)

    return warmed


def product(*schedules):
    return lambda step: reduce(operator.mul, (schedule(step) for schedule in schedules))


def table_of(schedule):
    return lambda count: [schedule(step) for step in range(count)]


def entries():
    history = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0])
    return {
        "scaler": Scaler().fit(history),
        "scaler_wide": Scaler(low=10.0, high=90.0).fit(history),
        "standardizer": Standardizer().update(history[:6]),
        "sliding": partial(sliding, size=3),
        "exponential": exponential,
        "fill_gaps": fill_gaps,
        "detrend": detrend,
        "outside": outside,
        "outside_given": partial(outside, band=Band(low=-1.0, high=0.75)),
        "within_limits": partial(within_limits, unit="km"),
        "readings": readings,
        "calendar": calendar,
        "peaks": peaks,
        "turned": turned,
        "schedule": table_of(warm(partial(cosine, total=8), steps=3)),
        "schedule_product": table_of(product(cosine, lambda step: 0.5 ** (step // 4))),
    }


def examples():
    values = np.array([0.25, 1.5, -0.75, 2.0, 0.5, 1.75, -1.0, 0.9, 1.2, 0.1])
    gaps = values.copy()
    gaps[[2, 5, 6, 7]] = np.nan
    return {
        "*": (values,),
        "fill_gaps": (gaps,),
        "readings": (gaps,),
        "calendar": (gaps,),
        "schedule": (9,),
        "schedule_product": (9,),
    }
