"""Measures throughput by the number of workers, and the cost of batches beside the steps."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil

from warmstore.loading.loader import Loader
from warmstore.pipeline.chain import Chain
from warmstore.pipeline.pipeline_loader import checked_workers, loader_of
from warmstore.pipeline.pipeline_source import uncached_source
from warmstore.pipeline.profile.profile import Scaling
from warmstore.pipeline.profile.profile_options import ProfileOptions
from warmstore.pipeline.profile.step_profiler import Tick

_SETTLE = 2  # batches per worker before the clock starts
_LEAST = 0.4  # seconds of a measurement, at least: a skipped number of workers would count as useless
_WINDOWS = 4  # windows of a measurement
_SLOW = 0.5  # seconds of a batch from which on the time of a measurement is planned before it
_BATCH = 0.05  # seconds of work in a measured batch, at most


@dataclass(frozen=True)
class Throughput:
    """A loader's steady state. rate: samples a second. own, others: CPU seconds per sample, here and in workers.

    nbytes: private memory of one worker.
    """

    rate: float
    own: float
    others: float
    nbytes: int


def doubled(
    chain: Chain, options: ProfileOptions, cpu: float, wait: float, nbytes: int, until: float, tick: Tick
) -> list[Scaling]:
    """Run the uncached pipeline with 1, 2, 4 ... workers until a doubling raises the rate by less than the cutoff.

    If a sample takes so long that there is no time for it, the rate is computed from the seconds of a sample.

    Args:
        cpu, wait: approximate CPU seconds and seconds of waiting per sample. nbytes: memory of a worker without steps.
        until: of `time.perf_counter`, approximately. tick: called after each number of workers.
    """
    found: list[Scaling] = []
    count, most, cutoff = 1, options.max_workers, options.cutoff
    steps = max(1, int(math.log2(most)) + 1)
    batch_size = max(1, min(options.batch_size, int(_BATCH / max(cpu, 1e-9))))
    while count <= most:
        tick(1)
        left = until - time.perf_counter()
        if (cpu + wait) * batch_size > _SLOW and (_SETTLE + 2) * (cpu + wait) * batch_size > left:
            busy = min(count, os.cpu_count() or 1)
            rate = min(count / (cpu + wait), busy / max(cpu, 1e-9))
            known = found[-1] if found else Scaling(0, 0.0, nbytes)
            if rate < known.rate * (1 + cutoff):
                break
            found.append(Scaling(count, rate, known.nbytes))
            count *= 2
            continue
        pace = measure(chain, batch_size, count, max(_LEAST, left / max(1, steps - len(found))))
        if found and pace.rate < found[-1].rate * (1 + cutoff):
            if pace.rate > found[-1].rate:
                found.append(Scaling(count, pace.rate, pace.nbytes))
            break
        found.append(Scaling(count, pace.rate, pace.nbytes))
        count *= 2
    return found


def measure(chain: Chain, batch_size: int, workers: int, seconds: float) -> Throughput:
    """Read batches of the uncached pipeline for `seconds`, over as many epochs as needed.

    Returns the median of a few windows, so that a short disturbance does not count.
    """
    batch_size = max(1, min(batch_size, len(chain) // max(1, workers)))
    others = _children()
    workers = checked_workers(chain.steps, workers, None)
    source = uncached_source(chain)
    # All samples, also in a rank of several: a loader counts the places of all ranks, and makes the batches of one.
    options: dict[str, Any] = {"on_error": "skip", "rank": 0, "world_size": 1}
    with closing(loader_of(source, batch_size, workers=workers, **options)) as loader:
        batches = _endless(loader)
        for _ in range(_SETTLE * max(workers, 1)):
            next(batches)
        until = time.perf_counter() + seconds
        processes = _children() - others
        paces = [_pace(loader, batches, seconds / _WINDOWS, processes)]
        while time.perf_counter() < until:
            paces.append(_pace(loader, batches, seconds / _WINDOWS, processes))
        nbytes = _memory_of(processes)
    return replace(sorted(paces, key=lambda pace: pace.rate)[len(paces) // 2], nbytes=nbytes)


def _pace(loader: Loader, batches: Iterator[Any], seconds: float, workers: set[psutil.Process]) -> Throughput:
    own, others = time.process_time(), _cpu_of(workers)
    began, before, samples = time.perf_counter(), _handed_out(loader), 0
    while not samples or time.perf_counter() - began < seconds:
        next(batches)
        samples = _handed_out(loader) - before
    took = time.perf_counter() - began
    own, others = time.process_time() - own, _cpu_of(workers) - others
    return Throughput(samples / took, own / samples, max(others, 0.0) / samples, 0)


def _endless(loader: Any) -> Any:
    while True:
        yield from loader


def _handed_out(loader: Loader) -> int:
    """The positions of all batches so far. A batch alone does not tell: it may be an empty dict or tuple."""
    cursor = loader._cursor
    return cursor.finished * (cursor.samples or 0) + cursor.place


def _children() -> set[psutil.Process]:
    """All descendants of this process, also those of a fork server."""
    return set(psutil.Process().children(recursive=True))


def _cpu_of(workers: set[psutil.Process]) -> float:
    """CPU seconds of all workers together."""
    return float(sum(times.user + times.system for times in _figures(workers, psutil.Process.cpu_times)))


def _memory_of(workers: set[psutil.Process]) -> int:
    """The largest private memory of a worker in bytes; 0 without workers."""
    return max((int(memory.uss) for memory in _figures(workers, psutil.Process.memory_full_info)), default=0)


def _figures(workers: set[psutil.Process], figure: Callable[[psutil.Process], Any]) -> Iterator[Any]:
    """A figure of each worker that has not ended."""
    for worker in workers:
        with contextlib.suppress(psutil.Error):
            yield figure(worker)


class Ready:
    """A source of ready samples, to measure a loader without steps."""

    identity = "ready"  # fixed: the samples need not be read for it

    def __init__(self, values: list[Any], count: int) -> None:
        self._values = values
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._values[int(np.int64(index)) % len(self._values)]
