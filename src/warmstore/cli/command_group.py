"""What a user did wrong is one line on stderr and exit status 1, and no traceback; for all commands alike."""

from typing import Any

import typer
from typer.core import TyperGroup

from warmstore.errors import WarmstoreError, message_of


class Commands(TyperGroup):
    """A group of commands that says what was wrong where one raises an error that warmstore raises on purpose."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (WarmstoreError, ValueError, OSError) as error:
            typer.echo(f"Error: {message_of(error)}", err=True)
            raise typer.Exit(1) from None
