"""`warmstore plan`: what a pipeline had better keep where, from the command line."""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from warmstore.pipeline.pipeline import Pipeline


def register(app: typer.Typer) -> None:
    """Add the commands of this group."""
    app.command()(plan)


def plan(
    pipeline: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="A Pipeline, or a function that returns one, in a module.")
    ],
    memory: Annotated[str | None, typer.Option(help='Memory for samples and workers, such as "4GB".')] = None,
    disk: Annotated[str | None, typer.Option(help='Disk for samples, such as "50GB".')] = None,
    folder: Annotated[Path, typer.Option(help="Where the disk tier and the profile lie.")] = Path("cache"),
    workers: Annotated[int | None, typer.Option(help="Worker processes; as many as pay by default.")] = None,
    epochs: Annotated[int, typer.Option(help="Epochs in which building the tiers must pay.")] = 30,
    step_seconds: Annotated[float, typer.Option(help="Seconds that training takes per batch.")] = 0.0,
    batch_size: Annotated[int, typer.Option(help="Samples a batch.")] = 64,
    world_size: Annotated[int, typer.Option(help="Ranks on this machine.")] = 1,
    direct_io: Annotated[bool, typer.Option(help="Read the disk tier past the page cache.")] = False,
    strategy: Annotated[
        str, typer.Option(help="joint; or, to compare with: sequential, single, presto, page-cache, none.")
    ] = "joint",
    seconds: Annotated[float, typer.Option(help="How long to measure, about.")] = 12.0,
    refresh: Annotated[bool, typer.Option(help="Measure again, whatever is remembered.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the plan into this PNG, SVG or PDF.")] = None,
) -> None:
    """Measure a pipeline and show what to keep of which step in memory and on disk."""
    from warmstore.pipeline.plan.plan_table import show

    pipe = _found(pipeline)
    profile = pipe.profile(folder=folder, batch_size=batch_size, seconds=seconds, refresh=refresh)
    told: dict[str, Any] = {
        "workers": workers,
        "epochs": epochs,
        "step_seconds": step_seconds,
        "world_size": world_size,
    }
    made = pipe.plan(
        profile=profile, memory=memory, disk=disk, folder=folder, direct_io=direct_io, strategy=strategy, **told
    )
    show(made, Console(highlight=False))
    if plot is not None:
        typer.echo(f"Drawn into {made.plot(plot)}.")


def _found(name: str) -> "Pipeline":
    """The pipeline that MODULE:NAME means.

    Raises:
        ValueError: no such module, no such name, or something else under it.
    """
    from warmstore.pipeline.pipeline import Pipeline

    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"{name!r} must be MODULE:NAME, such as train:pipeline")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"there is no module {error.name!r}; run this where it can be imported") from None
    if not hasattr(found, attribute):
        raise ValueError(f"the module {module!r} has no {attribute!r}")
    value = getattr(found, attribute)
    value = value if isinstance(value, Pipeline) or not callable(value) else value()
    if not isinstance(value, Pipeline):
        raise ValueError(f"{name} is a {type(value).__name__}; it must be a warmstore Pipeline or a function of none")
    return value
