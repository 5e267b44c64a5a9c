"""The `sampler` argument of a loader, as a Sampler."""

from typing import Any

import numpy as np

from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.samplers.sequential import Sequential
from warmstore.loading.samplers.shuffle import Shuffle

_CHOICES = 'a ws.Sampler such as Shuffle(seed=0), "sequential", "shuffle", or None for Sequential()'


def sampler_of(value: Any) -> Sampler:
    """The sampler for a `sampler` argument: None, "sequential", "shuffle" or a Sampler.

    Raises:
        ValueError: a string that names no sampler.
        TypeError: any other value.
    """
    if isinstance(value, Sampler):
        return value
    if value is None or (isinstance(value, str) and value == "sequential"):
        return Sequential()
    if isinstance(value, str):
        if value == "shuffle":
            return Shuffle(seed=0)
        raise ValueError(f"sampler={value!r:.80} names no sampler; pass {_CHOICES}")
    if isinstance(value, bool | int | np.bool_ | np.integer):
        is_flag = isinstance(value, bool | np.bool_)
        advice = "Sequential()" if is_flag and not value else f"Shuffle(seed={0 if is_flag else value})"
        raise TypeError(f"sampler must be a sampler; got {value!r}. Did you mean {advice}? Pass {_CHOICES}")
    if isinstance(value, type) and issubclass(value, Sampler):
        raise TypeError(f"sampler must be an instance; got the class {value.__name__}. Pass {_CHOICES}")
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(f"sampler must be a ws.Sampler; got the {kind} {value!r:.80}. Pass {_CHOICES}")
