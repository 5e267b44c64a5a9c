"""A step of a pipeline: a function of a value, with arguments, and what may be kept of its results.

A random step gets a generator that is a function of the seed, the epoch, the sample and the step, so that its result
does not depend on who computes it, when, and after what.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

Caching = Literal["auto", "never", "memory", "disk"]


@dataclass(frozen=True)
class Step:
    """One step.

    function: called as function(value, **arguments), a random one as function(value, rng, **arguments).
    arguments: by name. random: whether it draws; nothing after the first random step is kept.
    cache: whether its results are kept where that pays ("auto"), in one tier only, or "never". name: unique in its
    pipeline. version: stands for what of it cannot be told. ignore: places that do not count, as messages show them.

    Raises:
        TypeError: a function that cannot be called.
        ValueError: another `cache`.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    random: bool = False
    cache: Caching = "auto"
    name: str = ""
    version: str | None = None
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"a step is a function of a value; got {self.function!r:.80}")
        if self.cache not in get_args(Caching):
            raise ValueError(f"cache must be one of {get_args(Caching)}; step {self.name!r} has {self.cache!r}")

    def __call__(self, value: Any, epoch: int, seed: int, index: int, number: int) -> Any:
        """The step's result for one sample.

        Args:
            value: what the step before returned. number: of this step in its pipeline, from 0 on.
        """
        if self.random:
            rng = np.random.default_rng([seed, epoch, index, number])
            return self.function(value, rng, **self.arguments)
        return self.function(value, **self.arguments)


def name_of(function: Callable[..., Any]) -> str:
    """What to call a step that was given no name."""
    inner = getattr(function, "func", function)  # of a partial
    return str(getattr(inner, "__name__", type(inner).__name__))


def deterministic(steps: Sequence[Step]) -> int:
    """How many steps there are before the first random one: so many results, and the source's, may be kept."""
    return next((number for number, step in enumerate(steps) if step.random), len(steps))
