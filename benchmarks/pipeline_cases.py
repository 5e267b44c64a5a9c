"""The real pipelines that benchmarks run, their profiles, plans, loaders and limit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

import warmstore as ws
from benchmarks import pipeline_data, pipeline_steps
from benchmarks.settings import Settings
from warmstore.loading.collate import stack
from warmstore.pipeline.plan.strategies import Strategy

BATCH = 64
_OVERHEAD = 1 << 20  # bytes of a tier beside its samples
RULES: tuple[Strategy, ...] = ("joint", "single", "sequential")
CORES = psutil.cpu_count() or 1


@dataclass(frozen=True)
class Case:
    """A pipeline, measured, in so many seconds.

    largest: bytes of all samples after the step that makes most of what can be kept.
    """

    name: str
    pipe: ws.Pipeline
    profile: ws.Profile
    profiled: float
    largest: int
    workers: int
    worker_bytes: int


def data_of(settings: Settings) -> Path:
    """The folder of real data; for a quick run that of the benchmark, with what it makes."""
    return pipeline_data.DATA if pipeline_data.DATA.exists() else settings.folder


def pipelines(settings: Settings) -> Iterator[tuple[str, ws.Pipeline]]:
    """The pipelines of speech, images and pages that have data, with up to 2,000 samples."""
    count = settings.pick(2000, 160)
    for name in ("speech", "images", "pages"):
        if (found := getattr(pipeline_steps, name)(data_of(settings))) is not None:
            yield name, ws.Pipeline(found.source[:: max(1, len(found.source) // count)][:count], found.steps)


def case_of(name: str, pipe: ws.Pipeline, settings: Settings) -> Case:
    began = time.perf_counter()
    seconds = settings.pick(12, 1)
    profile = pipe.profile(
        folder=settings.folder / name, batch_size=BATCH, seconds=seconds, refresh=True, progress=False
    )
    profiled = time.perf_counter() - began
    stages = profile.stages[: pipe.cacheable + 1]
    largest = max(int(np.dot(profile.counts, stage.nbytes)) for stage in stages)
    plain = pipe.plan(profile=profile, strategy="none", workers=CORES)
    return Case(name, pipe, profile, profiled, largest, CORES, plain.worker_bytes)


def plan_of(
    case: Case, memory: float, disk: float, folder: Path, rule: Strategy = "joint", workers: int | None = CORES
) -> ws.Plan:
    """A plan whose tiers have these bytes; the workers have theirs beside. Rules of a kind share no tier in memory.

    Without bytes in memory, workers are not counted: a plan without workers would cache samples in their memory.
    """
    extra = _OVERHEAD + RULES.index(rule)
    return case.pipe.plan(
        profile=case.profile, memory=int(memory) + case.worker_bytes + extra if memory else None,
        disk=int(disk) + extra if disk else None, folder=folder, workers=workers, strategy=rule,
    )  # fmt: skip


def seconds_of(loader: ws.Loader) -> float:
    began = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - began


def loader_of(case: Case, plan: ws.Plan | None) -> ws.Loader:
    return case.pipe.loader(plan, BATCH, workers=case.workers if plan is None else None, seed=0)


def limit_of(pipe: ws.Pipeline, batch: int = BATCH) -> float:
    """Seconds to gather from a list and run the steps that cannot be cached, on one core, by the number of cores."""
    rng = np.random.default_rng(0)
    values = [pipe.run(pipe.source[at], at, last=pipe.cacheable) for at in range(min(len(pipe), 512))]
    order = rng.integers(0, len(values), len(pipe))
    began = time.perf_counter()
    for first in range(0, len(order), batch):
        stack([pipe.run(values[at], at, first=pipe.cacheable) for at in order[first : first + batch].tolist()])
    return (time.perf_counter() - began) / CORES
