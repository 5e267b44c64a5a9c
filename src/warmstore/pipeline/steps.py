"""A step of a pipeline: a function of a value, its arguments, and where its results may be cached.

A random step gets a generator seeded by (seed, epoch, sample, step). So its result does not depend on the process or
on the order of calls.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from warmstore.identity.named_files import Files
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.pipeline.batched_steps import call_on_columns, of_one, row_of
from warmstore.pipeline.sample_generators import sample_generator

Tier = Literal["memory", "disk"]
TIERS: tuple[Tier, ...] = ("memory", "disk")
Caching = Literal["auto", "never", "memory", "disk"]
OnError = Literal["raise", "skip"] | Callable[[Exception, Any], Any]


@dataclass(frozen=True)
class ChainSettings:
    """What applies to the source and to all steps of a pipeline; see `Pipeline`.

    Raises:
        ValueError: `files` is unknown.
    """

    threads: int = 1
    version: str | None = None
    ignore: tuple[str, ...] = ()
    root: str | None = None
    files: Files = "stat"

    def __post_init__(self) -> None:
        if self.files not in get_args(Files):
            raise ValueError(f"files must be one of {get_args(Files)}; got {self.files!r}")


@dataclass(frozen=True)
class Step:
    """One step.

    function: called as function(value, **arguments), a random one as function(value, rng, **arguments).
    arguments: by name. random: whether it takes a generator; results after the first random step are not cached.
    cache: where its results may be cached: "auto" (where it pays), one tier, or "never". name: unique in its pipeline.
    version: stands for its parts that have no fingerprint. ignore: places left out of its identity.
    batched: whether `function` takes and returns the columns of a batch; a random one gets one generator per row. The
    result for a batch equals those for its samples one by one.
    on_error: what happens to a sample on which it fails: "raise"; "skip" leaves it out of the batch; a function of the
    error and the value that the step got gives the step's result. Such a result is not cached, nor are those of later
    steps for the sample, so `on_error` is no part of the step's identity.

    Raises:
        TypeError: `function` is not callable, `random` or `batched` is no bool, or `on_error` takes no two arguments.
        ValueError: `cache` or `on_error` is unknown.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    random: bool = False
    cache: Caching = "auto"
    name: str = ""
    version: str | None = None
    ignore: tuple[str, ...] = ()
    batched: bool = False
    on_error: OnError = "raise"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"a step is a function of a value; got {self.function!r:.80}")
        for option, value in (("random", self.random), ("batched", self.batched)):
            if not isinstance(value, bool):
                raise TypeError(
                    f"{option} must be True or False; step {self.name!r} has {value!r:.80}. If an argument of the "
                    f"function has this name, use args={{{option!r}: ...}}"
                )
        if self.cache not in get_args(Caching):
            raise ValueError(f"cache must be one of {get_args(Caching)}; step {self.name!r} has {self.cache!r}")
        if self.on_error not in ("raise", "skip") and not callable(self.on_error):
            raise ValueError(
                f"on_error must be 'raise', 'skip' or a function of the error and the value; step {self.name!r} has "
                f"{self.on_error!r:.80}"
            )
        if callable(self.on_error) and not _takes_two(self.on_error):
            raise TypeError(
                f"on_error is called as fn(error, value), with the error and the value that the step got; that of step "
                f"{self.name!r} cannot take two arguments: {self.on_error!r:.80}"
            )

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers where its results may be cached."""
        return tuple(tier for tier in TIERS if self.cache in ("auto", tier))

    @property
    def is_forced(self) -> bool:
        """Whether its results are to be cached in one tier, and before others."""
        return self.cache in TIERS

    def __call__(self, value: Any, epoch: int, seed: int, index: int, number: int) -> Any:
        """The step's result for one sample.

        Args:
            value: the previous step's result. number: this step's index in its pipeline.
        """
        if self.batched:
            return row_of(self.on_batch(of_one(value), epoch, seed, np.array([index]), number), 0)
        if self.random:
            return self.function(value, sample_generator(seed, epoch, index, number), **self.arguments)
        return self.function(value, **self.arguments)

    def on_batch(self, columns: Any, epoch: int, seed: int, indices: Int64, number: int) -> Any:
        """The result of a batched step for the samples `indices`, whose columns it may change.

        Raises:
            SchemaMismatch: the function did not return one row per sample.
        """

        def call(columns: Any) -> Any:
            if self.random:
                rngs = [sample_generator(seed, epoch, index, number) for index in indices.tolist()]
                return self.function(columns, rngs, **self.arguments)
            return self.function(columns, **self.arguments)

        return call_on_columns(call, columns, len(indices), self.name)


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with two arguments, as far as its signature tells."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a function of C without a signature
        return True
    return True


def name_of(function: Callable[..., Any]) -> str:
    """The default name of a step."""
    inner = getattr(function, "func", function)  # of a partial
    return str(getattr(inner, "__name__", type(inner).__name__))


def merged(args: Mapping[str, Any] | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a function from both ways to give them; see `Pipeline.step`.

    Raises:
        TypeError: `args` is no mapping of names, or an argument is given twice.
    """
    if args is None:
        return dict(arguments)
    if not isinstance(args, Mapping) or not all(isinstance(name, str) for name in args):
        raise TypeError(f"args must be a dict of the function's arguments by name; got {args!r:.80}")
    if twice := args.keys() & arguments.keys():
        raise TypeError(f"the argument {min(twice)!r} is given twice, in args and by name")
    return {**args, **arguments}


def deterministic(steps: Sequence[Step]) -> int:
    """The number of steps before the first random one. Only results up to there may be cached."""
    return next((number for number, step in enumerate(steps) if step.random), len(steps))


def singles(steps: Sequence[Step]) -> int:
    """The number of steps before those at the end that run on whole batches."""
    return next((number for number in range(len(steps), 0, -1) if not steps[number - 1].batched), 0)
