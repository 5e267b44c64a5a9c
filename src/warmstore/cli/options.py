"""Options and arguments that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from warmstore.replicate.remote_copy import Remote

Anonymous = Annotated[bool, typer.Option("--anonymous", help="Send unsigned requests.")]
CompileCache = Annotated[
    Path | None, typer.Option("--dir", help="The compile cache's folder. Default: WARMSTORE_CACHE_DIR, or the user's.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help='An option of the remote, such as "endpoint=https://..."; repeatable.'
    ),
]
Progress = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show a progress bar.", show_default="on a terminal")
]
Sign = Annotated[bool, typer.Option("--sign", help="Sign what is sent; use only what your keys signed. For caches.")]
Url = Annotated[str, typer.Argument(metavar="URL", help="s3://, gs://, az://, http(s):// or a folder, for one store.")]
VerifyRemote = Annotated[bool, typer.Option("--verify", help="Check chunks on the remote; send damaged ones again.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


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
