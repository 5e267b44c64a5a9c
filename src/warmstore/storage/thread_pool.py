"""The worker threads of this process, for work that releases Python's lock: compression and hashing."""

import functools
import os
from concurrent.futures import ThreadPoolExecutor


def thread_count() -> int:
    """The number of threads worth starting: one per processor, at most 16."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 16)


def pool(threads: int | None = None) -> ThreadPoolExecutor:
    """A pool of `threads` threads, by default `thread_count()`. They start when they are first needed."""
    return _pool(os.getpid(), threads or thread_count())


@functools.lru_cache(maxsize=4)
def _pool(pid: int, threads: int) -> ThreadPoolExecutor:
    # A forked child has another pid, and so its own pool.
    return ThreadPoolExecutor(threads, thread_name_prefix="warmstore")
