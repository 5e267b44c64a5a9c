"""Where the seconds went: for each cache and epoch a bar with the cache above, and one without it below."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from warmstore.display.html import Html
from warmstore.report.cache_history import RecordedEpoch, RecordedRun
from warmstore.report.figures import Work
from warmstore.report.markup import Figure, join, tag
from warmstore.report.report_data import ReportData, ReportedCache
from warmstore.storage.registry import COMPILED, FEATURES, FUNCTIONS, PIPELINE

_ROWS = 8  # of a run, at most
_RUNS = 2  # of a cache by epoch; earlier ones have a pair of bars each

PARTS = {
    "computing": "computing or compiling",
    "reading": "reading the cache",
    "waiting": "waiting for batches, filling",
    "rest": "the rest of the program",
    "uncached": "without the cache, estimated",
}
"""What the colours of bars mean."""


@dataclass(frozen=True)
class Row:
    """A pair of bars. label: before them; work: their figures."""

    label: Html
    work: Work


def legend() -> Html:
    """The meaning of the colours."""
    return tag(
        "ul", (tag("li", tag("i", class_=f"key {part}"), meaning) for part, meaning in PARTS.items()), class_="legend"
    )


def bars(rows: Sequence[Row]) -> Html:
    """Pairs of bars on one scale."""
    longest = _longest(rows)
    return tag("div", (_row(row, longest) for row in rows), class_="bars", role="list")


def overview(data: ReportData) -> Html:
    """A pair of bars for each cache."""
    rows = [
        Row(join(tag("a", cache.name, href=f"#{cache.key}"), " ", tag("small", kind(cache))), all_of(cache))
        for cache in data.caches
        if cache.history.epochs
    ]
    rows.sort(key=lambda row: -_without(row.work))
    shown, others = rows[:12], rows[12:]
    more = tag("details", tag("summary", f"{len(others):,} more caches"), bars(others)) if others else None
    return join(bars(shown), more)


def kind(cache: ReportedCache) -> str:
    """What a cache is, in the singular."""
    names = {FEATURES: "feature cache", PIPELINE: "pipeline", COMPILED: "compile cache", FUNCTIONS: "cached function"}
    return names.get(cache.kind, cache.kind)


def all_of(cache: ReportedCache) -> Work:
    """All work of a cache."""
    return Work(cache.history.epochs, cache.key)


def by_epoch(data: ReportData, cache: ReportedCache) -> Html:
    """The bars of a cache by epoch for the last runs, and by run for earlier ones."""
    by_run: dict[str, list[RecordedEpoch]] = {}
    for epoch in cache.history.epochs:
        by_run.setdefault(epoch.run, []).append(epoch)
    runs = sorted((cache.history.runs[run] for run in by_run), key=lambda run: (-run.began, run.id))
    rows = [_rows(cache, by_run[run.id]) for run in runs[:_RUNS]]
    longest = _longest(row for each in rows for row in each)
    shown = [
        join(
            tag("h4", f"Run {data.run_number(run.id)}", tag("small", f" {_described(run)}")),
            tag("div", (_row(row, longest) for row in each), class_="bars", role="list"),
        )
        for run, each in zip(runs, rows, strict=False)
    ]
    if not runs[_RUNS:]:
        return join(shown)
    earlier = [
        Row(
            join(f"Run {data.run_number(run.id)} ", tag("small", _described(run))),
            Work(by_run[run.id], f"{cache.key} run={run.id}"),
        )
        for run in runs[_RUNS:]
    ]
    return join(shown, tag("details", tag("summary", f"{len(earlier):,} earlier runs"), bars(earlier)))


def _described(run: RecordedRun) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.began))
    return f"{when}, {run.program or 'a program'} on {run.host}" + ("" if run.rank is None else f", rank {run.rank}")


def folded(epochs: Sequence[RecordedEpoch], most: int) -> list[list[RecordedEpoch]]:
    """Epochs in groups of neighbours: the first ones and the last ones alone, so that there are `most` groups."""
    if len(epochs) <= most:
        return [[epoch] for epoch in epochs]
    first, last = most - most // 2, most // 2 - 1
    middle = list(epochs[first : len(epochs) - last])
    return [*([epoch] for epoch in epochs[:first]), middle, *([epoch] for epoch in epochs[len(epochs) - last :])]


def _rows(cache: ReportedCache, epochs: Iterable[RecordedEpoch]) -> list[Row]:
    """The rows of one run, in the order of names, fills and epochs."""
    groups: dict[tuple[str, str], list[RecordedEpoch]] = {}
    for epoch in epochs:
        if epoch.event == "part":
            continue  # its seconds are those of the epoch, if it was recorded
        groups.setdefault((epoch.name, epoch.event), []).append(epoch)
    found = []
    for (name, event), group in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] != "fill")):
        for part in folded(sorted(group, key=lambda epoch: epoch.first), _ROWS):
            whole = reduce(add, part)
            source = f"{cache.key} run={whole.run} event={event} epochs={whole.first}-{whole.last}"
            several = len({other for other, _ in groups}) > 1
            named = tag("small", f" {name}", title=name) if several and name else None
            work = Work(part, f"{source} name={name}" if name else source, whole.count)
            found.append(Row(join(_label(cache, whole), named), work))
    return found


def _label(cache: ReportedCache, epoch: RecordedEpoch) -> str:
    if cache.kind == COMPILED:
        return epoch.name or "lookups"
    if epoch.event == "fill":
        return "fill"
    if epoch.first == epoch.last:
        return f"epoch {epoch.first:,}"
    return f"epochs {epoch.first:,}\N{EN DASH}{epoch.last:,}, mean"


def _longest(rows: Iterable[Row]) -> float:
    """The seconds of the longest bar, at least a millionth."""
    return max((max(_with(row.work), _without(row.work)) for row in rows), default=0.0) or 1e-6


def _with(work: Work) -> float:
    return work.work.value + work.rest.value


def _without(work: Work) -> float:
    return work.uncached.value + work.rest.value


def _row(row: Row, longest: float) -> Html:
    work = row.work
    is_of_pipeline = any(epoch.event in ("epoch", "fill") for epoch in work.epochs)
    parts = {"waiting": work.work} if is_of_pipeline else _parts(work)
    return tag(
        "div",
        tag("div", row.label, class_="label"),
        tag(
            "div",
            _bar("with the cache", {**parts, "rest": work.rest}, longest),
            _bar("without", {"uncached": work.uncached, "rest": work.rest}, longest),
            class_="pair",
        ),
        tag("div", tag("b", work.work), join(" of ", work.uncached) if work.uncached.value else None, class_="numbers"),
        class_="row",
        role="listitem",
    )


def _parts(work: Work) -> dict[str, Figure]:
    return {"computing": work.duration("computed_seconds"), "reading": work.duration("read_seconds")}


def _bar(name: str, parts: dict[str, Figure], longest: float) -> Html:
    shown = {part: figure for part, figure in parts.items() if figure.value > 0}
    said = ", ".join(f"{PARTS[part]} {figure.text}" for part, figure in shown.items())
    return tag(
        "div",
        (
            tag(
                "span",
                class_=f"part {part}",
                style=f"width:{100 * figure.value / longest:.3f}%",
                title=f"{PARTS[part]}: {figure.text}",
                data_value=figure.value,
                data_source=figure.source,
            )
            for part, figure in shown.items()
        ),
        class_="bar",
        role="img",
        aria_label=f"{name}: {said or 'nothing'}",
    )
