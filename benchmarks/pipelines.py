"""What a plan buys on real pipelines: against no cache, the best single step, and memory first and then the disk."""

from __future__ import annotations

import operator
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

import warmstore as ws
from benchmarks import pipeline_data, pipeline_steps
from benchmarks.pipeline_watch import Watch, tier_bytes
from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings
from warmstore.loading.collate import stack
from warmstore.pipeline.plan.strategies import Strategy

BATCH = 64
_OVERHEAD = 1 << 20  # bytes of a tier beside its samples
SHARES = (0.10, 0.25, 0.50, 0.75, 1.00)
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


@dataclass(frozen=True)
class Outcome:
    """Seconds of epochs: without a cache, the first, steady, a second run's first, steady from the disk, the limit.

    filling: a first epoch over an uncached one, both from the start of their workers.
    """

    uncached: float
    first: float
    steady: float
    again: float
    from_disk: float
    computed_again: int
    limit: float
    filling: float


@dataclass(frozen=True)
class Round:
    """One budget, `share` of all bytes; memory: bytes of it for that tier.

    took: seconds of a steady epoch by rule. against: the joint plan's epochs over each rule's, round by round.
    predicted, band: of the joint plan, and the least and most that it expects. drift: an uncached epoch over its prediction, of the same profile and the same time.
    over: the most bytes a tier had beyond its budget. grown: bytes of memory beyond an uncached run's. planned,
    profiled: seconds that took.
    """

    share: float
    memory: float
    took: dict[str, float]
    against: dict[str, float]
    predicted: float
    band: tuple[float, float]
    drift: float
    over: int
    grown: float
    planned: float
    profiled: float


