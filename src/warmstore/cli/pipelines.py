"""`warmstore pipelines`: show, remove, plan and share the cached samples of pipelines."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warmstore.cli.command_group import noun
from warmstore.cli.named_objects import named_object
from warmstore.cli.options import Anonymous, Json, Option, Progress, VerifyRemote, Yes, remote_of
from warmstore.cli.replicas import pull_text, push_text
from warmstore.cli.tables import console, echo, print_json
from warmstore.errors import WarmstoreError, message_of
from warmstore.storage.humanize import format_size, parse_size

if TYPE_CHECKING:
    from warmstore.pipeline.pipeline import Pipeline
    from warmstore.pipeline.tiers.tier_inspection import VersionState

Folder = Annotated[Path, typer.Argument(help="The folder that was given to plans.")]
Versions = Annotated[
    list[str] | None, typer.Argument(metavar="[VERSION]...", help="Names that `ls` shows, or their beginnings.")
]
Url = Annotated[
    str, typer.Argument(metavar="URL", help="s3://, gs://, az://, http(s):// or a folder, for all pipelines.")
]

app = noun("Show, remove, plan and share the cached samples of pipelines.")


@app.command()
def ls(folder: Folder, as_json: Json = False) -> None:
    """List the versions on the disk: after which steps, their samples, bytes and last use."""
    from warmstore.cli.pipelines_view import show_versions, version_as_json
    from warmstore.pipeline.tiers.tier_inspection import find_tier, read_versions

    tier = find_tier(folder)
    states = read_versions(tier)
    if as_json:
        print_json([version_as_json(state) for state in states])
    else:
        show_versions(tier, states, time.time(), console())


@app.command()
def show(folder: Folder, version: Versions = None, as_json: Json = False) -> None:
    """Show what versions depend on, and what a sample is."""
    from warmstore.cli.pipelines_view import show_version, version_details
    from warmstore.pipeline.tiers.tier_inspection import find_tier, named_versions

    states = named_versions(find_tier(folder), version or ())
    if as_json:
        print_json([version_details(state) for state in states])
    else:
        for state in states:
            show_version(state, time.time(), console())


@app.command()
def clear(
    folder: Folder,
    version: Versions = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove versions that no process uses: all, or those that are named. Asks first.

    Exits with 1 if one that is named stays, or one cannot be removed.
    """
    from warmstore.pipeline.tiers.tier_inspection import find_tier, named_versions, remove_version

    states = named_versions(find_tier(folder), version or ())
    for state in states:
        what = "in use" if state.in_use else f"{state.samples:,} samples, {format_size(state.nbytes)}"
        echo(f"{state.path}: {what}", err=as_json)
    if not yes and not typer.confirm(f"Remove {'it' if len(states) == 1 else f'all {len(states)}'}?", err=as_json):
        echo("Nothing was removed.", err=as_json)
        raise typer.Exit(1)
    removed: list[VersionState] = []
    in_use: list[VersionState] = []
    failures = []
    for state in states:
        try:
            (removed if remove_version(state.path) else in_use).append(state)
        except (WarmstoreError, OSError) as error:
            failures.append(message_of(error))
    freed = sum(state.nbytes for state in removed)
    if as_json:
        names = {"removed": removed, "in_use": in_use}
        found: dict[str, Any] = {key: [state.path.name for state in some] for key, some in names.items()}
        print_json({**found, "bytes": freed, "failures": failures})
    else:
        kept = f" A process uses {len(in_use)}, which stay." if in_use else ""
        echo(f"Removed {format_size(freed)}.{kept}")
    for failure in failures:
        echo(f"Error: {failure}", err=True)
    if failures or (version and in_use):
        raise typer.Exit(1)


