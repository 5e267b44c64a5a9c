"""`warmstore top`: the use of all caches, live in the terminal."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from warmstore.cli.across import Folders
from warmstore.cli.options import Json
from warmstore.cli.tables import console, print_json, print_table

if TYPE_CHECKING:
    from warmstore.report.live import CacheUse


def top(
    folder: Folders = None,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    as_json: Json = False,
) -> None:
    """Show the caches in use: hit rate, samples a second, seconds saved and bytes, as programs record them.

    Programs record at the end of epochs and at least every ten minutes. Press Ctrl-C to end. --json prints once.
    """
    from warmstore.cli.top_view import use_as_json, use_table
    from warmstore.report.live import uses

    def look() -> "list[CacheUse]":
        return uses(folder or (), time.time())

    if as_json:
        print_json([use_as_json(use) for use in look()])
        return
    screen = console()
    if once or not screen.is_terminal:
        from rich.table import Table

        for part in use_table(look(), time.time()).renderables:
            if isinstance(part, Table):
                print_table(part, screen)
            else:
                screen.print(part)
        return
    from rich.live import Live

    try:
        with Live(use_table(look(), time.time()), console=screen, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                live.update(use_table(look(), time.time(), screen.height), refresh=True)
    except KeyboardInterrupt:
        return
