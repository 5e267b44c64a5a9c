"""What the twins of the compiled floor check in their arguments."""

from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Int64 = np.ndarray[Any, np.dtype[np.int64]]
UInt64 = np.ndarray[Any, np.dtype[np.uint64]]


def check_length(name: str, buffer: np.ndarray[Any, Any], expected: int) -> None:
    """Raise ValueError unless a buffer has `expected` bytes."""
    if buffer.nbytes != expected:
        raise ValueError(f"{name} has {buffer.nbytes} bytes; expected {expected}")


def check_inside(starts: Int64, lengths: Int64, size: int) -> None:
    """Raise IndexError unless all spans lie in memory of `size` bytes."""
    wrong = (starts < 0) | (lengths < 0) | (lengths > size) | (starts > size - lengths)
    if wrong.any():
        at = int(np.argmax(wrong))
        start, length = int(starts[at]), int(lengths[at])
        raise IndexError(f"span {at} is [{start}, {start} + {length}), and the memory has {size} bytes")
