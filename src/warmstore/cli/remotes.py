"""`warmstore cache`: what a team shares of compiled artifacts in a remote."""

import os
from typing import Annotated

import typer

from warmstore.cli.compiling import Folder
from warmstore.cli.errors import errors_told
from warmstore.cli.mirrors import Option, options_of

app = typer.Typer(no_args_is_help=True, help="The remote that a team shares compiled artifacts in.")


def register(parent: typer.Typer) -> None:
    """Add the commands of this group."""
    parent.add_typer(app, name="cache")


@app.callback()
def cache() -> None:
    """The remote that a team shares compiled artifacts in."""


@app.command()
def prune(
    remote: Annotated[
        str | None, typer.Option(help="s3://bucket/prefix or the like; else WARMSTORE_REMOTE_URL.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="DURATION", help='Remove what was made longer ago: "30d", "12h".')
    ] = None,
    max_size: Annotated[
        str | None, typer.Option(help='Then remove the oldest until so much is left, such as "50GB".')
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    folder: Folder = None,
    option: Option = None,
) -> None:
    """Remove old artifacts from a remote, and bytes that belong to none. Needs a key that signs."""
    with errors_told():
        from warmstore.cli.durations import parse_duration
        from warmstore.cli.records_view import size
        from warmstore.compiling.remote_memory import RemoteMemory
        from warmstore.compiling.remote_prune import prune as collect
        from warmstore.compiling.remotes import URL
        from warmstore.compiling.settings import Settings
        from warmstore.remote.objects import Objects
        from warmstore.remote.signing import Keyring
        from warmstore.sizes import parse_size

        url = remote or os.environ.get(URL)
        if not url:
            raise ValueError(f"which remote? say --remote URL, or set {URL}")
        local = Settings.of(folder, None, "lru", "auto", None, None, 0.0).folder
        with Objects(url, options=options_of(option)) as objects:
            pruned = collect(
                objects,
                Keyring.from_environment(),
                RemoteMemory(local, objects.location.url),
                older_than=None if older_than is None else parse_duration(older_than),
                max_size=None if max_size is None else parse_size(max_size),
                dry_run=dry_run,
            )
            typer.echo(
                f"{objects.location.url}: {'would remove' if dry_run else 'removed'} {pruned.artifacts:,} artifacts, "
                f"{pruned.blobs:,} objects, {size(pruned.size)}; {pruned.kept:,} artifacts stay, "
                f"{size(pruned.kept_size)}"
            )