def run(settings: Settings) -> Report:
    data = pipeline_data.DATA if pipeline_data.DATA.exists() else settings.folder
    count = settings.pick(2000, 160)
    shares = SHARES if not settings.quick else (0.5,)
    cases: list[Case] = []
    everything: dict[str, Outcome] = {}
    rounds: dict[str, list[Round]] = {}
    for name in ("speech", "images", "pages"):
        if (found := getattr(pipeline_steps, name)(data)) is None:
            continue
        pipe = ws.Pipeline(found.source[:: max(1, len(found.source) // count)][:count], found.steps)
        case = _case(name, pipe, settings)
        cases.append(case)
        everything[name] = _everything(case, settings)
        rounds[name] = []
        for share in shares:
            case = _case(name, pipe, settings)  # anew: a profile is of the machine as it is now
            rounds[name].append(_budget(case, share, settings))
    return Report(
        "pipelines",
        "Preprocessing of real samples, epoch after epoch: what is kept of which step, and what that saves.",
        (_table_of_everything(cases, everything), *(_table_of_rounds(case, rounds[case.name]) for case in cases)),
        tuple(_bars(cases, everything, rounds)),
        (
            pipeline_data.says(data) if data == pipeline_data.DATA else pipeline_data.says(settings.folder),
            f"Batches of {BATCH}, {CORES} worker processes; steady epochs, the rules in turn, medians of epochs and of "
            "what they take over each other's of the same round. Every budget has a profile of its own, taken right "
            "before; drift: an uncached epoch right after it, over its prediction. First epochs and uncached ones are "
            "in turn, three of each, from the start of their workers; the bar is of the median of pairs.",
            "A budget is a share of the bytes of the step that makes most, half of it memory and half disk, beside "
            "what the workers take. The page cache holds the disk tier: there is memory for it.",
            "between: the band in which the plan expects epochs below a second, which have costs of their own.",
            "single: one step in one codec, as many samples as fit. sequential: memory, then the disk for the rest.",
        ),
    )


def _case(name: str, pipe: ws.Pipeline, settings: Settings) -> Case:
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


def _plan(
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


def _epoch(loader: ws.Loader) -> float:
    began = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - began


def _loader(case: Case, plan: ws.Plan | None) -> ws.Loader:
    return case.pipe.loader(plan, BATCH, workers=case.workers if plan is None else None, seed=0)


def _everything(case: Case, settings: Settings) -> Outcome:
    """All that may be kept fits in memory; and a second run over a tier on the disk."""
    folder, rounds = settings.folder / f"{case.name}-all", settings.pick(3, 2)
    plan = _plan(case, 1.5 * case.largest, 0, folder, workers=None)
    begun, uncached, first, steady = [], [], [], []
    for _ in range(settings.pick(3, 1)):
        with closing(_loader(case, None)) as plain:
            begun.append(_epoch(plain))
            uncached.append(_epoch(plain))
        with closing(_loader(case, plan)) as kept:
            first.append(_epoch(kept))
            steady += [_epoch(kept) for _ in range(rounds)]
    on_disk = _plan(case, 0, 1.5 * case.largest, folder, workers=None)
    with closing(_loader(case, on_disk)) as one:
        _epoch(one)
        from_disk = statistics.median(_epoch(one) for _ in range(rounds))
    before = tier_bytes(folder)
    with closing(_loader(case, on_disk)) as other:
        again = _epoch(other)
    grown = max(0, tier_bytes(folder) - before)
    return Outcome(
        statistics.median(uncached),
        statistics.median(first),
        statistics.median(steady),
        again,
        from_disk,
        grown,
        limit_of(case.pipe),
        statistics.median(map(operator.truediv, first, begun)),
    )


def limit_of(pipe: ws.Pipeline, batch: int = BATCH) -> float:
    """Seconds to gather from a list and run the steps that cannot be cached, on one core, by the number of cores."""
    rng = np.random.default_rng(0)
    values = [pipe.run(pipe.source[at], at, last=pipe.cacheable) for at in range(min(len(pipe), 512))]
    order = rng.integers(0, len(values), len(pipe))
    began = time.perf_counter()
    for first in range(0, len(order), batch):
        stack([pipe.run(values[at], at, first=pipe.cacheable) for at in order[first : first + batch].tolist()])
    return (time.perf_counter() - began) / CORES


def _budget(case: Case, share: float, settings: Settings) -> Round:
    """One budget, half memory and half disk, by every rule in turn."""
    half = share * case.largest / 2
    plans = {rule: _plan(case, half, half, settings.folder / f"{case.name}-{share}-{rule}", rule) for rule in RULES}
    with closing(_loader(case, None)) as plain, Watch(None) as bare:
        _epoch(plain)
        uncached = _epoch(plain)
    with ExitStack() as stack:
        loaders = {rule: stack.enter_context(closing(_loader(case, plan))) for rule, plan in plans.items()}
        with Watch(plans["joint"].folder) as watch:
            _epoch(loaders["joint"])
            _epoch(loaders["joint"])
        for rule in RULES[1:]:
            _epoch(loaders[rule])
        took: dict[str, list[float]] = {rule: [] for rule in RULES}
        began = time.perf_counter()
        while len(took["joint"]) < settings.pick(5, 2) or (
            len(took["joint"]) < settings.pick(25, 2) and time.perf_counter() - began < 20
        ):
            for rule, loader in loaders.items():
                took[rule].append(_epoch(loader))
    joint = plans["joint"]
    over = max(watch.memory - (joint.memory - joint.worker_bytes), watch.disk - joint.disk, 0)
    return Round(
        share,
        half,
        {rule: statistics.median(seconds) for rule, seconds in took.items()},
        {rule: statistics.median(map(operator.truediv, took["joint"], took[rule])) for rule in RULES[1:]},
        joint.epoch_seconds,
        joint.band,
        uncached / joint.uncached_seconds,
        over,
        watch.own + watch.memory - bare.own,
        _planning_seconds(case, half, settings),
        case.profiled,
    )


def _planning_seconds(case: Case, half: float, settings: Settings) -> float:
    began = time.perf_counter()
    _plan(case, half, half, settings.folder / "planned")
    return time.perf_counter() - began


def _table_of_everything(cases: Sequence[Case], found: dict[str, Outcome]) -> Table:
    columns = ("", "samples", "MB", "uncached", "first", "x first", "steady", "x", "limit", "x limit", "again")
    rows = [
        (
            case.name, len(case.pipe), case.largest / 1e6, one.uncached, one.first, one.filling, one.steady,
            one.uncached / one.steady, one.limit, one.steady / one.limit, one.again,
        )
        for case in cases
        for one in [found[case.name]]
    ]  # fmt: skip
    title = (
        "Everything fits in memory: seconds of epochs; x first: over an uncached one that starts its workers too; "
        "again: the first of another run, from the disk tier"
    )
    return Table(title, columns, tuple(rows))


def _table_of_rounds(case: Case, rounds: Sequence[Round]) -> Table:
    columns = ("budget", *RULES, "predicted", "between", "off", "drift", *(f"x {rule}" for rule in RULES[1:]))
    rows = []
    for one in rounds:
        off = f"{one.took['joint'] / one.predicted - 1:+.0%}", f"{one.drift - 1:+.0%}"
        times = (1 / one.against[rule] for rule in RULES[1:])
        took = (one.took[rule] for rule in RULES)
        rows.append((f"{one.share:.0%}", *took, one.predicted, "{:.2g} and {:.2g}".format(*one.band), *off, *times))
    title = f"{case.name}: seconds of epochs, with memory and disk for a share of {case.largest / 1e6:,.0f} MB"
    return Table(title, columns, tuple(rows))


def _bars(cases: Sequence[Case], everything: dict[str, Outcome], rounds: dict[str, list[Round]]) -> list[Bar]:
    bars = []
    for name, one in everything.items():
        bars.append(Bar.at_most(f"{name} in memory: a steady epoch over the limit", one.steady / one.limit, 1.5))
    every, outcomes = [one for name in rounds for one in rounds[name]], list(everything.values())

    def worst(rule: str) -> float:
        return max(one.against[rule] for one in every)

    def off(one: Round) -> float:
        return abs(one.took["joint"] / one.predicted - 1)

    def is_short(one: Round) -> bool:
        return one.took["joint"] < 1

    best = max(1 / max(one.against["single"], one.against["sequential"]) for one in every)
    bars += [
        Bar.at_most("joint over the best single step, at the worst budget", worst("single"), 1.05),
        Bar.at_most("joint over memory first, at the worst budget", worst("sequential"), 1.05),
        Bar.at_least("times faster than both, at the best budget", best, 1.2),
        Bar.at_most(
            "measured off predicted, at the worst budget with epochs over a second",
            max((off(one) for one in every if not is_short(one)), default=0.0),
            0.15,
        ),
        Bar.at_most(
            "share of shorter epochs that are not in the band",
            statistics.mean(not one.band[0] <= one.took["joint"] <= one.band[1] for one in every if is_short(one)),
            0.1,
        ),
        Bar.at_most("the first epoch over an uncached one", max(o.filling for o in outcomes), 1.08),
        Bar.at_most("a second run's first epoch over a steady one", max(o.again / o.from_disk for o in outcomes), 1.5),
        Bar.at_most("bytes that a second run adds", max(o.computed_again for o in outcomes), 0),
        Bar.at_most("bytes of a tier beyond its budget", max(one.over for one in every), 0),
    ]
    growths = [(one.grown - 64e6) / (1.1 * one.memory) for one in every]
    bars += [
        Bar.at_most("memory grown, less 64 MB, over 1.1 x its budget", max(growths), 1.0),
        Bar.at_most("seconds to plan", max(one.planned for one in every), 1.0),
        Bar.at_most("seconds to profile", max(one.profiled for one in every), 20.0),
    ]
    return bars
