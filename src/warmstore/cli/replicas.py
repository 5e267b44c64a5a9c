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
Url = Annotated[str, typer.Argument(metavar="URL", help="s3://, gs://, az://, http(s):// or a folder, for one store.")]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help='An option of the remote, such as "endpoint=https://..."; repeatable.'
    ),
]
Anonymous = Annotated[bool, typer.Option("--anonymous", help="Send unsigned requests.")]
Verify = Annotated[bool, typer.Option("--verify", help="Check chunks on the remote; send damaged ones again.")]


def push(
    folder: Folder,
    url: Url,
    verify: Verify = False,
    progress: Progress = None,
    option: Option = None,
    anonymous: Anonymous = False,
) -> None:
    """Send a store, or this host's part of a cache, to a remote. An interrupted push is resumed."""
    from warmstore.features.remote_binding import push_folder

    _print_pushed(url, push_folder(folder, _remote(url, option, anonymous), verify=verify, progress=progress))


def pull(
    url: Url, folder: Folder, progress: Progress = None, option: Option = None, anonymous: Anonymous = False
) -> None:
    """Fetch a store, or other hosts' parts of a cache, from a remote. An interrupted pull is resumed."""
    from warmstore.features.remote_binding import pull_folder

    _print_pulled(folder, pull_folder(folder, _remote(url, option, anonymous), progress=progress))


def sync(
    folder: Folder, url: Url, progress: Progress = None, option: Option = None, anonymous: Anonymous = False
) -> None:
    """Pull from a remote, then push the local chunks that the remote lacks."""
    from warmstore.features.remote_binding import pull_folder, push_folder

    remote = _remote(url, option, anonymous)
    _print_pulled(folder, pull_folder(folder, remote, progress=progress, may_be_empty=True))
    _print_pushed(url, push_folder(folder, remote, progress=progress))


def _remote(url: str, option: list[str] | None, anonymous: bool) -> Any:
    from warmstore.replicate.remote_copy import Remote

    return Remote(url, options_of(option), anonymous)


def options_of(option: list[str] | None) -> dict[str, str]:
    """The values of --option NAME=VALUE, by name."""
    for text in option or ():
        if "=" not in text:
            raise ValueError(f"--option {text!r} must be NAME=VALUE, such as region=us-east-1")
    return dict(text.partition("=")[::2] for text in option or ())


def _print_pushed(url: str, pushed: "PushResult") -> None:
    from warmstore.remote.location import Location

    waiting = f"; {pushed.waiting} are still being written and need a later push" if pushed.waiting else ""
    present = f", {pushed.present} already there" if pushed.present else ""
    typer.echo(f"{Location.parse(url).url}: {pushed.chunks} chunks sent, {format_size(pushed.size)}{present}{waiting}")


def _print_pulled(folder: Path, pulled: "PullResult") -> None:
    typer.echo(f"{folder}: {pulled.chunks} chunks fetched, {format_size(pulled.size)}, {pulled.records:,} records")
