"""How many threads a call of the floor should use.

A second thread nearly halves the time of a copy of half a megabyte if a processor is idle and the thread is awake, as
in a loop that only copies. After a pause of 2 ms, waking the thread costs more than it saves. Without an idle
processor the copy becomes much slower: the caller waits milliseconds for a thread that the system has stopped. So a
call uses one thread unless processors are known to be idle, and all threads only for copies that take longer than that.
"""

import contextlib
import functools
import math
import multiprocessing
import os
import sys
import time

from warmstore._native.cgroups import group_folders
from warmstore._native.chosen import floor

_SMALL = 1 << 17
"""Bytes that one thread has copied before a second one has started."""
_WORTH_WAKING = 1 << 21
"""Bytes from which a sleeping thread is woken. For fewer bytes only calls in a loop get helpers."""
_LOOP = 2e-4
"""Seconds between two calls of a loop that does little else. A helper stays awake for about this long."""
_ROUNDS = 8
"""Calls after which a loop is expected to continue. Before that, waking a helper does not pay."""
_SECONDS_A_BYTE = 1.5e-10
_LARGE = 1 << 23
"""Bytes from which all threads are used, whether processors are busy or not."""
_KNOWN_FOR = 0.002
"""Seconds for which the number of idle processors is cached."""


def threads_for(nbytes: int) -> int:
    """Threads for copying or hashing `nbytes` bytes."""
    global _asked, _rounds
    if nbytes < _SMALL:
        return 1
    now = time.monotonic()
    _rounds = _rounds + 1 if now - _asked < _LOOP + nbytes * _SECONDS_A_BYTE else 0
    _asked = now
    if _rounds < _ROUNDS and nbytes < _WORTH_WAKING:
        return 1
    most = most_threads()
    return most if nbytes >= _LARGE else max(min(most, 1 + _idle(now)), 1)


def most_threads() -> int:
    """The most threads that a call may use: the limit of torch, or OMP_NUM_THREADS, and at most the processors of this
    process. 1 in a worker process: its parent has divided the processors already."""
    most = _processors()
    torch = sys.modules.get("torch")
    limit = torch.get_num_threads() if torch is not None and hasattr(torch, "get_num_threads") else most
    return max(min(most, int(limit)), 1)


@functools.cache
def _processors() -> int:
    if multiprocessing.current_process().daemon:  # loaders' workers are daemons, ranks are not
        return 1
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    omp = os.environ.get("OMP_NUM_THREADS", "")
    quotas = [int(omp)] if omp.isdecimal() and int(omp) else []
    return max(min([found, *quotas, *_cgroup_quotas()]), 1)


os.register_at_fork(after_in_child=_processors.cache_clear)


def _cgroup_quotas() -> list[int]:
    """The processors that the control groups of this process allow; [] if they allow all."""
    found = []
    for folder in group_folders("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            with contextlib.suppress(OSError, ValueError):  # of the other version, or "max"
                quota, period = " ".join((folder / name).read_text() for name in names).split()
                found += [math.ceil(int(quota) / int(period))] if int(quota) > 0 else []
    return found


_asked = 0.0
_rounds = 0
_idle_until = 0.0
_idle_now = 0


def _idle(now: float) -> int:
    """Processors without a running thread."""
    global _idle_until, _idle_now
    if now >= _idle_until:
        _idle_now, _idle_until = _count_idle(), now + _KNOWN_FOR
    return _idle_now


def _count_idle() -> int:
    awake = int(floor.helpers_awake())
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:  # "0.20 0.18 0.12 1/80 11206": 1 of 80 threads runs
            running = int(file.read(64).split()[3].partition(b"/")[0])
    except (OSError, ValueError, IndexError):  # unknown on this system
        return 0
    return (os.cpu_count() or 1) - max(running - awake, 1)
