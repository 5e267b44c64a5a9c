"""`warmstore compiled`: what the compile cache holds, how it fares, and what is carried to other machines."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from warmstore.cli.replicas import Option, options_of
from warmstore.storage.humanize import format_size, parse_duration, parse_size

if TYPE_CHECKING:
    from warmstore.compiling.store.artifact_store import ArtifactStore

Folder = Annotated[
    Path | None, typer.Option("--dir", help="The compile cache's folder; else WARMSTORE_CACHE_DIR, else the user's.")
]
Job = Annotated[str | None, typer.Option(help="Only what this job used.")]
Kind = Annotated[str | None, typer.Option(help="Only of this kind, as `stats` shows them.")]
Size = Annotated[
    str | None, typer.Option(help='What the folder may hold, such as "20GB"; else WARMSTORE_MAX_SIZE_GB, else 100 GB.')
]
Json = Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")]

_PATIENT = 60.0  # seconds without data flowing that who asks for a warm-up waits

app = typer.Typer(
    no_args_is_help=True, help="What the compile cache holds: look at it, clear it, carry it to other machines."
)


def register(parent: typer.Typer) -> None:
    """Add the commands of this group."""
    parent.add_typer(app, name="compiled")


@app.command()
def stats(folder: Folder = None, as_json: Json = False) -> None:
    """Show how much is compiled and kept, and how often that helped."""
    with _opened(folder) as store:
        from warmstore.cli.compiled_view import show_stats

        found = store.stats()
        if as_json:
            typer.echo(json.dumps(asdict(found) | {"folder": str(found.folder)}, indent=2))
        else:
            show_stats(found, Console(highlight=False))


@app.command("list")
def list_(folder: Folder = None, job: Job = None, kind: Kind = None, as_json: Json = False) -> None:
    """List the artifacts: what they are of, their size, what they took to make, and when they were used."""
    with _opened(folder) as store:
        from warmstore.cli.compiled_view import artifact_as_json, show_artifacts

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
        typer.echo(f"{path}: {made.artifacts:,} artifacts, {format_size(made.size)}, {signed}")


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
        typer.echo(f"{store.folder}: {taken.artifacts:,} artifacts, {format_size(taken.size)}, {checked}")


@app.command()
def warmup(
    jobs: Annotated[list[str], typer.Argument(help="Names of jobs.")],
    folder: Folder = None,
    remote: Annotated[
        str | None, typer.Option(help="Fetch from there what is not here; else WARMSTORE_REMOTE_URL.")
    ] = None,
) -> None:
    """Check that everything some jobs used is here, whole and usable on this machine. Fails where it is not."""
    from warmstore.compiling.jobs import prepare
    from warmstore.compiling.remote.remote_settings import RemoteSettings
    from warmstore.remote.offline import is_offline

    shared = None if is_offline() else RemoteSettings.of(remote, None, _PATIENT)
    ready = [prepare(_folder(folder), job, shared) for job in jobs]
    for one in ready:
        typer.echo(f"{one.job}: {one.ready} of {one.keys} ready" + "".join(f"\n  {why}" for why in one.reasons))
    if any(one.ready < one.keys or not one.keys for one in ready):
        raise typer.Exit(1)


@app.command()
def doctor(
    folder: Folder = None,
    job: Annotated[str | None, typer.Option(help="Say only why the last run of this job missed.")] = None,
) -> None:
    """Say what keeps the compile cache from helping on this machine, and why the last runs missed what they did."""
    from warmstore.compiling.doctor import doctor as look

    findings = look(_folder(folder), job)
    table = Table(box=None, pad_edge=False, show_header=False)
    for one in findings:
        table.add_row("[green]✓[/]" if one.well else "[red]✗[/]", one.name, one.said)
    Console(highlight=False).print(table)
    if any(not one.well for one in findings):
        raise typer.Exit(1)


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
    from warmstore.compiling.remote.remote_memory import RemoteMemory
    from warmstore.compiling.remote.remote_prune import prune as collect
    from warmstore.compiling.remote.remote_settings import URL
    from warmstore.compiling.settings import Settings
    from warmstore.remote.objects import Objects
    from warmstore.remote.signing import Keyring

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
            f"{pruned.blobs:,} objects, {format_size(pruned.size)}; {pruned.kept:,} artifacts stay, "
            f"{format_size(pruned.kept_size)}"
        )


@contextmanager
def _opened(folder: Path | None, max_size: str | None = None, *, make: bool = False) -> "Iterator[ArtifactStore]":
    """The store of the compile cache. One that is not there is said not to be, or with `make` made."""
    from warmstore.compiling.settings import Settings
    from warmstore.compiling.store.artifact_store import ArtifactStore
    from warmstore.errors import NotAStore

    settings = Settings.of(folder, max_size, "lru", "auto", None, None, 0.0)
    if not make and not (settings.folder / "index.sqlite").exists():
        raise NotAStore(f"there is no compile cache in {settings.folder}; `init` or an import makes one")
    with ArtifactStore(settings.folder, settings.max_size) as store:
        yield store


def _folder(told: Path | None) -> Path:
    from warmstore.compiling.settings import default_folder

    return told or Path(os.environ.get("WARMSTORE_CACHE_DIR") or default_folder())
