"""The command line: one file per command group, registered here.

Command files import only light modules at the top. torch and the like are imported inside the commands that need them,
so that `warmstore --help` is fast.
"""

import io
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from warmstore.cli import caches, compiled, demo, keys, pipelines, records, replicas, run
from warmstore.cli.command_group import Commands

__all__ = ["app", "main"]

app = typer.Typer(
    name="warmstore",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"warmstore {version('warmstore')}")
        raise typer.Exit


@app.callback()
def warmstore(
    show_version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Stops ML training from doing the same work twice."""


app.command()(demo.demo)
for group in (records, caches, pipelines, run, compiled, replicas, keys):
    group.register(app)


def main() -> None:
    """Run the command line; the `warmstore` script calls this."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a check mark must not fail in an ASCII log
    app()
