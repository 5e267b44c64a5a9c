"""What a plan buys on real pipelines: against no cache, the best single step, and memory first and then the disk."""

from __future__ import annotations

import operator
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from benchmarks import pipeline_data
from benchmarks.pipeline_cases import (
    BATCH,
    CORES,
    RULES,
    Case,
    case_of,
    data_of,
    loader_of,
    pipelines,
    plan_of,
    seconds_of,
)
from benchmarks.pipeline_watch import Watch
from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings

SHARES = (0.10, 0.25, 0.50, 0.75, 1.00)


@dataclass(frozen=True)
class Round:
    """One budget, `share` of all bytes; memory: bytes of it for that tier.

    took: seconds of a steady epoch by rule. against: the joint plan's epochs over each rule's, round by round.
    predicted, band: of the joint plan, and the least and most that it expects. drift: an uncached epoch over its
    prediction, of the same profile and the same time.
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
    shares = SHARES if not settings.quick else (0.5,)
    cases: list[Case] = []
    rounds: dict[str, list[Round]] = {}
    for name, pipe in pipelines(settings):
        rounds[name] = []
        for share in shares:
            case = case_of(name, pipe, settings)  # anew: a profile is of the machine as it is now
            rounds[name].append(_budget(case, share, settings))
        cases.append(case)
    return Report(
        "pipelines",
        "Preprocessing of real samples, epoch after epoch: what is kept of which step, and what that saves.",
        tuple(_table(case, rounds[case.name]) for case in cases),
        tuple(_bars(rounds)),
        (
            pipeline_data.says(data_of(settings)),
            f"Batches of {BATCH}, {CORES} worker processes; steady epochs, the rules in turn, medians of epochs and of "
            "what they take over each other's of the same round. Every budget has a profile of its own, taken right "
            "before; drift: an uncached epoch right after it, over its prediction.",
            "A budget is a share of the bytes of the step that makes most, half of it memory and half disk, beside "
            "what the workers take. The page cache holds the disk tier: there is memory for it.",
            "between: the band in which the plan expects epochs below a second, which have costs of their own.",
            "single: one step in one codec, as many samples as fit. sequential: memory, then the disk for the rest.",
        ),
    )


def _budget(case: Case, share: float, settings: Settings) -> Round:
    """One budget, half memory and half disk, by every rule in turn."""
    half = share * case.largest / 2
    plans = {rule: plan_of(case, half, half, settings.folder / f"{case.name}-{share}-{rule}", rule) for rule in RULES}
    with closing(loader_of(case, None)) as plain, Watch(None) as bare:
        seconds_of(plain)
        uncached = seconds_of(plain)
    with ExitStack() as stack:
        loaders = {rule: stack.enter_context(closing(loader_of(case, plan))) for rule, plan in plans.items()}
        with Watch(plans["joint"].folder) as watch:
            seconds_of(loaders["joint"])
            seconds_of(loaders["joint"])
        for rule in RULES[1:]:
            seconds_of(loaders[rule])
        took: dict[str, list[float]] = {rule: [] for rule in RULES}
        began = time.perf_counter()
        while len(took["joint"]) < settings.pick(5, 2) or (
            len(took["joint"]) < settings.pick(25, 2) and time.perf_counter() - began < 20
        ):
            for rule, loader in loaders.items():
                took[rule].append(seconds_of(loader))
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
    plan_of(case, half, half, settings.folder / "planned")
    return time.perf_counter() - began


def _table(case: Case, rounds: Sequence[Round]) -> Table:
    columns = ("budget", *RULES, "predicted", "between", "off", "drift", *(f"x {rule}" for rule in RULES[1:]))
    rows = []
    for one in rounds:
        off = f"{one.took['joint'] / one.predicted - 1:+.0%}", f"{one.drift - 1:+.0%}"
        times = (1 / one.against[rule] for rule in RULES[1:])
        took = (one.took[rule] for rule in RULES)
        rows.append((f"{one.share:.0%}", *took, one.predicted, "{:.2g} and {:.2g}".format(*one.band), *off, *times))
    title = f"{case.name}: seconds of epochs, with memory and disk for a share of {case.largest / 1e6:,.0f} MB"
    return Table(title, columns, tuple(rows))


def _bars(rounds: dict[str, list[Round]]) -> list[Bar]:
    every = [one for name in rounds for one in rounds[name]]

    def worst(rule: str) -> float:
        return max(one.against[rule] for one in every)

    def off(one: Round) -> float:
        return abs(one.took["joint"] / one.predicted - 1)

    def is_short(one: Round) -> bool:
        return one.took["joint"] < 1

    outside = [not one.band[0] <= one.took["joint"] <= one.band[1] for one in every if is_short(one)]
    best = max(1 / max(one.against["single"], one.against["sequential"]) for one in every)
    bars = [
        Bar.at_most("joint over the best single step, at the worst budget", worst("single"), 1.05),
        Bar.at_most("joint over memory first, at the worst budget", worst("sequential"), 1.05),
        Bar.at_least("times faster than both, at the best budget", best, 1.2),
        Bar.at_most(
            "measured off predicted, at the worst budget with epochs over a second",
            max((off(one) for one in every if not is_short(one)), default=0.0),
            0.15,
        ),
        Bar.at_most("share of shorter epochs that are not in the band", sum(outside) / max(len(outside), 1), 0.1),
        Bar.at_most("bytes of a tier beyond its budget", max(one.over for one in every), 0),
    ]
    growths = [(one.grown - 64e6) / (1.1 * one.memory) for one in every]
    bars += [
        Bar.at_most("memory grown, less 64 MB, over 1.1 x its budget", max(growths), 1.0),
        Bar.at_most("seconds to plan", max(one.planned for one in every), 1.0),
        Bar.at_most("seconds to profile", max(one.profiled for one in every), 20.0),
    ]
    return bars
