"""Where the time of a steady epoch goes: CPU microseconds per sample of each part, with all samples in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import psutil

import warmstore as ws
from warmstore.loading.collate import stack
from warmstore.pipeline.metering.epoch_meter import EpochMeter
from warmstore.pipeline.plan_opening import source_of
from warmstore.pipeline.sample_generators import sample_generator
from warmstore.pipeline.stacked_batch import StackedBatch

PARTS = ("limit", "in one process", "read", "generators", "steps", "stack", "other", "2 workers", "main process")
"""The columns. limit: values from a list, the steps, and a stack. other: checks, orders and calls."""

_BEST_OF = 5


def parts_of(pipe: ws.Pipeline, plan: ws.Plan, batch: int) -> tuple[float, ...]:
    """CPU microseconds per sample of `PARTS`."""
    count, last, steps = len(pipe), pipe.cacheable, pipe.steps
    random = [number for number, step in enumerate(steps) if step.random]
    order = np.random.default_rng(0).permutation(count)
    batches = [order[first : first + batch] for first in range(0, count, batch)]
    values = [pipe.run(pipe.source[at], at, last=last) for at in range(min(count, 512))]

    def best(epoch: Callable[[], object]) -> float:
        taken = []
        for _ in range(_BEST_OF):
            began = time.process_time()
            epoch()
            taken.append(time.process_time() - began)
        return min(taken) / count * 1e6

    def run(at: int) -> Any:
        return pipe.run(values[at % len(values)], at, first=last)

    def stack_again() -> None:
        for positions in batches:
            made = StackedBatch(len(positions), alike=True)
            for place, at in enumerate(positions.tolist()):
                made.put(place, done[at % len(done)])
            made.stacked()

    done = [run(at) for at in range(len(values))]
    limit = best(lambda: [stack([run(at) for at in positions.tolist()]) for positions in batches])
    generators = best(lambda: [sample_generator(0, 0, at, step) for at in order.tolist() for step in random])
    ran = best(lambda: [run(at) for at in order.tolist()]) - generators
    stacked = best(stack_again)
    with closing(pipe.loader(plan, batch, workers=0, seed=0)) as loader:
        list(loader)
        whole = best(lambda: [None for _ in loader])
        source = source_of(pipe._chain, plan, 0)
        stores = source.cached.open()
        assert stores is not None
        size = stores.at_once()
        pieces = [order[first : first + size] for first in range(0, count, size)]
        read = best(lambda: [stores.read(positions, EpochMeter()) for positions in pieces])
        source.release()
    other = whole - read - generators - ran - stacked
    return limit, whole, read, generators, ran, stacked, other, *_in_workers(pipe, plan, batch)


def _in_workers(pipe: ws.Pipeline, plan: ws.Plan, batch: int) -> tuple[float, float]:
    """CPU microseconds per sample of two workers together, and of the main process beside them."""
    with closing(pipe.loader(plan, batch, workers=2, seed=0)) as loader:
        for _ in range(6):  # each worker checks the bytes of what it reads for the first time
            list(loader)
        workers = psutil.Process().children(recursive=True)
        before, began = sum(map(_cpu, workers)), time.process_time()
        for _ in range(_BEST_OF):
            list(loader)
        own, theirs = time.process_time() - began, sum(map(_cpu, workers)) - before
    samples = _BEST_OF * len(pipe)
    return theirs / samples * 1e6, own / samples * 1e6


def _cpu(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))
