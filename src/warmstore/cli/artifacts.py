"""`warmstore artifacts`: the store of the compile cache, and bundles of it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from warmstore.cli.compiling import Folder
from warmstore.cli.errors import errors_told

if TYPE_CHECKING:
    from warmstore.compiling.artifacts import ArtifactStore

Job = Annotated[str | None, typer.Option(help="Only what this job used.")]
Kind = Annotated[str | None, typer.Option(help="Only of this kind, as `stats` shows them.")]
Size = Annotated[
    str | None, typer.Option(help='What the folder may hold, such as "20GB"; else WARMSTORE_MAX_SIZE_GB, else 100 GB.')
]
Json = Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")]

app = typer.Typer(
    no_args_is_help=True, help="What the compile cache holds: show, check, clear, carry to other machines."
)


def register(parent: typer.Typer) -> None:
    """Add the commands of this group."""
    parent.add_typer(app, name="artifacts")


@app.command()
def stats(folder: Folder = None, as_json: Json = False) -> None:
    """Show how much is compiled and kept, and how often that helped."""
    with _opened(folder) as store:
        from warmstore.cli.artifacts_view import show_stats

        found = store.stats()
        if as_json:
            typer.echo(json.dumps(asdict(found) | {"folder": str(found.folder)}, indent=2))
        else:
            show_stats(found, Console(highlight=False))


@app.command("list")
def list_(folder: Folder = None, job: Job = None, kind: Kind = None, as_json: Json = False) -> None:
    """List the artifacts: what they are of, their size, what they took to make, and when they were used."""
    with _opened(folder) as store:
        from warmstore.cli.artifacts_view import artifact_as_json, show_artifacts

        found = store.all(job, kind)
        if as_json:
            typer.echo(json.dumps([artifact_as_json(one) for one in found], indent=2))
        else:
            show_artifacts(found, Console(highlight=False))


@app.command()
def verify(folder: Folder = None) -> None:
    """Read every artifact. What is damaged is dropped and will be compiled again; fails where there was any."""
    with _opened(folder) as store:
        said = store.verify()
        for line in said:
            typer.echo(line)
        typer.echo(f"{store.folder}: {len(store.all()):,} artifacts are whole")
        if said:
            raise typer.Exit(1)


@app.command()
def clear(
    folder: Folder = None,
    job: Job = None,
    kind: Kind = None,
    unused_for: Annotated[
        str | None, typer.Option(metavar="DURATION", help='Only what was not used for so long: "30d", "12h", "5min".')
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove artifacts: all, or those of a job, of a kind, or long unused. Asks first."""
    with _opened(folder) as store:
        from warmstore.cli.durations import parse_duration

        seconds = None if unused_for is None else parse_duration(unused_for)
        which = "all artifacts" if job is kind is unused_for is None else "these artifacts"
        typer.echo(f"{store.folder}: {len(store.all(job, kind)):,} artifacts{' at most' if unused_for else ''}")
        if not yes and not typer.confirm(f"Remove {which}?"):
            typer.echo("Nothing was removed.")
            raise typer.Exit(1)
        typer.echo(f"Removed {store.clear(job=job, kind=kind, unused_for=seconds):,} artifacts.")


@app.command()
def export(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The new file, by custom a .tar.zst.")],
    folder: Folder = None,
    job: Annotated[
        list[str] | None, typer.Option(help="Take what this job used; may be given again.", show_default="everything")
    ] = None,
) -> None:
    """Write a bundle for other machines, signed where WARMSTORE_SIGNING_KEY or WARMSTORE_SIGNING_KEY_FILE has a key."""
    with _opened(folder) as store:
        from warmstore.compiling.bundles import export as export_bundle

        made = export_bundle(store, path, jobs=job)
        signed = f"signed with the key {made.key}" if made.key else "not signed: no key is configured"
        typer.echo(f"{path}: {made.artifacts:,} artifacts, {_megabytes(made.size)}, {signed}")


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The file.")],
    folder: Folder = None,
    max_size: Size = None,
) -> None:
    """Take in a bundle: all of it, or nothing where anything is wrong with it. With a key, only what it signed."""
    with _opened(folder, max_size, make=True) as store:
        from warmstore.compiling.bundles import import_ as import_bundle

        taken = import_bundle(store, path)
        checked = f"signed with the key {taken.key}" if taken.key else "not checked: no key is configured"
        typer.echo(f"{store.folder}: {taken.artifacts:,} artifacts, {_megabytes(taken.size)}, {checked}")


@contextmanager
def _opened(folder: Path | None, max_size: str | None = None, *, make: bool = False) -> "Iterator[ArtifactStore]":
    """The store of the compile cache. One that is not there is said not to be, or with `make` made."""
    with errors_told():
        from warmstore.compiling.artifacts import ArtifactStore
        from warmstore.compiling.settings import Settings
        from warmstore.errors import NotAStore

        settings = Settings.of(folder, max_size, "lru", "auto", None, None, 0.0)
        if not make and not (settings.folder / "index.sqlite").exists():
            raise NotAStore(f"there is no compile cache in {settings.folder}; `init` or an import makes one")
        with ArtifactStore(settings.folder, settings.max_size) as store:
            yield store


def _megabytes(size: int) -> str:
    from warmstore.cli.records_view import size as said

    return said(size)
