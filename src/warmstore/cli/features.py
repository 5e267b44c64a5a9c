"""`warmstore features`: show, fill, merge, share and remove feature caches."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from warmstore.cli import replicas
from warmstore.cli.command_group import noun
from warmstore.cli.named_objects import named_object
from warmstore.cli.options import Json, Progress, Yes
from warmstore.cli.tables import answer, console, echo, print_json
from warmstore.errors import NotAStore, WarmstoreError, message_of
from warmstore.storage.humanize import format_size

Cache = Annotated[
    Path, typer.Argument(metavar="CACHE", help="A cache's folder, one version of it, or a folder of caches.")
]

app = noun("Show, fill, merge, share and remove feature caches.")


@app.command()
def stats(cache: Cache, as_json: Json = False) -> None:
    """Show entries, bytes, hit rate, saved time, age and versions of feature caches."""
    from warmstore.cli.features_view import show_states, state_as_json
    from warmstore.features.cache_inspection import find_caches, read_state

    states = [read_state(path) for path in find_caches(cache)]
    if as_json:
        print_json([state_as_json(state) for state in states])
    else:
        show_states(states, time.time(), console())


@app.command()
def fill(
    job: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="A FillJob, or a function that returns one.")],
    shard: Annotated[str, typer.Option(metavar="I/N", help="This process's share of the samples, I from 0.")] = "0/1",
    progress: Progress = None,
    as_json: Json = False,
) -> None:
    """Compute one shard of the samples that a feature cache lacks, such as one task of a Slurm array."""
    from warmstore.features.fill_job import FillJob

    number, _, count = shard.partition("/")
    if not (number.isdecimal() and count.isdecimal()):
        raise ValueError(f"--shard {shard!r} must be I/N, such as 0/1000")
    result = named_object(job, FillJob).run(int(number), int(count), progress=progress)
    text = f"shard {shard}: {result.computed:,} samples computed, {result.found:,} found"
    answer({"shard": shard, **asdict(result)}, text, as_json=as_json)


@app.command()
def merge(
    cache: Annotated[Path, typer.Argument(metavar="CACHE", help="The folder of the cache that takes the samples.")],
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="The folder of a version of another cache.")],
    progress: Progress = None,
    as_json: Json = False,
) -> None:
    """Copy the samples that another cache of the same module has and this one lacks."""
    from urllib.parse import unquote

    from warmstore.features.cache import FeatureCache
    from warmstore.features.cache_inspection import find_caches
    from warmstore.features.keyed.cache_versions import id_name

    folder = cache.absolute()
    first = find_caches(folder)[0]
    if first.parent != folder.parent:
        raise NotAStore(f"{cache} is a folder of caches; name one of them, such as {first}")
    with FeatureCache(folder.parent, unquote(id_name(folder)), versions="new") as opened:
        merged = opened.merge(other, progress=progress)
    damaged = f", {merged.damaged:,} are damaged and left out" if merged.damaged else ""
    text = f"{cache}: {merged.added:,} samples added, {merged.present:,} were there{damaged}"
    answer(asdict(merged), text, as_json=as_json)


@app.command()
def clear(cache: Cache, yes: Yes = False, as_json: Json = False) -> None:
    """Remove feature caches with all their versions. Asks first. Exits with 1 if one cannot be removed."""
    from warmstore.features.cache_inspection import clear as clear_cache
    from warmstore.features.cache_inspection import find_caches, read_state

    states = [read_state(path) for path in find_caches(cache)]
    for state in states:
        echo(f"{state.path}: {state.entries:,} entries, {format_size(state.bytes)}", err=as_json)
    if not yes and not typer.confirm(f"Remove {'it' if len(states) == 1 else f'all {len(states)}'}?", err=as_json):
        echo("Nothing was removed.", err=as_json)
        raise typer.Exit(1)
    removed, failures = [], []
    for state in states:
        try:
            clear_cache(state.path)
            removed.append(state)
        except (WarmstoreError, OSError) as error:
            failures.append(message_of(error))
    freed = sum(state.bytes for state in removed)
    data = {"removed": [str(state.path) for state in removed], "bytes": freed, "failures": failures}
    answer(data, f"Removed {format_size(freed)}.", as_json=as_json)
    for failure in failures:
        echo(f"Error: {failure}", err=True)
    if failures:
        raise typer.Exit(1)


for command in (replicas.push, replicas.pull, replicas.sync):
    app.command()(command)
