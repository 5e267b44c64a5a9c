"""Errors of all commands: one line on stderr without a traceback, and exit status 1."""

from typing import Any

import typer
from typer.core import TyperGroup

from warmstore.errors import WarmstoreError, message_of


class Commands(TyperGroup):
    """A group of commands that prints errors of warmstore, bad values and errors of the system."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (WarmstoreError, ValueError, OSError) as error:
            typer.echo(f"Error: {message_of(error)}", err=True)
            raise typer.Exit(1) from None
