"""Checks of arguments. Errors quote the invalid value."""

import operator
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

MOST_SAMPLES = 2**62  # of a source, and places of an epoch: the sum of two fits an int64


def integer(name: str, value: Any, least: int, most: int) -> int:
    """`value` as an int. NumPy's integers are accepted; bools and floats are not.

    Raises:
        ValueError: not an integer, or outside [least, most].
    """
    if not isinstance(value, bool):
        try:
            whole = operator.index(value)
        except TypeError:
            pass
        else:
            if least <= whole <= most:
                return whole
    raise ValueError(f"{name} must be an integer from {_power(least)} to {_power(most)}; got {value!r:.80}")


def position(index: Any, count: int) -> int:
    """An index into `count` samples, from 0. A negative one counts from the end.

    Raises:
        TypeError: it is no integer.
        IndexError: there is no such sample.
    """
    try:
        at = operator.index(index)
    except TypeError:
        hint = ": for several samples use [data[at] for at in range(...)]" if isinstance(index, slice) else ""
        raise TypeError(f"an index is one integer; got {index!r:.80}{hint}") from None
    if not -count <= at < count:
        raise IndexError(f"there are {count:,} samples; got the index {at}")
    return at % count


def check_whole(name: str, numbers: Any) -> None:
    """Raise ValueError if an element of a masked array is masked: what is beneath is arbitrary, mostly 0."""
    if np.ma.is_masked(numbers):
        first = int(np.flatnonzero(np.ma.getmaskarray(numbers))[0])
        raise ValueError(f"{name} {first:,} is masked, and every sample needs one: fill it in, with .filled(...)")


def set_fields(instance: Any, **values: Any) -> None:
    """Set fields of a frozen dataclass, in its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def options_of(instance: Any) -> dict[str, Any]:
    """The arguments of a dataclass that make an equal instance, by name."""
    return {option.name: getattr(instance, option.name) for option in fields(instance) if option.init}


_OTHER_NAMES = {
    "batch_sampler": "sampler=, and batch_size",
    "collate_fn": "collate= for values that vary in length, transform= for all else",
    "drop_last": 'uneven="drop"',
    "generator": "sampler=ws.Shuffle(seed=...)",
    "num_workers": "workers= for threads, processes= for processes",
    "order": "sampler=",
    "orders": "samplers=",
    "pad": 'uneven="full" for batches of one shape; the default, "pad", keeps ranks in step',
    "pin_memory": 'to="cuda", which copies from pinned memory',
    "prefetch_factor": "prefetch=",
    "shuffle": 'sampler="shuffle", or sampler=ws.Shuffle(seed=...)',
}


def refuse(name: str, unknown: Mapping[str, object]) -> None:
    """Raise TypeError for unknown options. The error names the option that replaces an option of another library."""
    for option, value in unknown.items():
        advice = f"; pass {_OTHER_NAMES[option]}" if option in _OTHER_NAMES else ""
        raise TypeError(f"{name} has no option {option}={value!r:.80}{advice}")


def _power(number: int) -> str:
    """A number, as "2**62" or "2**62 - 1" where it is a large power of two or one less."""
    for added, text in ((0, ""), (1, " - 1")):
        bits = (number + added).bit_length() - 1
        if bits >= 32 and number + added == 1 << bits:
            return f"2**{bits}{text}"
    return f"{number:,}"
