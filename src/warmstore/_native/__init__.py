"""The native floor: copies, checksums and lookups at memory speed, without Python's lock.

`floor` is the compiled module, or `twin`, the same functions in NumPy, where that was not built; WARMSTORE_NATIVE=0
selects the twin. The floor gets addresses, widths and numbers. It decides nothing, opens no files and keeps no Python
objects. The caller decides how many threads a call may use (`threads_for`).
"""

from warmstore._native.chosen import floor, is_compiled
from warmstore._native.thread_counts import most_threads, threads_for

__all__ = ["floor", "is_compiled", "most_threads", "threads_for"]
