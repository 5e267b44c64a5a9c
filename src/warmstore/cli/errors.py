"""What a user did wrong is one line, not a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def errors_told() -> Iterator[None]:
    """Turn the errors that warmstore raises on purpose into a line on stderr and exit status 1."""
    from warmstore.errors import WarmstoreError

    try:
        yield
    except (WarmstoreError, ValueError, OSError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
