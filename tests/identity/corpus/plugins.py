"""A plugin system: operations on numbers found by name, with registries of several kinds and decorators around them."""

import contextlib
import functools
import inspect
import statistics
import weakref
from functools import partial
from typing import ClassVar, Protocol

OPERATIONS = {}
DEFAULTS = {"clip": {"low": -2.0, "high": 2.0}}
_stack = [1.0]


class Operation(Protocol):
    def __call__(self, values): ...


def operation(function=None, *, name=None, times=1):
    """Decorator, with or without arguments, that registers an operation."""
    if function is None:
        return partial(operation, name=name, times=times)

    @functools.wraps(function)
    def repeated(values, **options):
        for _ in range(times):
            values = function(values, **{**DEFAULTS.get(name, {}), **options})
        return values

    OPERATIONS[name or function.__name__] = repeated
    return repeated


@operation
def center(values):
    mean = statistics.fmean(values)
    return [value - mean for value in values]


@operation(name="clip")
def clip_values(values, low=0.0, high=1.0):
    return [min(max(value, low), high) for value in values]


@operation(times=2)
def smooth(values, weight=0.25):
    padded = [values[0], *values, values[-1]]
    return [
        weight * before + (1 - 2 * weight) * value + weight * after
        for before, value, after in zip(padded, values, padded[2:], strict=False)
    ]


class Filter:
    """Base of filters; each subclass is known by its lower-case name."""

    kinds: ClassVar[dict] = {}
    order = 0

    def __init_subclass__(cls, order=None, **options):
        super().__init_subclass__(**options)
        cls.order = len(cls.kinds) if order is None else order
        Filter.kinds[cls.__name__.lower()] = cls

    def keeps(self, value):
        return True

    def __call__(self, values):
        return [value for value in values if self.keeps(value)]


class Positive(Filter):
    def keeps(self, value):
        return value > 0


class Within(Filter, order=-1):
    def __init__(self, limit=3.0):
        self.limit = limit

    def keeps(self, value):
        return abs(value) <= self.limit


class Distinct(Filter):
    def __call__(self, values):
        return list(dict.fromkeys(values))


class Counted(type):
    """A metaclass that numbers its classes and gives them a weight."""

    total = 0

    def __new__(mcs, name, bases, namespace, weight=1.0):
        cls = super().__new__(mcs, name, bases, namespace)
        cls.number = mcs.total
        cls.weight = weight
        mcs.total += 1
        return cls

    @property
    def share(cls):
        return cls.weight / (cls.number + 1)


class Score(metaclass=Counted):
    def __call__(self, values):
        return type(self).share * self.raw(values)

    def raw(self, values):
        return sum(values)


class Peak(Score, weight=0.5):
    def raw(self, values):
        return max(values)


class Norm(Score, weight=2.0):
    power = 2

    def raw(self, values):
        return sum(abs(value) ** self.power for value in values) ** (1 / self.power)


class Lazy:
    """A descriptor that computes once and keeps it on the instance."""

    def __init__(self, compute):
        self.compute = compute

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner):
        if instance is None:
            return self
        value = instance.__dict__[self.name] = self.compute(instance)
        return value


class Chain:
    """Operations by name, one after the other."""

    def __init__(self, *names, **options):
        self.names = names
        self.options = options

    @Lazy
    def functions(self):
        return [partial(OPERATIONS[name], **self.options.get(name, {})) for name in self.names]

    def __call__(self, values):
        for function in self.functions:
            values = function(values)
        return values


class Proxy:
    """Hands everything it does not know to what it holds, and scales what comes back."""

    def __init__(self, inner, gain=2.0):
        self._inner = inner
        self._gain = gain

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __call__(self, values):
        return [self._gain * value for value in self._inner(values)]


def through_proxy(values, proxy):
    return [value for value in proxy(values) if abs(value) <= proxy.limit]


@contextlib.contextmanager
def scaled(factor):
    _stack.append(_stack[-1] * factor)
    try:
        yield _stack[-1]
    finally:
        _stack.pop()


class Doubled(contextlib.ContextDecorator):
    """As a decorator: what the function sees on the stack is twice as much."""

    factor = 2.0

    def __enter__(self):
        _stack.append(_stack[-1] * self.factor)
        return self

    def __exit__(self, *error):
        _stack.pop()
        return False


@Doubled()
def on_stack(values, offset=0.5):
    return [value * _stack[-1] + offset for value in values]


@functools.total_ordering
class Rank:
    """Orders numbers by how far they are from a center."""

    center = 1.0

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return abs(self.value - self.center) == abs(other.value - self.center)

    def __lt__(self, other):
        return abs(self.value - self.center) < abs(other.value - self.center)


def ranked(values):
    best = max(map(Rank, values))
    return [value for value in sorted(values, key=Rank) if Rank(value) >= best or value > 0]


def nested_scales(values, factors=(2.0, 3.0)):
    with scaled(factors[0]) as outer, scaled(factors[1]) as inner:
        return [value * inner - outer for value in values]


def running(window=3, start=0.0):
    """A function that takes running means; its window lives in a closure."""

    def mean(values):
        total, found = start, []
        for at, value in enumerate(values):
            total += value
            if at >= window:
                total -= values[at - window]
            found.append(total / min(at + 1, window))
        return found

    return mean


def windows(values, size):
    for at in range(len(values) - size + 1):
        yield values[at : at + size]


def medians(values, size=3):
    return [sorted(window)[size // 2] for window in windows(values, size)]


class Cell:
    """Holds its operation weakly, so that registries do not keep it alive."""

    def __init__(self, operation):
        self.operation = weakref.ref(operation)

    def __call__(self, values):
        operation = self.operation()
        return values if operation is None else operation(values)


def checked(function):
    """Refuses options that the function does not have."""
    known = frozenset(inspect.signature(function).parameters)

    @functools.wraps(function)
    def wrapper(values, **options):
        unknown = options.keys() - known
        return sorted(unknown) or function(values, **options)

    return wrapper


@checked
@checked
def power(values, exponent=2, *, sign=True):
    return [abs(value) ** exponent * (-1 if sign and value < 0 else 1) for value in values]


def entries():
    filters = sorted(Filter.kinds.values(), key=lambda kind: (kind.order, kind.__name__))
    return {
        "center": center,
        "clip": OPERATIONS["clip"],
        "clip_low": partial(OPERATIONS["clip"], low=-0.5),
        "smooth": smooth,
        "filters": lambda values: [kind()(values) for kind in filters],
        "within": Within(1.5),
        "peak": Peak(),
        "norm": Norm(),
        "chain": Chain("smooth", "center", "clip", smooth={"weight": 0.1}, clip={"high": 1.0}),
        "proxy": Proxy(Positive(), gain=0.5),
        "through_proxy": partial(through_proxy, proxy=Proxy(Within(4.0))),
        "nested_scales": nested_scales,
        "on_stack": on_stack,
        "ranked": ranked,
        "running": running(),
        "running_long": running(window=4, start=1.0),
        "medians": medians,
        "cell": Cell(medians),
        "power": partial(power, exponent=3),
    }


def examples():
    values = [0.5, -1.25, 3.0, 2.5, 2.5, -0.75, 4.5]
    return {"*": (values,)}
