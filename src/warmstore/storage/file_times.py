"""Times of files, as file systems keep them: in ticks. Two writes within one tick have the same time.

A file that is rewritten within the tick of its last write, with the same size, looks unchanged by size and time. So
whoever is about to rely on a time first waits until its tick is over. What is written after that has another time.
"""

import time

import numpy as np

from warmstore.storage.array_types import Int64

TICK = 10_000_000
"""Nanoseconds. Kernels take the times of files from a clock that moves every 1 to 10 ms."""
COARSE_TICK = 2_000_000_000
"""Nanoseconds. Some file systems keep whole seconds, or every second one: FAT, HFS+, NFS from such a disk."""
_SECOND = 1_000_000_000
_LONGEST = 2 * COARSE_TICK


def settle(modified: int) -> None:
    """Wait until the tick of a file's time `st_mtime_ns` is over.

    That takes up to 10 ms after a write, and up to 2 s if the time is a whole second. A time that is further in the
    future comes from another clock, which no wait here would move on.
    """
    left = modified + (TICK if modified % _SECOND else COARSE_TICK) - time.time_ns()
    if 0 < left <= _LONGEST:
        time.sleep(left / 1e9)


def settle_all(modified: Int64) -> None:
    """`settle` for many files: int64 [n]."""
    now = time.time_ns()
    recent = modified[(modified > now - COARSE_TICK) & (modified < now + _LONGEST)]
    left = recent - now + np.where(recent % _SECOND != 0, TICK, COARSE_TICK)
    longest = int(left[left <= _LONGEST].max(initial=0))
    if longest > 0:
        time.sleep(longest / 1e9)
