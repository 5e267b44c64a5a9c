"""`warmstore push`, `pull` and `sync`: record stores and feature caches, between a folder and a remote."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warmstore.cli.records import Progress
from warmstore.storage.humanize import format_size

if TYPE_CHECKING:
    from warmstore.replicate.pull import PullResult
    from warmstore.replicate.push import PushResult

Folder = Annotated[Path, typer.Argument(help="The folder of a store or of a cache.")]
Url = Annotated[str, typer.Argument(metavar="URL", help="s3://, gs://, az://, http(s):// or a folder: its own place.")]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help='For the remote, such as "endpoint=https://..."; may be given again.'
    ),
]
Anonymous = Annotated[bool, typer.Option("--anonymous", help="Sign no requests.")]
Verify = Annotated[bool, typer.Option("--verify", help="Read what is there already; send anew what is damaged.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this group."""
    for command in (push, pull, sync):
        app.command()(command)


def push(
    folder: Folder,
    url: Url,
    verify: Verify = False,
    progress: Progress = None,
    option: Option = None,
    anonymous: Anonymous = False,
) -> None:
    """Send a store, or this host's part of a cache, to a remote. Broken off and called again it goes on."""
    from warmstore.features.remote_binding import push_folder

    _say_pushed(url, push_folder(folder, _remote(url, option, anonymous), verify=verify, progress=progress))


def pull(
    url: Url,
    folder: Folder,
    progress: Progress = None,
    option: Option = None,
    anonymous: Anonymous = False,
) -> None:
    """Fetch a store, or what other hosts have of a cache, from a remote. Broken off and called again it goes on."""
    from warmstore.features.remote_binding import pull_folder

    _say_pulled(folder, pull_folder(folder, _remote(url, option, anonymous), progress=progress))


def sync(
    folder: Folder,
    url: Url,
    progress: Progress = None,
    option: Option = None,
    anonymous: Anonymous = False,
) -> None:
    """Pull what the remote has, and then push what it lacks."""
    from warmstore.features.remote_binding import pull_folder, push_folder

    remote = _remote(url, option, anonymous)
    _say_pulled(folder, pull_folder(folder, remote, progress=progress, may_be_empty=True))
    _say_pushed(url, push_folder(folder, remote, progress=progress))


def _remote(url: str, option: list[str] | None, anonymous: bool) -> Any:
    from warmstore.replicate.remote_copy import Remote

    return Remote(url, options_of(option), anonymous)


def options_of(option: list[str] | None) -> dict[str, str]:
    """What was given as --option NAME=VALUE, by name."""
    if any("=" not in one for one in option or ()):
        raise ValueError("--option takes NAME=VALUE, such as region=us-east-1")
    return dict(one.partition("=")[::2] for one in option or ())


def _say_pushed(url: str, done: "PushResult") -> None:
    from warmstore.remote.location import Location

    late = f"; {done.waiting} are still written to and go with a later push" if done.waiting else ""
    there = f", {done.present} were there" if done.present else ""
    typer.echo(f"{Location.parse(url).url}: {done.chunks} chunks sent, {format_size(done.size)}{there}{late}")


def _say_pulled(folder: Path, done: "PullResult") -> None:

    typer.echo(f"{folder}: {done.chunks} chunks fetched, {format_size(done.size)}, {done.records:,} records")
