"""Errors of all commands: one line on stderr without a traceback, and exit status 1."""

from typing import Any

import typer
from typer.core import TyperGroup

from warmstore.errors import WarmstoreError, message_of
from warmstore.extras import is_of_extra, not_installed


class Commands(TyperGroup):
    """A group of commands. The outermost prints errors of warmstore, bad values and errors of the system."""

    def invoke(self, ctx: Any) -> Any:
        if ctx.parent is not None:
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except (WarmstoreError, ValueError, OSError) as error:
            failure: Exception = error
        except ImportError as error:
            if not is_of_extra(error):
                raise
            failure = not_installed(f"warmstore {ctx.invoked_subcommand}", error)
        typer.echo(f"Error: {message_of(failure)}", err=True)
        raise typer.Exit(1)
