"""`warmstore push`, `pull` and `sync`: record stores and feature caches, between a folder and a remote."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmstore.cli.records import Progress
from warmstore.storage.humanize import format_size

if TYPE_CHECKING:
    from warmstore.replicate.pull import PullResult
    from warmstore.replicate.push import PushResult
    from warmstore.replicate.remote_copy import Remote

Folder = Annotated[Path, typer.Argument(help="The folder of a store or of a cache.")]
Url = Annotated[str, typer.Argument(metavar="URL", help="s3://, gs://, az://, http(s):// or a folder, for one store.")]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help='An option of the remote, such as "endpoint=https://..."; repeatable.'
    ),
]
Anonymous = Annotated[bool, typer.Option("--anonymous", help="Send unsigned requests.")]
Sign = Annotated[bool, typer.Option("--sign", help="Sign what is sent; use only what your keys signed. For caches.")]
Verify = Annotated[bool, typer.Option("--verify", help="Check chunks on the remote; send damaged ones again.")]


def push(
    folder: Folder,
    url: Url,
    verify: Verify = False,
    progress: Progress = None,
    option: Option = None,
    anonymous: Anonymous = False,
    sign: Sign = False,
) -> None:
    """Send a store, or this host's part of a cache, to a remote. An interrupted push is resumed."""
    from warmstore.features.remote_binding import push_folder

    remote = remote_of(url, option, anonymous, sign=sign)
    typer.echo(push_text(remote, push_folder(folder, remote, verify=verify, progress=progress)))


def pull(
    url: Url,
    folder: Folder,
    progress: Progress = None,
    option: Option = None,
    anonymous: Anonymous = False,
    sign: Sign = False,
) -> None:
    """Fetch a store, or other hosts' parts of a cache, from a remote. An interrupted pull is resumed."""
    from warmstore.features.remote_binding import pull_folder

    typer.echo(pull_text(folder, pull_folder(folder, remote_of(url, option, anonymous, sign=sign), progress=progress)))


def sync(
    folder: Folder,
    url: Url,
    progress: Progress = None,
    option: Option = None,
    anonymous: Anonymous = False,
    sign: Sign = False,
) -> None:
    """Pull from a remote, then push the local chunks that the remote lacks."""
    from warmstore.features.remote_binding import pull_folder, push_folder

    remote = remote_of(url, option, anonymous, sign=sign)
    typer.echo(pull_text(folder, pull_folder(folder, remote, progress=progress, may_be_empty=True)))
    typer.echo(push_text(remote, push_folder(folder, remote, progress=progress)))


def remote_of(url: str, option: list[str] | None, anonymous: bool, *, sign: bool = False) -> "Remote":
    """The remote that the options of a command name."""
    from warmstore.replicate.remote_copy import Remote

    return Remote(url, options_of(option), anonymous, sign=sign)


def options_of(option: list[str] | None) -> dict[str, str]:
    """The values of --option NAME=VALUE, by name."""
    for text in option or ():
        if "=" not in text:
            raise ValueError(f"--option {text!r} must be NAME=VALUE, such as region=us-east-1")
    return dict(text.partition("=")[::2] for text in option or ())


def push_text(remote: "Remote", pushed: "PushResult") -> str:
    """The result of a push in one line."""
    waiting = f"; {pushed.waiting} are still being written and need a later push" if pushed.waiting else ""
    present = f", {pushed.present} already there" if pushed.present else ""
    return f"{remote.shown}: {pushed.chunks} chunks sent, {format_size(pushed.size)}{present}{waiting}"


def pull_text(target: object, pulled: "PullResult") -> str:
    """The result of a pull in one line."""
    damaged = f"; {pulled.damaged} damaged chunks were left out" if pulled.damaged else ""
    return f"{target}: {pulled.chunks} chunks fetched, {format_size(pulled.size)}, {pulled.records:,} records{damaged}"
