"""The worker threads of this process, for work that releases Python's lock: compression and hashing."""

import functools
import os
from concurrent.futures import ThreadPoolExecutor


def thread_count() -> int:
    """How many threads are worth having."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 16)


def pool(threads: int | None = None) -> ThreadPoolExecutor:
    """So many threads, as many as are worth having by default, started when first needed."""
    return _pool(os.getpid(), threads or thread_count())


@functools.lru_cache(maxsize=4)
def _pool(pid: int, threads: int) -> ThreadPoolExecutor:
    # A forked child has another pid, and so its own.
    return ThreadPoolExecutor(threads, thread_name_prefix="warmstore")
