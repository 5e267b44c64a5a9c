"""What a benchmark hands back, and its three faces: a table on the terminal, JSON, and a section of docs/benchmarks.md.

A report is plain data (tables, bars, notes), so the page can always be made again from the JSON files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from benchmarks.side_by_side import Row

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Bar:
    """A promise: `figure` against `bound`. Without a figure it is missed."""

    claim: str
    figure: float | None
    bound: float
    passed: bool

    @classmethod
    def at_most(cls, claim: str, figure: float | None, bound: float) -> Bar:
        return cls(claim, figure, bound, figure is not None and figure <= bound)

    @classmethod
    def at_least(cls, claim: str, figure: float | None, bound: float) -> Bar:
        return cls(claim, figure, bound, figure is not None and figure >= bound)


@dataclass(frozen=True)
class Report:
    """`broken` lists warmstore's own rows that failed or returned wrong values: not slow, but wrong."""

    name: str
    question: str
    tables: tuple[Table, ...]
    bars: tuple[Bar, ...] = ()
    notes: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    run: dict[str, Cell] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.json").write_text(json.dumps(asdict(self), indent=1) + "\n")


def load(path: Path) -> Report:
    """The report that `save` wrote."""
    found: dict[str, Any] = json.loads(path.read_text())
    tables = tuple(
        Table(table["title"], tuple(table["columns"]), tuple(map(tuple, table["rows"])))
        for table in found.pop("tables")
    )
    bars = tuple(Bar(**bar) for bar in found.pop("bars"))
    return Report(tables=tables, bars=bars, **{key: tuple(v) if isinstance(v, list) else v for key, v in found.items()})


def timings(
    title: str,
    rows: Sequence[Row],
    *,
    unit: str = "µs",
    megabytes: float | None = None,
    records: int | None = None,
) -> Table:
    """The table of a side-by-side run. With `megabytes` or `records` (a call's) there is a column of rates."""
    scale = {"µs": 1e6, "ms": 1e3}[unit]
    amounts = {name: amount for name, amount in (("MB/s", megabytes), ("rows/s", records)) if amount}
    columns = ("", f"median {unit}", f"mean {unit}", f"p99 {unit}", "x limit", *amounts, "note")
    return Table(title, columns, tuple(_timing(row, scale, tuple(amounts.values())) for row in rows))


def broken_rows(rows: Sequence[Row]) -> tuple[str, ...]:
    """Warmstore's own rows that have no figure."""
    return tuple(f"{row.name}: {row.trouble}" for row in rows if row.role == "warmstore" and row.trouble)


def show(report: Report, console: Console) -> None:
    """Print the report."""
    console.rule(report.name)
    console.print(report.question, highlight=False)
    for table in report.tables:
        drawn = RichTable(title=table.title, title_justify="left")
        for number, column in enumerate(table.columns):
            drawn.add_column(column, justify="left" if number == 0 or column == "note" else "right")
        for row in table.rows:
            drawn.add_row(*(escape(_text(cell)) for cell in row))
        console.print(drawn)
    for bar in report.bars:
        colour, word = ("green", "pass") if bar.passed else ("red", "MISS")
        console.print(f"[{colour}]{word}[/] {bar.claim}: {_text(bar.figure)} (bar {_text(bar.bound)})", highlight=False)
    made = ", ".join(f"{key}: {_text(value)}" for key, value in report.run.items())
    for note in (*report.notes, *report.broken, made):
        console.print(f"- {note}", highlight=False, markup=False)


def page(reports: Sequence[Report], facts: dict[str, str]) -> str:
    """docs/benchmarks.md: made by `python -m benchmarks`, never edited by hand."""
    lines = [
        "# Benchmarks",
        "",
        "Made by `python -m benchmarks` (`make bench`); do not edit. How it is measured: `benchmarks/README.md`.",
        "Every table is one run in which the contestants took turns, call by call. *Limit* is the fastest the machine",
        "allows for that work; `x limit` is a contestant's median over the limit's.",
        "",
        *_markdown(Table("", ("", "this machine"), tuple(facts.items()))),
        "",
    ]
    for report in reports:
        lines += [f"## {report.name}", "", report.question, ""]
        for table in report.tables:
            lines += [*([f"**{table.title}**", ""] if table.title else []), *_markdown(table), ""]
        if report.bars:
            judged = tuple((b.claim, b.figure, b.bound, "pass" if b.passed else "**miss**") for b in report.bars)
            lines += [*_markdown(Table("", ("bar", "figure", "bar at", ""), judged)), ""]
        lines += [f"- {note}" for note in (*report.notes, *report.broken)]
        made = ", ".join(f"{key}: {_text(value)}" for key, value in report.run.items())
        lines += ["", f"`python -m benchmarks --only {report.name}` ({made})", ""]
    return "\n".join(lines)


def _timing(row: Row, scale: float, amounts: tuple[float, ...]) -> tuple[Cell, ...]:
    if row.median is None or row.mean is None or row.p99 is None:
        return (row.name, None, None, None, None, *(None for _ in amounts), row.trouble)
    times = (seconds * scale for seconds in (row.median, row.mean, row.p99))
    return (row.name, *times, row.ratio, *(amount / row.median for amount in amounts), row.note)


def _text(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _markdown(table: Table) -> list[str]:
    lines = ["| " + " | ".join(table.columns) + " |"]
    left = [number == 0 or column == "note" for number, column in enumerate(table.columns)]
    lines.append("|" + "|".join("---" if one else "--:" for one in left) + "|")
    lines += ["| " + " | ".join(_text(cell).replace("|", "\\|") for cell in row) + " |" for row in table.rows]
    return lines
