"""`warmstore features`: show, fill, merge, share and remove feature caches."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from warmstore.cli import replicas
from warmstore.cli.command_group import Commands
from warmstore.cli.named_objects import named_object
from warmstore.cli.options import Json, Progress, Yes
from warmstore.storage.humanize import format_size

Cache = Annotated[
    Path, typer.Argument(metavar="CACHE", help="A cache's folder, one version of it, or a folder of caches.")
]

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Show, fill, merge, share and remove feature caches.")


@app.command()
def stats(cache: Cache, as_json: Json = False) -> None:
    """Show entries, bytes, hit rate, saved time, age and versions of feature caches."""
    from warmstore.cli.features_view import show_states, state_as_json
    from warmstore.features.cache_inspection import find_caches, read_state

    states = [read_state(path) for path in find_caches(cache)]
    if as_json:
        typer.echo(json.dumps([state_as_json(state) for state in states], indent=2))
    else:
        show_states(states, time.time(), Console(highlight=False))


@app.command()
def fill(
    job: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="A FillJob, or a function that returns one.")],
    shard: Annotated[str, typer.Option(metavar="I/N", help="This process's share of the samples, I from 0.")] = "0/1",
    progress: Progress = None,
) -> None:
    """Compute one shard of the samples that a feature cache lacks, such as one task of a Slurm array."""
    from warmstore.features.fill_job import FillJob

    number, _, count = shard.partition("/")
    if not (number.isdecimal() and count.isdecimal()):
        raise ValueError(f"--shard {shard!r} must be I/N, such as 0/1000")
    result = named_object(job, FillJob).run(int(number), int(count), progress=progress)
    typer.echo(f"shard {shard}: {result.computed:,} samples computed, {result.found:,} found")


@app.command()
def clear(cache: Cache, yes: Yes = False) -> None:
    """Remove feature caches with all their versions. Asks first."""
    from warmstore.features.cache_inspection import clear as clear_cache
    from warmstore.features.cache_inspection import find_caches, read_state

    states = [read_state(path) for path in find_caches(cache)]
    for state in states:
        typer.echo(f"{state.path}: {state.entries:,} entries, {format_size(state.bytes)}")
    freed = sum(state.bytes for state in states)
    if not yes and not typer.confirm(f"Remove {'it' if len(states) == 1 else f'all {len(states)}'}?"):
        typer.echo("Nothing was removed.")
        raise typer.Exit(1)
    for state in states:
        clear_cache(state.path)
    typer.echo(f"Removed {format_size(freed)}.")


for command in (replicas.push, replicas.pull, replicas.sync):
    app.command()(command)
