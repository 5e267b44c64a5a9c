"""What takes space on the disk, and the command that frees it: a treemap, and a table of all folders."""

import time
from collections.abc import Sequence

from warmstore.display.html import Html
from warmstore.inventory.cached_folder import KINDS, CachedFolder
from warmstore.report.figures import count, size
from warmstore.report.markup import join, tag
from warmstore.report.report_data import ReportData, name_of
from warmstore.report.treemap import Box, squarified
from warmstore.storage.humanize import format_duration

_SHOWN = 12  # rows of the table before the folded ones
_BOXES = 60
_WHOLE = Box(0, 0, 250, 100)  # the aspect ratio of the treemap
_LABELLED = 0.012  # share of the area from which on a box has a label
_NARROWEST = 0.08  # of the whole width


def space(data: ReportData) -> Html:
    """The section."""
    if not data.folders:
        return tag("p", "No stores or caches were found.", class_="none")
    return join(_treemap(data.folders), _kinds(data.folders), _tables(data))


def _key(number: int) -> str:
    return f"d{number}"


def _name(folder: CachedFolder) -> str:
    return name_of(folder.kind, folder.path)


def _treemap(folders: Sequence[CachedFolder]) -> Html | None:
    sized = [(number, folder) for number, folder in enumerate(folders, 1) if folder.nbytes > 0]
    if not sized:
        return None
    shown, others = sized[:_BOXES], sized[_BOXES:]
    sizes = [float(folder.nbytes) for _, folder in shown]
    rest = sum(folder.nbytes for _, folder in others)
    if rest:
        # It comes last although it may be larger than the one before: areas are right in any order.
        sizes.append(float(rest))
    total = sum(sizes)
    boxes = squarified(sizes, _WHOLE)
    drawn = [
        _box(
            box, f"kind-{folder.kind}", _name(folder), folder.nbytes, total, f"{_key(number)} nbytes", str(folder.path)
        )
        for box, (number, folder) in zip(boxes, shown, strict=False)
    ]
    if rest:
        source = f"d{others[0][0]}-d{others[-1][0]} nbytes"
        drawn.append(_box(boxes[-1], "kind-others", f"{len(others):,} others", rest, total, source, ""))
    return tag("div", drawn, class_="treemap", role="list", aria_label="Bytes on the disk by folder")


def _box(box: Box, kind: str, name: str, nbytes: float, total: float, source: str, path: str) -> Html:
    figure = size(nbytes, source)
    left, top = box.x / _WHOLE.width, box.y / _WHOLE.height
    width, height = box.width / _WHOLE.width, box.height / _WHOLE.height
    is_labelled = width * height > _LABELLED and width > _NARROWEST
    return tag(
        "div",
        join(tag("b", name), tag("span", figure)) if is_labelled else tag("span", figure, class_="unseen"),
        class_=f"box {kind}",
        style=f"left:{100 * left:.3f}%;top:{100 * top:.3f}%;width:{100 * width:.3f}%;height:{100 * height:.3f}%",
        title=f"{path or name}\n{figure.text}, {nbytes / total:.0%}",
        role="listitem",
        aria_label=f"{name}: {figure.text}",
    )


def _kinds(folders: Sequence[CachedFolder]) -> Html:
    """The legend, with the bytes of each kind."""
    items = []
    for kind, name in KINDS.items():
        found = [folder for folder in folders if folder.kind == kind]
        if found:
            total = size(sum(folder.nbytes for folder in found), f"disk nbytes kind={kind}")
            number = count(len(found), f"disk folders kind={kind}")
            items.append(tag("li", tag("i", class_=f"key kind-{kind}"), f"{name} (", number, "), ", total))
    return tag("ul", items, class_="legend")


def _tables(data: ReportData) -> Html:
    rows = list(enumerate(data.folders, 1))
    shown, others = rows[:_SHOWN], rows[_SHOWN:]
    return join(
        _table(data, shown),
        tag("details", tag("summary", f"{len(others):,} more folders"), _table(data, others)) if others else None,
    )


def _table(data: ReportData, rows: Sequence[tuple[int, CachedFolder]]) -> Html:
    heads = ("folder", "size", "entries", "last used", "to free it, run")
    return tag(
        "table",
        tag("thead", tag("tr", (tag("th", head, scope="col") for head in heads))),
        tag("tbody", (_row(data, number, folder) for number, folder in rows)),
        class_="stacking",
    )


def _row(data: ReportData, number: int, folder: CachedFolder) -> Html:
    key = _key(number)
    entries = None if folder.entries is None else count(folder.entries, f"{key} entries")
    used = "never" if not folder.used else f"{format_duration(max(data.made - folder.used, 1))} ago"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(folder.used)) if folder.used else None
    notes = [
        tag("small", "in use", class_="note") if folder.in_use else None,
        tag("small", "may exist nowhere else", class_="note") if folder.is_data else None,
        tag("small", folder.problem, class_="note problem") if folder.problem else None,
    ]
    where = (tag("b", _name(folder)), " ", notes, tag("small", str(folder.path), class_="path"))
    cells = (
        tag("th", where, scope="row"),
        tag("td", size(folder.nbytes, f"{key} nbytes"), data_label="size", class_="number"),
        tag("td", entries or "unknown", data_label="entries", class_="number"),
        tag("td", tag("span", "now" if folder.in_use else used, title=when), data_label="last used", class_="number"),
        tag("td", command(folder.free) if folder.free else "look at it first", data_label="to free it, run"),
    )
    return tag("tr", cells, id=key, data_path=str(folder.path))


def command(text: str) -> Html:
    """A command, with a button that copies it."""
    return tag(
        "span", tag("code", text), tag("button", "copy", type="button", data_copy=text, hidden=True), class_="command"
    )
