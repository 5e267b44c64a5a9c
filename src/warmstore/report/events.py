"""What went wrong or away: misses of compilers by reason, modules that caches refused, and evictions."""

import time

from warmstore.display.html import Html
from warmstore.report.figures import count, size
from warmstore.report.markup import join, tag
from warmstore.report.report_data import ReportData
from warmstore.report.seconds import kind

_REASONS = 12
_REFUSALS = 20


def compile_misses(data: ReportData) -> Html:
    """The section of compile caches."""
    found = [
        (cache, reason, misses)
        for cache in data.caches
        for reason, misses in cache.history.reasons.most_common()
        if misses > 0
    ]
    if not found:
        is_used = any(cache.kind == "compiled" for cache in data.caches)
        said = "Every lookup of a compiler was a hit." if is_used else "No use of a compile cache is recorded."
        return tag("p", said, class_="none")
    found.sort(key=lambda each: (-each[2], each[1]))
    most = found[0][2]
    rows = [
        tag(
            "div",
            tag("div", reason, class_="label"),
            tag("div", tag("div", tag("span", class_="part computing", style=f"width:{100 * misses / most:.3f}%"),
                           class_="bar", aria_hidden="true"), class_="pair"),
            tag("div", tag("b", count(misses, f"{cache.key} reason={reason}")), class_="numbers"),
            class_="row",
            role="listitem",
        )
        for cache, reason, misses in found
    ]  # fmt: skip
    shown, others = rows[:_REASONS], rows[_REASONS:]
    more = tag("details", tag("summary", f"{len(others):,} more reasons"), _list(others)) if others else None
    return join(_list(shown), more)


def _list(rows: list[Html]) -> Html:
    return tag("div", rows, class_="bars reasons", role="list")


def refusals(data: ReportData) -> Html:
    """The modules that caches refused."""
    found = [(cache, refusal) for cache in data.caches for refusal in cache.history.refusals]
    if not found:
        return tag("p", "No cache refused a module.", class_="none")
    found.sort(key=lambda each: -each[1].at)
    items = [
        tag(
            "li",
            tag("b", tag("a", cache.name, href=f"#{cache.key}")),
            f" refused run {data.run_number(refusal.run):,}, ",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(refusal.at)),
            ": ",
            tag("q", refusal.changed),
        )
        for cache, refusal in found
    ]
    shown, others = items[:_REFUSALS], items[_REFUSALS:]
    more = tag("details", tag("summary", f"{len(others):,} earlier ones"), tag("ul", others)) if others else None
    return join(tag("ul", shown, class_="facts"), more)


def evictions(data: ReportData) -> Html:
    """What was evicted to make room."""
    items = [
        tag(
            "li",
            tag("b", tag("a", cache.name, href=f"#{cache.key}")),
            f" ({kind(cache)}): ",
            count(cache.history.evicted, f"{cache.key} evicted"),
            " evictions" if cache.kind == "pipeline" else " artifacts" if cache.kind == "compiled" else " files",
            join(", ", size(cache.history.evicted_bytes, f"{cache.key} evicted_bytes"))
            if cache.history.evicted_bytes
            else None,
        )
        for cache in data.caches
        if cache.history.evicted
    ]
    if not items:
        return tag("p", "Nothing was evicted.", class_="none")
    return tag("ul", items, class_="facts")
