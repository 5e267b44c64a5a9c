"""The tables and texts of fields that all commands print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from warmstore.records.format.fields import Field


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


def field_text(field: Field) -> str:
    """The type of a field as text: `uint8 [96, 96]`."""
    from warmstore.records.format.fields import Array, Ragged

    if isinstance(field, Array):
        return f"{field.dtype} {list(field.shape)}" if field.shape else field.dtype
    if isinstance(field, Ragged):
        return f"{field.dtype} [{', '.join('?' * field.ndim)}]"
    return type(field).__name__
