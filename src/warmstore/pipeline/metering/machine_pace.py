"""The pace of the machine: seconds of a fixed piece of work. It changes with clock rates and with other programs."""

import time

import numpy as np

_RUNS = 5
_SIZE = 1 << 17


def machine_pace() -> float:
    """Seconds of a fixed piece of work, the median of five runs of about a millisecond.

    It sorts numbers and copies arrays, as preprocessing does: both the cores and the memory count.
    """
    values = np.random.default_rng(0).random(_SIZE)
    taken = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        np.sort(values[: _SIZE // 8])
        for _ in range(8):
            values.copy()
        taken.append(time.perf_counter() - began)
    return sorted(taken)[_RUNS // 2]
