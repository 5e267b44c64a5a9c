"""The `sampler` argument of a loader, as a Sampler."""

from typing import Any

import numpy as np

from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.samplers.sequential import Sequential
from warmstore.loading.samplers.shuffle import Shuffle

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
