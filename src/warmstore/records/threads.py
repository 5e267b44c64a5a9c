"""The worker threads of this process, for work that releases Python's lock: compression and hashing."""

import functools
import os
from concurrent.futures import ThreadPoolExecutor


def thread_count() -> int:
    """How many threads are worth having."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 16)


def pool() -> ThreadPoolExecutor:
    """The threads, started when first needed; a forked child gets its own."""
    return _pool(os.getpid())


@functools.lru_cache(maxsize=1)
def _pool(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_count(), thread_name_prefix="warmstore")
