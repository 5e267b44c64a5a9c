"""The report as one page: HTML with its style and a few lines of script in it, and nothing from elsewhere."""

import time
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from warmstore.display.html import Html
from warmstore.report.events import compile_misses, evictions, refusals
from warmstore.report.figures import Work, count, size
from warmstore.report.hit_rates import hit_rates
from warmstore.report.markup import join, tag
from warmstore.report.plans import plans
from warmstore.report.report_data import ReportData, ReportedCache
from warmstore.report.seconds import all_of, by_epoch, kind, legend, overview
from warmstore.report.space import space
from warmstore.storage.humanize import format_duration
from warmstore.storage.registry import FEATURES

_DETAILED = 4  # caches whose epochs are shown at once; the others are folded


def page(data: ReportData) -> str:
    """The whole page."""
    where = ", ".join(map(str, data.asked)) or f"all that was found on {data.host}"
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(data.made))
    content = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", f"warmstore report, {made}"),
            tag("style", Html(_resource("page.css"))),
        ),
        tag(
            "body",
            tag("a", "Skip to the content", href="#content", class_="skip"),
            tag(
                "header",
                tag("p", tag("b", "warmstore"), " report", class_="brand"),
                tag("h1", _headline(data)),
                tag("p", f"{made}, on {data.host}: {where}", class_="where"),
                _tiles(data),
            ),
            tag("main", _sections(data), id="content"),
            tag("footer", _footer()),
            tag("script", Html(_resource("page.js"))),
        ),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{content}\n"


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text()


def _all(data: ReportData) -> Work:
    return Work((epoch for cache in data.caches for epoch in cache.history.epochs), "*")


def _headline(data: ReportData) -> Html:
    if not data.runs:
        return join("No runs are recorded here yet.")
    saved = _all(data).duration("saved_seconds")
    runs = "one run" if len(data.runs) == 1 else join(count(len(data.runs), "* runs"), " runs")
    if saved.value <= 0:
        return join("The caches have saved no time yet, in ", runs, ".")
    return join("The caches saved ", tag("em", saved), " in ", runs, ".")


def _tiles(data: ReportData) -> Html:
    work = _all(data)
    tiles: list[tuple[Any, str, Any]] = [
        (work.duration("saved_seconds"), "saved", join("of ", work.uncached, " that it takes without caches")),
        (work.rate, "hit rate", join(count(work.looked_up, "* lookups"), " lookups")),
        (
            size(sum(folder.nbytes for folder in data.folders), "disk nbytes"),
            "on the disk",
            join("in ", count(len(data.folders), "disk folders"), " folders"),
        ),
        (
            count(sum(len(cache.history.refusals) for cache in data.caches), "* refusals"),
            "refusals",
            "modules that were other than the cache",
        ),
    ]
    shown = tiles if data.runs else tiles[2:3]
    return tag(
        "dl",
        (
            tag("div", tag("dt", name), tag("dd", figure), tag("dd", more, class_="more"))
            for figure, name, more in shown
        ),
        class_="tiles",
    )


def _sections(data: ReportData) -> Html:
    has_work = any(cache.history.epochs for cache in data.caches)
    none = tag(
        "p",
        "Histories are written as programs run: train with a FeatureCache, a plan or the compile cache, and make the "
        "report again. WARMSTORE_HISTORY=0 turns histories off.",
        class_="none",
    )
    seconds = join(legend(), overview(data)) if has_work else none
    sections: list[tuple[str, str, str, Any]] = [
        (
            "seconds",
            "Where the seconds went",
            "Of each pair of bars the upper one is what a program took with the cache, the lower one what the same "
            "takes without it: the mean seconds to compute a sample for every hit, or the prediction of the plan.",
            seconds,
        ),
        ("space", "Space on the disk", "Areas are allocated bytes: what a removal frees.", space(data)),
    ]
    if data.caches:
        sections.insert(1, ("caches", "By epoch, and the hit rate over time", "", _caches(data)))
        sections += [
            ("plans", "Plans: predicted and measured", "", plans(data)),
            ("compiling", "Misses of compilers by reason", "", compile_misses(data)),
            ("refusals", "Refused modules", "A module that differs from what filled a cache.", refusals(data)),
            ("evictions", "Evictions", "Removed to keep within a limit.", evictions(data)),
        ]
    return join(
        tag("section", tag("h2", title), tag("p", said, class_="said") if said else None, content, id=name)
        for name, title, said, content in sections
    )


def _caches(data: ReportData) -> Html:
    cards = [_card(data, cache) for cache in data.caches]
    shown, others = cards[:_DETAILED], cards[_DETAILED:]
    more = tag("details", tag("summary", f"{len(others):,} more caches"), others) if others else None
    return join(shown, more)


def _card(data: ReportData, cache: ReportedCache) -> Html:
    work = all_of(cache)
    facts: list[Any] = [
        join(tag("b", work.duration("saved_seconds")), " saved"),
        join(tag("b", work.work), " spent"),
        join(tag("b", size(cache.nbytes, f"{cache.key} nbytes")), " on the disk"),
    ]
    if cache.kind == FEATURES and cache.history.entries is not None:
        facts.append(
            join(tag("b", count(cache.history.entries, f"{cache.key} entries")), " samples at the last record")
        )
    for name, said in (("bytes_read", "read"), ("bytes_written", "written")):
        if work.sum(name):
            facts.append(join(tag("b", work.size(name)), f" {said}"))
    if work.sum("damaged"):
        facts.append(join(tag("b", work.count("damaged")), " damaged rows, computed again"))
    last = cache.history.last_at
    ago = f", last recorded {format_duration(max(data.made - last, 1))} ago" if last else ""
    return tag(
        "article",
        tag("h3", cache.name, " ", tag("small", f"{kind(cache)}{ago}")),
        tag("p", str(cache.path), class_="path"),
        tag("ul", (tag("li", fact) for fact in facts), class_="inline"),
        hit_rates(data, cache),
        by_epoch(data, cache),
        id=cache.key,
        class_="card",
        data_history=str(cache.history_path),
    )


def _footer() -> Html:
    return join(
        tag(
            "p",
            "Every figure is a sum over the histories beside the caches, or was read from the disk when this page was "
            "made; its element says which, in the attribute data-source. A feature cache sees lookups and no epochs: "
            "an epoch ends when as many samples were looked up as the cache has.",
        ),
        tag("p", f"warmstore {version('warmstore')}"),
    )
