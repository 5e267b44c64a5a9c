"""How many threads a call of the floor should have.

A second thread makes a copy of half a megabyte nearly twice as fast where a processor is idle and the thread awake, as
it is in a loop that does nothing but copy; after a pause of 2 ms waking it costs more than it saves. Where no processor
is idle it makes the copy much slower: who waits for a thread that the system has stopped waits for milliseconds. So
there is one thread unless processors are known to be idle, and all of them only for what takes longer than that.
"""

import functools
import math
import multiprocessing
import os
import sys
import time
from pathlib import Path

from warmstore._native.chosen import floor

_SMALL = 1 << 17
"""Bytes below which one thread has copied before a second has begun."""
_WORTH_WAKING = 1 << 21
"""Bytes that take so long that a sleeping thread is woken for them; for fewer only a loop has helpers."""
_LOOP = 2e-4
"""Seconds between two calls in a loop that does little else; a helper is awake for about so long."""
_ROUNDS = 8
"""Calls after which a loop is believed to go on; until then waking a helper is for nothing."""
_SECONDS_A_BYTE = 1.5e-10
_LARGE = 1 << 23
"""Bytes for which all threads are asked, busy or not."""
_KNOWN_FOR = 0.002
"""Seconds for which an answer of the system holds."""


def threads_for(nbytes: int) -> int:
    """Threads for copying or hashing so many bytes."""
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
    """The most threads that a call may have: what torch was told, else OMP_NUM_THREADS, and no more than there are
    processors for this process. One in a worker process, which has its share already."""
    most = _processors()
    torch = sys.modules.get("torch")
    told = torch.get_num_threads() if torch is not None and hasattr(torch, "get_num_threads") else most
    return max(min(most, int(told)), 1)


@functools.cache
def _processors() -> int:
    if multiprocessing.current_process().daemon:  # as loaders' workers are, and ranks are not
        return 1
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get("OMP_NUM_THREADS", "")
    quotas = [int(told)] if told.isdecimal() and int(told) else []
    return max(min([found, *quotas, *_cgroup_quota()]), 1)


os.register_at_fork(after_in_child=_processors.cache_clear)


def _cgroup_quota() -> list[int]:
    """Processors that this process's group may use, where that is limited: https://docs.kernel.org, cgroups 2 and 1."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            folder = Path("/sys/fs/cgroup/cpu")
            quota, period = (folder.joinpath(f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except OSError:
            return []
    try:
        return [math.ceil(int(quota) / int(period))] if int(quota) > 0 else []
    except ValueError:  # "max"
        return []


_asked = 0.0
_rounds = 0
_idle_until = 0.0
_idle_now = 0


def _idle(now: float) -> int:
    """Processors that nothing runs on."""
    global _idle_until, _idle_now
    if now >= _idle_until:
        _idle_now, _idle_until = _count_idle(), now + _KNOWN_FOR
    return _idle_now


def _count_idle() -> int:
    awake = int(floor.helpers_awake())
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:  # "0.20 0.18 0.12 1/80 11206": running, of all
            running = int(file.read(64).split()[3].partition(b"/")[0])
    except (OSError, ValueError, IndexError):  # another system: it is not known
        return 0
    return (os.cpu_count() or 1) - max(running - awake, 1)
