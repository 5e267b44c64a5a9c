"""Plans of pipelines: what they predicted, and what steady epochs took."""

from collections.abc import Mapping
from typing import Any

from warmstore.display.html import Html
from warmstore.report.cache_history import RecordedEpoch, number, text
from warmstore.report.figures import count, duration, size
from warmstore.report.markup import Figure, join, tag
from warmstore.report.report_data import ReportData, ReportedCache

_MEASURED = 24  # of the last steady epochs that are drawn


def plans(data: ReportData) -> Html:
    """The section; a sentence without plans."""
    drawn = [
        _plan(cache, name, plan, place)
        for cache in data.caches
        for place, (name, plan) in enumerate(cache.history.plans.items())
    ]
    if not drawn:
        return tag("p", "No plan of a pipeline was used in the runs that are recorded.", class_="none")
    marks = (
        tag("li", tag("i", class_="key band"), "predicted, and where it is expected"),
        tag("li", tag("i", class_="key dot"), "measured in steady epochs, the last one filled"),
        tag("li", tag("i", class_="key uncached-mark"), "predicted without a cache"),
    )
    return join(tag("ul", marks, class_="legend"), drawn)


def _plan(cache: ReportedCache, name: str, plan: Mapping[str, Any], place: int) -> Html:
    def source(figure: str) -> str:
        return f"{cache.key} plan={place} {figure}"

    predicted = duration(number(plan, "epoch_seconds"), source("epoch_seconds"))
    uncached = duration(number(plan, "uncached_seconds"), source("uncached_seconds"))
    steady = [epoch for epoch in cache.history.epochs if epoch.name == name and epoch.is_steady]
    steady.sort(key=lambda epoch: epoch.at)
    measured = [_measured(cache, plan, epoch) for epoch in steady[-_MEASURED:]]
    words: list[Any] = ["Predicted ", tag("b", predicted), " an epoch"]
    if measured:
        off = measured[-1].value / predicted.value - 1 if predicted.value > 0 else 0.0
        waited = "" if _is_of_steps(plan) else " of waiting for batches"
        words += [
            ", measured ",
            tag("b", measured[-1]),
            f"{waited} in the last of {sum(each.count for each in steady):,} steady epochs",
        ]
        words += [f" ({off:+.0%})".replace("-", "\N{MINUS SIGN}")]
    else:
        words += [", not measured yet: the first epoch of a loader does not count"]
    words += ["; ", uncached, " without a cache. ", count(number(plan, "samples"), source("samples")), " samples"]
    limited = text(plan, "limited_by")
    words += [f", limited by {limited}." if limited and limited != "nothing" else "."]
    return tag(
        "div",
        tag("h4", name or "no steps", " ", tag("small", f"in {cache.name}")),
        tag("p", words),
        _scale(plan, predicted.value, uncached.value, measured),
        _placements(plan, source),
        class_="plan",
    )


def _is_of_steps(plan: Mapping[str, Any]) -> bool:
    """Whether the prediction is of the training steps, which the plan was told."""
    return text(plan, "limited_by").startswith("training steps")


def _measured(cache: ReportedCache, plan: Mapping[str, Any], epoch: RecordedEpoch) -> Figure:
    """The seconds that the plan predicts for an epoch, as a mean of those in the record: of waiting, if it was not told
    how long the steps take."""
    figure = "seconds" if _is_of_steps(plan) else "waited_seconds"
    epochs = f"run={epoch.run} event=epoch epochs={epoch.first}-{epoch.last} name={epoch.name}"
    return duration(epoch[figure] / epoch.count, f"{cache.key} {figure} {epochs}")


def _scale(plan: Mapping[str, Any], predicted: float, uncached: float, measured: list[Figure]) -> Html:
    """Marks on a line from zero."""
    band = plan.get("band")
    ends = band if isinstance(band, list) and len(band) == 2 else [0, 0]
    low, high = (number({"end": end}, "end") for end in ends)
    longest = max(predicted, uncached, high, *(figure.value for figure in measured), 1e-9) * 1.04

    def at(value: float) -> str:
        return f"left:{min(max(100 * value / longest, 0), 100):.3f}%"

    last = len(measured) - 1
    return tag(
        "div",
        tag("span", class_="band", style=f"{at(low)};width:{100 * max(high - low, 0) / longest:.3f}%"),
        tag("span", class_="predicted", style=at(predicted), title="predicted"),
        tag("span", class_="uncached-mark", style=at(uncached), title="predicted without a cache"),
        (
            tag("span", class_="dot last" if place == last else "dot", style=at(figure.value), title=figure.text,
                data_value=figure.value, data_source=figure.source)
            for place, figure in enumerate(measured)
        ),
        class_="scale",
        role="img",
        aria_label="Predicted and measured seconds of epochs on one line",
    )  # fmt: skip


def _placements(plan: Mapping[str, Any], source: Any) -> Html | None:
    """Where the plan keeps samples."""
    placements = plan.get("placements")
    rows = [place for place in placements if isinstance(place, dict)] if isinstance(placements, list) else []
    kept = [
        tag(
            "li",
            count(number(place, "samples"), source(f"placement={at}")),
            f" samples after {text(place, 'after') or 'the source'}, in {text(place, 'tier') or 'a tier'}",
            "" if text(place, "codec") in ("", "raw") else f", {text(place, 'codec')}",
        )
        for at, place in enumerate(rows)
    ]
    budgets = tag(
        "li",
        "budgets: disk ",
        size(number(plan, "disk"), source("disk")),
        ", memory ",
        size(number(plan, "memory"), source("memory")),
    )
    return tag("ul", kept, budgets, class_="facts")
