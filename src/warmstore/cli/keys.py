"""`warmstore keys`: what compiled artifacts from elsewhere are signed and checked with."""

import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Keys that sign and check compiled artifacts: make one, show yours.")


def register(parent: typer.Typer) -> None:
    """Add the commands of this group."""
    parent.add_typer(app, name="keys")


@app.command()
def generate(
    kind: Annotated[str, typer.Option(help="hmac, a secret that all share, or ed25519, a pair.")] = "hmac",
    out: Annotated[
        Path | None, typer.Option(help="A new file for it, which only you can read; else it is printed.")
    ] = None,
) -> None:
    """Make a key, for WARMSTORE_SIGNING_KEY or for a file that WARMSTORE_SIGNING_KEY_FILE names."""
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
        typer.echo(f"# For those who only check, the line that is no secret:\n{public.line}", err=out is None)


@app.command()
def show(
    path: Annotated[
        Path | None, typer.Option("--file", help="A file of keys; else those of the variables.", show_default=False)
    ] = None,
) -> None:
    """Show which keys are configured: their ids, what they can do, and the lines that are no secrets."""
    from warmstore.remote.signing import KEY, KEY_FILE, Keyring

    keys = (Keyring.from_file(path) if path else Keyring.from_environment()).keys
    for key in keys:
        can = "signs and checks" if key.is_secret else "checks"
        line = key.public.line if key.kind != "hmac" else "hmac, a secret"
        typer.echo(f"{key.id}  {can:16}  {line}")
    if not keys:
        typer.echo(f"No key is configured: neither {KEY} nor {KEY_FILE} is set.")
        raise typer.Exit(1)
