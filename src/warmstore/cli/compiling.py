"""`warmstore run`, `warmup` and `doctor`: the compile cache from the command line."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from warmstore.cli.errors import errors_told

Folder = Annotated[
    Path | None, typer.Option("--dir", help="The compile cache's folder; else WARMSTORE_CACHE_DIR, else the user's.")
]


_PATIENT = 60.0  # seconds without data flowing that who asks for a warm-up waits


def register(app: typer.Typer) -> None:
    """Add the commands of this group."""
    app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(run)
    app.command()(warmup)
    app.command()(doctor)


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run, as in python train.py.")],
    job: Annotated[str | None, typer.Option(help="The name under which is remembered what it used.")] = None,
    folder: Folder = None,
    profile: Annotated[str, typer.Option(help="auto, fast or portable.")] = "auto",
    remote: Annotated[
        str | None, typer.Option(help="Where a team shares what it compiles; else WARMSTORE_REMOTE_URL.")
    ] = None,
) -> None:
    """Run a program with the compile cache, without a change to its code; torchrun and its like too."""
    with errors_told():
        import warmstore.compiling.start as start
        from warmstore.compiling.remotes import URL, RemoteSettings
        from warmstore.compiling.settings import Settings

        shared = RemoteSettings.of(remote, None, 0.0)
        Settings.of(folder, None, "lru", profile, job, None, 0.0, shared)  # told now, not by every process
        told = {
            "WARMSTORE_JOB": job,
            "WARMSTORE_CACHE_DIR": folder and str(folder.absolute()),
            "WARMSTORE_PROFILE": profile,
            URL: remote,
        }
        variables = {**os.environ, **{name: value for name, value in told.items() if value}}
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [start.__path__[0], os.environ.get("PYTHONPATH")]))
        sys.stdout.flush()
        os.execvpe(command[0], command, variables)


def warmup(
    jobs: Annotated[list[str], typer.Argument(help="Names of jobs.")],
    folder: Folder = None,
    remote: Annotated[
        str | None, typer.Option(help="Fetch from there what is not here; else WARMSTORE_REMOTE_URL.")
    ] = None,
) -> None:
    """Check that everything some jobs used is here, whole and usable on this machine. Fails where it is not."""
    with errors_told():
        from warmstore.compiling.jobs import prepare
        from warmstore.compiling.remotes import RemoteSettings
        from warmstore.compiling.settings import default_folder
        from warmstore.remote.offline import is_offline

        shared = None if is_offline() else RemoteSettings.of(remote, None, _PATIENT)
        ready = [prepare(_folder(folder, default_folder), job, shared) for job in jobs]
        for one in ready:
            typer.echo(f"{one.job}: {one.ready} of {one.keys} ready" + "".join(f"\n  {why}" for why in one.reasons))
        if any(one.ready < one.keys or not one.keys for one in ready):
            raise typer.Exit(1)


def doctor(
    folder: Folder = None,
    job: Annotated[str | None, typer.Option(help="Say only why the last run of this job missed.")] = None,
) -> None:
    """Say what keeps the compile cache from helping on this machine, and why the last runs missed what they did."""
    with errors_told():
        from warmstore.compiling.doctor import doctor as look
        from warmstore.compiling.settings import default_folder

        findings = look(_folder(folder, default_folder), job)
        table = Table(box=None, pad_edge=False, show_header=False)
        for one in findings:
            table.add_row("[green]✓[/]" if one.well else "[red]✗[/]", one.name, one.said)
        Console(highlight=False).print(table)
        if any(not one.well for one in findings):
            raise typer.Exit(1)


def _folder(told: Path | None, default) -> Path:  # type: ignore[no-untyped-def]
    return told or Path(os.environ.get("WARMSTORE_CACHE_DIR") or default())
