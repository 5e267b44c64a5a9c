"""`push`, `pull` and `sync` of `warmstore store` and `warmstore features`: between a folder and a remote."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmstore.cli.options import Anonymous, Json, Option, Progress, Sign, Url, VerifyRemote, remote_of
from warmstore.cli.tables import answer, echo, print_json
from warmstore.storage.humanize import format_size

if TYPE_CHECKING:
    from warmstore.replicate.pull import PullResult
    from warmstore.replicate.push import PushResult
    from warmstore.replicate.remote_copy import Remote

Folder = Annotated[Path, typer.Argument(help="The folder of a store or of a cache.")]


def push(
    folder: Folder,
    url: Url,
    verify: VerifyRemote = False,
    progress: Progress = None,
    option: Option = None,
    anonymous: Anonymous = False,
    sign: Sign = False,
    as_json: Json = False,
) -> None:
    """Send a store, or this host's part of a cache, to a remote. An interrupted push is resumed."""
    from warmstore.features.remote_binding import push_folder

    remote = remote_of(url, option, anonymous, sign=sign)
    pushed = push_folder(folder, remote, verify=verify, progress=progress)
    answer(asdict(pushed), push_text(remote, pushed), as_json=as_json)


def pull(
    url: Url,
    folder: Folder,
    progress: Progress = None,
    option: Option = None,
    anonymous: Anonymous = False,
    sign: Sign = False,
    as_json: Json = False,
) -> None:
    """Fetch a store, or other hosts' parts of a cache, from a remote. An interrupted pull is resumed."""
    from warmstore.features.remote_binding import pull_folder

    pulled = pull_folder(folder, remote_of(url, option, anonymous, sign=sign), progress=progress)
    answer(asdict(pulled), pull_text(folder, pulled), as_json=as_json)


def sync(
    folder: Folder,
    url: Url,
    progress: Progress = None,
    option: Option = None,
    anonymous: Anonymous = False,
    sign: Sign = False,
    as_json: Json = False,
) -> None:
    """Pull from a remote, then push the local chunks that the remote lacks."""
    from warmstore.features.remote_binding import pull_folder, push_folder

    remote = remote_of(url, option, anonymous, sign=sign)
    pulled = pull_folder(folder, remote, progress=progress, may_be_empty=True)
    if not as_json:
        echo(pull_text(folder, pulled))
    pushed = push_folder(folder, remote, progress=progress)
    if as_json:
        print_json({"pulled": asdict(pulled), "pushed": asdict(pushed)})
    else:
        echo(push_text(remote, pushed))


def push_text(remote: "Remote", pushed: "PushResult") -> str:
    """The result of a push in one line."""
    waiting = f"; {pushed.waiting} are still being written and need a later push" if pushed.waiting else ""
    present = f", {pushed.present} already there" if pushed.present else ""
    return f"{remote.shown}: {pushed.chunks} chunks sent, {format_size(pushed.size)}{present}{waiting}"


def pull_text(target: object, pulled: "PullResult") -> str:
    """The result of a pull in one line."""
    damaged = f"; {pulled.damaged} damaged chunks were left out" if pulled.damaged else ""
    return f"{target}: {pulled.chunks} chunks fetched, {format_size(pulled.size)}, {pulled.records:,} records{damaged}"
