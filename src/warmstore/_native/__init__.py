"""The native floor: copies, checksums and lookups at memory speed, without Python's lock.

`floor` is the compiled part, or `twin`, the same in plain NumPy, where that was not built. It knows addresses, widths
and numbers. It has no policy, opens no files and keeps no Python objects: who calls it decides what is right to do, and
how many threads are (`threads_for`).

WARMSTORE_NATIVE=0 takes the twin.
"""

from warmstore._native.chosen import floor, is_compiled
from warmstore._native.threads import most_threads, threads_for

__all__ = ["floor", "is_compiled", "most_threads", "threads_for"]
