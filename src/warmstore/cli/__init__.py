"""The command line: one file for each noun, such as `warmstore store`, which are added here.

Command files import only light modules at the top. torch and the like are imported inside the commands that need them,
so that `warmstore --help` is fast.
"""

import io
import sys
from typing import Annotated

import typer

from warmstore.cli import across, compiled, demo, features, pipelines, remote, report, run, signing_keys, store, top
from warmstore.cli.command_group import Commands

__all__ = ["app", "main"]

app = typer.Typer(
    name="warmstore",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(is_set: bool) -> None:
    if is_set:
        from importlib.metadata import version

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
app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(run.run)
for command in (across.ls, across.du, across.gc, across.verify, across.diff, across.doctor, report.report, top.top):
    app.command()(command)
app.add_typer(store.app, name="store")
app.add_typer(features.app, name="features")
app.add_typer(pipelines.app, name="pipelines")
app.add_typer(compiled.app, name="compiled")
app.add_typer(remote.app, name="remote")
app.add_typer(signing_keys.app, name="signing-keys")


def main() -> None:
    """Run the command line; the `warmstore` script calls this."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a check mark must not fail in an ASCII log
    app()
