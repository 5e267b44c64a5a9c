"""Options of a loader that are checked at the door."""

import multiprocessing
from typing import Any


def check_options(
    transform: Any, *, random: Any, seed: Any, workers: Any, processes: Any, start_method: Any, **flags: Any
) -> None:
    """Raise for options that cannot be, or that have no effect together.

    Args:
        flags: options that are True or False, by name.

    Raises:
        TypeError: a transform that cannot be called, or a flag that is no bool.
        ValueError: anything else.
    """
    for name, value in {"random": random, **flags}.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False; got {value!r:.80}")
    if transform is not None and not callable(transform):
        raise TypeError(f"transform must be a function of a batch; got {transform!r:.80}")
    if random and transform is None:
        raise ValueError("random=True is for a transform, and there is none")
    if seed is not None and not random:
        raise ValueError(f"seed={seed!r:.40} is of the generators of random=True; pass sampler=ws.Shuffle(seed=...)")
    if processes and workers:
        raise ValueError(f"threads or processes: got workers={workers!r:.40} and processes={processes!r:.40}")
    methods = multiprocessing.get_all_start_methods()
    if start_method is not None and start_method not in methods:
        raise ValueError(f"start_method must be one of {methods}; got {start_method!r:.40}")
