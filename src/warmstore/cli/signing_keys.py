"""`warmstore signing-keys`: keys that sign and check compiled artifacts and feature caches."""

import os
from pathlib import Path
from typing import Annotated

import typer

from warmstore.cli.command_group import noun
from warmstore.cli.options import Json
from warmstore.cli.tables import echo, print_json

app = noun("Make and show keys that sign and check compiled artifacts and feature caches.")


@app.command()
def generate(
    kind: Annotated[str, typer.Option(help="hmac (a shared secret) or ed25519 (a key pair).")] = "hmac",
    out: Annotated[
        Path | None, typer.Option(help="A new file for the key, readable only by you. Default: print the key.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a key for WARMSTORE_SIGNING_KEY, or for the file in WARMSTORE_SIGNING_KEY_FILE."""
    from warmstore.remote.signing import SigningKey

    made = SigningKey.new(kind)
    public = made.public
    if out is not None:
        out = _write(out, made.line)
    if as_json:
        data = {"id": made.id, "kind": made.kind, "public": None if public == made else public.line}
        print_json(data | ({"key": made.line} if out is None else {"file": str(out)}))
        return
    if out is None:
        echo(made.line)
    else:
        echo(f"{out}: the {made.kind} key {made.id}")
    if public != made:
        echo(f"# The public key, for machines that only check:\n{public.line}", err=out is None)


@app.command()
def show(
    path: Annotated[
        Path | None, typer.Option("--file", help="A file of keys. Default: the environment.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the configured keys: their ids, their uses and their public lines."""
    from warmstore.remote.signing import KEY, KEY_FILE, Keyring

    keys = (Keyring.from_file(path) if path else Keyring.from_environment()).keys
    if as_json:
        lines = [None if key.kind == "hmac" else key.public.line for key in keys]  # a secret has no public line
        found = [{"id": key.id, "kind": key.kind, "signs": key.is_secret} for key in keys]
        print_json([data | {"public": line} for data, line in zip(found, lines, strict=True)])
    for key in () if as_json else keys:
        can = "signs and checks" if key.is_secret else "checks"
        line = key.public.line if key.kind != "hmac" else "hmac, a secret"
        echo(f"{key.id}  {can:16}  {line}")
    if not keys:
        echo(f"No key is configured: neither {KEY} nor {KEY_FILE} is set.", err=as_json)
        raise typer.Exit(1)


def _write(out: Path, line: str) -> Path:
    """Write a key to a new file that only this user can read. Returns its path."""
    out = out.expanduser()
    out.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(out, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(line + "\n")
    return out
