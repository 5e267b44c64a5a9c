"""Whole numbers a user hands in: checked at the door, and quoted where they are wrong."""

import operator
from typing import Any

MOST_SAMPLES = 2**62  # of a source, and places of an epoch: sums of two of them still fit an int64


def integer(name: str, value: Any, least: int, most: int) -> int:
    """`value` as an int; NumPy's integers are welcome, bools and floats are not.

    Raises:
        ValueError: no integer, or outside [least, most].
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


def _power(number: int) -> str:
    """2**62 rather than nineteen digits."""
    for less, text in ((0, ""), (1, " - 1")):
        bits = (number + less).bit_length() - 1
        if bits >= 32 and number + less == 1 << bits:
            return f"2**{bits}{text}"
    return f"{number:,}"
