"""Real pipelines whose samples all fit: steady epochs over the limit, first epochs, and a second run from the disk."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from benchmarks import pipeline_data
from benchmarks.pipeline_cases import (
    BATCH,
    CORES,
    Case,
    case_of,
    data_of,
    limit_of,
    loader_of,
    pipelines,
    plan_of,
    seconds_of,
)
from benchmarks.pipeline_watch import tier_bytes
from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings


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


def run(settings: Settings) -> Report:
    cases = [case_of(name, pipe, settings) for name, pipe in pipelines(settings)]
    found = {case.name: _measure(case, settings) for case in cases}
    return Report(
        "pipelines_in_memory",
        "Preprocessing of real samples that fit into memory: how far epochs are from a gather and the random steps.",
        (_table(cases, found),),
        tuple(_bars(found)),
        (
            pipeline_data.says(data_of(settings)),
            f"Batches of {BATCH}, {CORES} worker processes for computing; steady: the second to fourth epoch. First "
            "epochs and uncached ones are in turn, three of each, from the start of their workers; the bar is of the "
            "median of pairs.",
            "limit: gather from a list and run the random steps on one core, by the number of cores.",
        ),
    )


def _measure(case: Case, settings: Settings) -> Outcome:
    """All that may be kept fits in memory; and a second run over a tier on the disk."""
    folder, rounds = settings.folder / f"{case.name}-all", settings.pick(3, 2)
    plan = plan_of(case, 1.5 * case.largest, 0, folder, workers=None)
    begun, uncached, first, steady = [], [], [], []
    for _ in range(settings.pick(3, 1)):
        with closing(loader_of(case, None)) as plain:
            begun.append(seconds_of(plain))
            uncached.append(seconds_of(plain))
        with closing(loader_of(case, plan)) as kept:
            first.append(seconds_of(kept))
            steady += [seconds_of(kept) for _ in range(rounds)]
    on_disk = plan_of(case, 0, 1.5 * case.largest, folder, workers=None)
    with closing(loader_of(case, on_disk)) as one:
        seconds_of(one)
        from_disk = statistics.median(seconds_of(one) for _ in range(rounds))
    before = tier_bytes(folder)
    with closing(loader_of(case, on_disk)) as other:
        again = seconds_of(other)
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


def _table(cases: Sequence[Case], found: dict[str, Outcome]) -> Table:
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


def _bars(found: dict[str, Outcome]) -> list[Bar]:
    outcomes = list(found.values())
    return [
        *(
            Bar.at_most(f"{name} in memory: a steady epoch over the limit", one.steady / one.limit, 1.5)
            for name, one in found.items()
        ),
        Bar.at_most("the first epoch over an uncached one", max(o.filling for o in outcomes), 1.08),
        Bar.at_most("a second run's first epoch over a steady one", max(o.again / o.from_disk for o in outcomes), 1.5),
        Bar.at_most("bytes that a second run adds", max(o.computed_again for o in outcomes), 0),
    ]
