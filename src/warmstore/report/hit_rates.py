"""The hit rate over time: a column for each epoch, with the hits filled from below and the misses hatched above."""

from functools import reduce
from operator import add

from warmstore.display.html import Html
from warmstore.report.cache_history import RecordedEpoch
from warmstore.report.figures import Work, count
from warmstore.report.markup import join, tag
from warmstore.report.report_data import ReportData, ReportedCache

_COLUMNS = 48
_MOST_COLUMNS = 96  # there are more than 48 where there are more runs; the last ones are shown


def hit_rates(data: ReportData, cache: ReportedCache) -> Html | None:
    """The columns of a cache; None without lookups."""
    epochs = [epoch for epoch in cache.history.epochs if epoch["hits"] + epoch["misses"] > 0]
    epochs.sort(key=lambda epoch: (data.run_number(epoch.run), epoch.at, epoch.first))
    if not epochs:
        return None
    groups = _grouped(epochs)[-_MOST_COLUMNS:]
    columns = [_column(data, cache, group, number) for number, group in enumerate(groups)]
    borders = [
        tag("line", x1=number, x2=number, y1=0, y2=1, class_="border")
        for number in range(1, len(groups))
        if groups[number][0].run != groups[number - 1][0].run
    ]
    whole = Work(epochs, cache.key)
    drawing = tag(
        "svg",
        tag("title", f"Hit rate of {cache.name} by epoch, the first on the left"),
        columns,
        borders,
        viewBox=f"0 0 {len(groups)} 1",
        preserveAspectRatio="none",
        role="img",
        class_="columns",
    )
    first, last = data.run_number(groups[0][0].run), data.run_number(groups[-1][0].run)
    return tag(
        "figure",
        tag("figcaption", "Hit rate ", whole.rate, ": ", whole.count("hits"), " of ", _looked_up(whole), " lookups"),
        tag("div", drawing, tag("span", "100%", class_="top"), tag("span", "0%", class_="bottom"), class_="plot"),
        tag("div", tag("span", f"run {first:,}"), tag("span", "" if first == last else f"run {last:,}"), class_="axis"),
        style=f"max-width:{2.6 + max(3.2 * len(groups), 8):.1f}rem",
    )


def _looked_up(work: Work) -> Html:
    first, _, rest = work.source.partition(" ")
    return count(work.looked_up, f"{first} lookups {rest}".rstrip()).shown()


def _grouped(epochs: list[RecordedEpoch]) -> list[list[RecordedEpoch]]:
    """Epochs in groups of neighbours of one run, so that there are about `_COLUMNS` of them."""
    size = -(-len(epochs) // _COLUMNS)
    groups: list[list[RecordedEpoch]] = []
    for epoch in epochs:
        is_new = not groups or len(groups[-1]) >= size or groups[-1][0].run != epoch.run
        is_other = not is_new and (groups[-1][0].event, groups[-1][0].name) != (epoch.event, epoch.name)
        if is_new or is_other:
            groups.append([epoch])
        else:
            groups[-1].append(epoch)
    return groups


def _column(data: ReportData, cache: ReportedCache, group: list[RecordedEpoch], number: int) -> Html:
    whole = reduce(add, group)
    named = f" name={whole.name}" if whole.name else ""
    epochs = f"run={whole.run} event={whole.event} epochs={whole.first}-{whole.last}{named}"
    work = Work(group, f"{cache.key} {epochs}")
    height = work.rate.value
    place = f"run {data.run_number(whole.run)}"
    if whole.event in ("use", "epoch"):
        some = f"s {whole.first:,}\N{EN DASH}{whole.last:,}" if whole.count > 1 else f" {whole.first:,}"
        place += f", epoch{some}"
    title = tag("title", f"{place}: {work.rate.text}, {whole['hits']:,.0f} hits, {whole['misses']:,.0f} misses")
    options = {"x": number + 0.08, "width": 0.84}
    return join(
        tag("rect", y=0, height=1, class_="misses", **options) if height < 1 else None,
        Html(
            tag("rect", y=round(1 - height, 4), height=round(height, 4), class_="hits", data_value=round(height, 6),
                data_source=work.rate.source, **options)[:-2]
            + f">{title}</rect>"
        ),
    )  # fmt: skip
