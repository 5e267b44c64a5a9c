"""`warmstore run`: run an unchanged program with the compile cache."""

import os
import sys
from typing import Annotated

import typer

from warmstore.cli.options import CompileCache


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="What to run, such as python train.py.")
    ],
    job: Annotated[str | None, typer.Option(help="The job name under which used artifacts are recorded.")] = None,
    folder: CompileCache = None,
    profile: Annotated[str, typer.Option(help="auto, fast or portable.")] = "auto",
    remote: Annotated[
        str | None, typer.Option(help="Remote with shared artifacts. Default: WARMSTORE_REMOTE_URL.")
    ] = None,
) -> None:
    """Run an unchanged program with the compile cache, also under torchrun and similar launchers."""
    import warmstore.compiling.start as start
    from warmstore.compiling.remote.remote_settings import URL, RemoteSettings
    from warmstore.compiling.settings import Settings

    shared = RemoteSettings.of(remote, None, 0.0)
    Settings.of(folder, None, "lru", profile, job, None, 0.0, shared)  # raises once, instead of in every process
    options = {
        "WARMSTORE_JOB": job,
        "WARMSTORE_CACHE_DIR": folder and str(folder.expanduser().absolute()),
        "WARMSTORE_PROFILE": None if profile == "auto" else profile,  # "auto" leaves the choice to the variable
        URL: remote,
    }
    variables = {**os.environ, **{name: value for name, value in options.items() if value}}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [start.__path__[0], os.environ.get("PYTHONPATH")]))
    if sys.stdout is not None:  # None: it is closed
        sys.stdout.flush()
    os.execvpe(command[0], command, variables)