@app.command()
def plan(
    pipeline: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="A Pipeline, or a function that returns one, in a module.")
    ],
    memory: Annotated[str | None, typer.Option(help='Memory for samples and workers, such as "4GB".')] = None,
    disk: Annotated[str | None, typer.Option(help='Disk for samples, such as "50GB".')] = None,
    folder: Annotated[Path, typer.Option(help="Folder of the disk tier and the profile.")] = Path("cache"),
    workers: Annotated[int | None, typer.Option(help="Worker processes. Default: the best number.")] = None,
    epochs: Annotated[int, typer.Option(help="Epochs in which filling the tiers must pay off.")] = 30,
    step_seconds: Annotated[float, typer.Option(help="Seconds of training per batch.")] = 0.0,
    batch_size: Annotated[int | None, typer.Option(help="Samples per batch. Default: 64.")] = None,
    world_size: Annotated[int, typer.Option(help="Ranks on this machine.")] = 1,
    direct_io: Annotated[bool, typer.Option(help="Read the disk tier past the page cache.")] = False,
    strategy: Annotated[
        str, typer.Option(help="joint, or a baseline: sequential, single, presto, page-cache, none.")
    ] = "joint",
    seconds: Annotated[float | None, typer.Option(help="Approximate seconds of profiling. Default: 12.")] = None,
    refresh: Annotated[bool, typer.Option(help="Measure again, even if a saved profile matches.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Plot the plan to this PNG, SVG or PDF file.")] = None,
    as_json: Json = False,
) -> None:
    """Profile a pipeline, and show how many samples to cache in memory and on disk, and after which steps."""
    from warmstore.cli.pipelines_view import plan_as_json
    from warmstore.pipeline.plan.plan_table import show

    pipe = _found(pipeline)
    profile = pipe.profile(folder=folder, batch_size=batch_size, seconds=seconds, refresh=refresh)
    planned = pipe.plan(
        profile=profile,
        memory=memory,
        disk=disk,
        folder=folder,
        workers=workers,
        epochs=epochs,
        step_seconds=step_seconds,
        world_size=world_size,
        direct_io=direct_io,
        strategy=strategy,
    )
    if as_json:
        print_json(plan_as_json(planned))
    else:
        show(planned, console())
    if plot is not None:
        echo(f"Plotted to {planned.plot(plot)}.", err=as_json)


@app.command()
def push(
    folder: Folder,
    url: Url,
    version: Versions = None,
    verify: VerifyRemote = False,
    progress: Progress = None,
    option: Option = None,
    anonymous: Anonymous = False,
    as_json: Json = False,
) -> None:
    """Send the samples that this host has computed to a remote. An interrupted push is resumed."""
    from warmstore.pipeline.sharing import push_folder

    remote = remote_of(url, option, anonymous)
    pushed = push_folder(folder, version or (), remote, verify=verify, progress=progress)
    if as_json:
        print_json({name: asdict(result) for name, result in pushed.items()})
    else:
        for name, result in pushed.items():
            echo(push_text(remote.below(name), result))
        if not pushed:
            echo(f"{folder} holds no samples.")


@app.command()
def pull(
    url: Url,
    folder: Folder,
    disk: Annotated[str, typer.Option(help='The disk budget of plans for this folder, such as "50GB".')],
    pipeline: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME", help="Fetch samples of this pipeline only, and remove what no process uses for them."
        ),
    ] = None,
    progress: Progress = None,
    option: Option = None,
    anonymous: Anonymous = False,
    as_json: Json = False,
) -> None:
    """Fetch samples that other hosts have pushed, within the budget. An interrupted pull is resumed."""
    from warmstore.pipeline.sharing import pull_folder

    remote, chain = remote_of(url, option, anonymous), None if pipeline is None else _found(pipeline)._resolve(folder)
    pulled = pull_folder(folder, parse_size(disk), remote, chain=chain, progress=progress)
    if as_json:
        print_json({name: asdict(result) for name, result in pulled.items()})
    else:
        for name, result in pulled.items():
            echo(pull_text(name, result))
        if not pulled:
            echo(f"{remote.shown} holds no samples{' of this pipeline' if pipeline else ''}.")


def _found(name: str) -> "Pipeline":
    from warmstore.pipeline.pipeline import Pipeline

    return named_object(name, Pipeline)
