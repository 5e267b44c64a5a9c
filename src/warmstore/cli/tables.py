"""Tables that nothing cuts off, and JSON: what all commands print with.

On a terminal a table has its width; long names fold, and a table that does not fit is printed as one line per value.
Elsewhere, such as in a pipe, lines are as long as they need to be, unless the variable COLUMNS is set.
"""

import json
import os
import sys
from typing import Any

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNBOUNDED = 100_000  # characters of a line that nobody looks at on a terminal
_NARROWEST = 12  # characters of a column that folds


def console() -> Console:
    """The console for everything that a command prints on stdout besides plain lines."""
    bounded = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Console(highlight=False, width=None if bounded else _UNBOUNDED)


def print_json(data: Any) -> None:
    """Print data as JSON. Paths are strings."""
    typer.echo(json.dumps(data, indent=2, default=str))


def answer(data: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a command: data as JSON, or its text."""
    if as_json:
        print_json(data)
    else:
        typer.echo(text)


def print_table(shown: Table, console: Console) -> None:
    """Print a table, or its values line by line if its columns do not fit."""
    cells = [[_plain(cell) for cell in column.cells] for column in shown.columns]
    needed = 0
    for column, values in zip(shown.columns, cells, strict=True):
        lines = [line for text in (_plain(column.header), *values) for line in text.split("\n")]
        widest = max(map(cell_len, lines), default=0)
        needed += 1 + (widest if column.no_wrap else min(widest, _NARROWEST))
    if needed <= console.width:
        console.print(shown)
        return
    if shown.title:
        console.print(Text(_plain(shown.title), "bold"), soft_wrap=True)
    for row in zip(*cells, strict=True):
        for column, text in zip(shown.columns, row, strict=True):
            name = _plain(column.header).replace("\n", " ")
            console.print(Text(f"{name}: {text}" if name else text), soft_wrap=True)
        console.print()


def _plain(cell: Any) -> str:
    return cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain


def table(title: str, *columns: str, wrap: bool = False) -> Table:
    """An empty table; columns that begin with ">" are numbers."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False
    )
    for number, column in enumerate(columns):
        right = column.startswith(">")
        # Names of files and fields are never cut; sample values fold instead.
        table.add_column(
            column.removeprefix(">"),
            justify="right" if right else "left",
            no_wrap=not wrap and (right or number == 0),
            overflow="fold",
        )
    return table
