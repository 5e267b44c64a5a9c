"""`warmstore plan`: plan the caches of a pipeline from the command line."""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from warmstore.pipeline.pipeline import Pipeline


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
    batch_size: Annotated[int, typer.Option(help="Samples per batch.")] = 64,
    world_size: Annotated[int, typer.Option(help="Ranks on this machine.")] = 1,
    direct_io: Annotated[bool, typer.Option(help="Read the disk tier past the page cache.")] = False,
    strategy: Annotated[
        str, typer.Option(help="joint, or a baseline: sequential, single, presto, page-cache, none.")
    ] = "joint",
    seconds: Annotated[float, typer.Option(help="Approximate seconds of profiling.")] = 12.0,
    refresh: Annotated[bool, typer.Option(help="Measure again, even if a saved profile matches.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Plot the plan to this PNG, SVG or PDF file.")] = None,
) -> None:
    """Profile a pipeline, and show how many samples to cache in memory and on disk, and after which steps."""
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
    show(planned, Console(highlight=False))
    if plot is not None:
        typer.echo(f"Plotted to {planned.plot(plot)}.")


def _found(name: str) -> "Pipeline":
    """The pipeline at MODULE:NAME.

    Raises:
        ValueError: the module or the name does not exist, or it is no pipeline.
    """
    from warmstore.pipeline.pipeline import Pipeline

    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"{name!r} must be MODULE:NAME, such as train:pipeline")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"there is no module {error.name!r}; run this where it can be imported") from None
    if not hasattr(found, attribute):
        raise ValueError(f"the module {module!r} has no {attribute!r}")
    value = getattr(found, attribute)
    value = value if isinstance(value, Pipeline) or not callable(value) else value()
    if not isinstance(value, Pipeline):
        raise ValueError(f"{name} is a {type(value).__name__}; it must be a Pipeline, or a function that returns one")
    return value
