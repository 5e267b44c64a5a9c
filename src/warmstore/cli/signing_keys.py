"""`warmstore signing-keys`: keys that sign and check compiled artifacts."""

import os
from pathlib import Path
from typing import Annotated

import typer

from warmstore.cli.command_group import Commands

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Make and show keys that sign and check compiled artifacts.")


@app.command()
def generate(
    kind: Annotated[str, typer.Option(help="hmac (a shared secret) or ed25519 (a key pair).")] = "hmac",
    out: Annotated[
        Path | None, typer.Option(help="A new file for the key, readable only by you. Default: print the key.")
    ] = None,
) -> None:
    """Make a key for WARMSTORE_SIGNING_KEY, or for the file in WARMSTORE_SIGNING_KEY_FILE."""
    from warmstore.remote.signing import SigningKey

    made = SigningKey.new(kind)
    public = made.public
    if out is None:
        typer.echo(made.line)
    else:
        out = out.expanduser()
        out.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(out, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(made.line + "\n")
        typer.echo(f"{out}: the {made.kind} key {made.id}")
    if public != made:
        typer.echo(f"# The public key, for machines that only check:\n{public.line}", err=out is None)


@app.command()
def show(
    path: Annotated[
        Path | None, typer.Option("--file", help="A file of keys. Default: the environment.", show_default=False)
    ] = None,
) -> None:
    """Show the configured keys: their ids, their uses and their public lines."""
    from warmstore.remote.signing import KEY, KEY_FILE, Keyring

    keys = (Keyring.from_file(path) if path else Keyring.from_environment()).keys
    for key in keys:
        can = "signs and checks" if key.is_secret else "checks"
        line = key.public.line if key.kind != "hmac" else "hmac, a secret"
        typer.echo(f"{key.id}  {can:16}  {line}")
    if not keys:
        typer.echo(f"No key is configured: neither {KEY} nor {KEY_FILE} is set.")
        raise typer.Exit(1)
