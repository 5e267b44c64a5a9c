"""The tables that all commands print."""

from rich import box
from rich.table import Table


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
