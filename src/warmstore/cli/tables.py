"""Tables that nothing cuts off, and JSON: what all commands print with.

On a terminal a table has its width; long names fold, and a table that does not fit is printed as one line per value.
Elsewhere, such as in a pipe, lines are as long as they need to be, unless the variable COLUMNS is set. rich is imported
by what prints tables alone: it would be half of the time that a completion in the shell takes.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from warmstore.storage.humanize import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_UNBOUNDED = 100_000  # characters of a line that nobody looks at on a terminal
_NARROWEST = 12  # characters of a column that folds
_MANY = 100  # rows from which on a table is plain lines


def console() -> Console:
    """The console for everything that a command prints on stdout besides plain lines."""
    from warmstore.cli.escaped_output import escaping_console

    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        width = None
    elif sys.stdout is not None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns if columns.isdecimal() else None  # rich has no column for "0"
    else:
        width = _UNBOUNDED
    return escaping_console(width)


def print_json(data: Any) -> None:
    """Print data as JSON. Paths are strings; NaN and infinite numbers, which JSON does not have, are null."""
    typer.echo(json.dumps(_finite(data), indent=2, default=str, allow_nan=False))


def echo(text: str, *, err: bool = False) -> None:
    """Print text that has names in it: on stdout, or on stderr with `err`. Their control characters are escaped."""
    typer.echo(printable(text), err=err)


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {name: _finite(value) for name, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list | tuple) else data


def answer(data: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a command: data as JSON, or its text."""
    if as_json:
        print_json(data)
    else:
        echo(text)


def print_table(shown: Table, console: Console) -> None:
    """Print a table, or its values line by line if its columns do not fit."""
    from rich.cells import cell_len
    from rich.text import Text

    columns = [[_plain(cell) for cell in (column.header, *column.cells)] for column in shown.columns]
    widths = [max(cell_len(line) for text in texts for line in text.split("\n")) for texts in columns]
    folded = [
        width if column.no_wrap else min(width, _NARROWEST) for width, column in zip(widths, shown.columns, strict=True)
    ]
    gaps = 2 * len(widths)
    if shown.row_count > _MANY and sum(widths) + gaps <= console.width:
        _print_lines(shown, columns, widths)
    elif sum(folded) + gaps <= console.width:
        console.print(shown)
    else:
        if shown.title:
            console.print(shown.title, soft_wrap=True)
        names, *rows = zip(*columns, strict=True)
        for row in rows:
            for name, text in zip(names, row, strict=True):
                console.print(Text(f"{_one_line(name)}: {text}" if name else text), soft_wrap=True)
            console.print()


def _print_lines(shown: Table, columns: list[list[str]], widths: list[int]) -> None:
    """Print a table of many rows, for which rich takes milliseconds each."""
    right = [column.justify == "right" for column in shown.columns]
    for row in zip(*columns, strict=True):
        cells = zip(map(_one_line, row), widths, right, strict=True)
        typer.echo(
            " " + "  ".join(text.rjust(width) if to_right else text.ljust(width) for text, width, to_right in cells)
        )


def _one_line(text: str) -> str:
    return text.replace("\n", " ")


def _plain(cell: Any) -> str:
    from rich.text import Text

    return cell.plain if isinstance(cell, Text) else str(cell)


def table(title: str, *columns: str, wrap: bool = False) -> Table:
    """An empty table; columns that begin with ">" are numbers. The title is no markup."""
    from rich import box
    from rich.text import Text

    from warmstore.cli.escaped_output import EscapedTable

    table = EscapedTable(
        title=Text(printable(title), "bold") if title else None,
        title_justify="left",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        pad_edge=False,
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
