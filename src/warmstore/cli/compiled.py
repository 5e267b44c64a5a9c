"""`warmstore compiled`: show, check, clear, export and import the compile cache."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmstore.cli.command_group import noun
from warmstore.cli.options import CompileCache, DryRun, Json, Option, Yes, options_of
from warmstore.cli.tables import answer, console, echo, print_json
from warmstore.errors import NotAStore
from warmstore.storage.humanize import format_size, parse_duration, parse_size

if TYPE_CHECKING:
    from warmstore.compiling.settings import Settings
    from warmstore.compiling.store.artifact_store import ArtifactStore

Job = Annotated[str | None, typer.Option(help="Only artifacts that this job used.")]
Kind = Annotated[str | None, typer.Option(help="Only artifacts of this kind; see `stats`.")]
Size = Annotated[
    str | None, typer.Option(help='Limit of the folder, such as "20GB". Default: WARMSTORE_MAX_SIZE_GB, or 100 GB.')
]

_WAIT = 60.0  # seconds without data from the remote that a warm-up accepts

_NONE = "there is no compile cache in {}; `init` or an import creates one"

app = noun("Show, check, clear, export and import the compile cache.")


@app.command()
def stats(folder: CompileCache = None, as_json: Json = False) -> None:
    """Show how many artifacts are cached, and how often they were used."""
    with _opened(folder) as store:
        from warmstore.cli.compiled_view import show_stats

        found = replace(store.stats(), limit=_settings(folder).max_size)
        if as_json:
            print_json(asdict(found) | {"folder": str(found.folder)})
        else:
            show_stats(found, console())


@app.command()
def ls(folder: CompileCache = None, job: Job = None, kind: Kind = None, as_json: Json = False) -> None:
    """List the artifacts with their kind, size, compile time and last use."""
    with _opened(folder) as store:
        from warmstore.cli.compiled_view import artifact_as_json, show_artifacts

        found = store.all(job, kind)
        if as_json:
            print_json([artifact_as_json(artifact) for artifact in found])
        else:
            show_artifacts(found, console())


@app.command()
def verify(folder: CompileCache = None, as_json: Json = False) -> None:
    """Check every artifact. Damaged ones are removed and compiled again; exits with 1 if there are any."""
    with _opened(folder) as store:
        problems = store.verify()
        whole = len(store.all())
        text = "\n".join([*problems, f"{store.folder}: {whole:,} artifacts are whole"])
        answer({"folder": str(store.folder), "whole": whole, "dropped": problems}, text, as_json=as_json)
        if problems:
            raise typer.Exit(1)


@app.command()
def clear(
    folder: CompileCache = None,
    job: Job = None,
    kind: Kind = None,
    unused_for: Annotated[
        str | None, typer.Option(metavar="DURATION", help='Only artifacts unused for this long: "30d", "12h", "5min".')
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove artifacts: all, or those of a job, of a kind, or unused for some time. Asks first."""
    with _opened(folder) as store:
        seconds = None if unused_for is None else parse_duration(unused_for)
        which = "all artifacts" if job is kind is unused_for is None else "these artifacts"
        echo(f"{store.folder}: {len(store.all(job, kind)):,} artifacts{' at most' if unused_for else ''}", err=as_json)
        if not yes and not typer.confirm(f"Remove {which}?", err=as_json):
            echo("Nothing was removed.", err=as_json)
            raise typer.Exit(1)
        removed = store.clear(job=job, kind=kind, unused_for=seconds)
        answer({"removed": removed}, f"Removed {removed:,} artifacts.", as_json=as_json)


@app.command()
def export(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The new file, usually .tar.zst.")],
    folder: CompileCache = None,
    job: Annotated[
        list[str] | None, typer.Option(help="Only artifacts that this job used; repeatable.", show_default="everything")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a bundle for other machines, signed if WARMSTORE_SIGNING_KEY or WARMSTORE_SIGNING_KEY_FILE has a key."""
    with _opened(folder) as store:
        from warmstore.compiling.bundles import export as export_bundle

        bundle = export_bundle(store, path, jobs=job)
        signed = f"signed with the key {bundle.key}" if bundle.key else "not signed: no key is configured"
        text = f"{path}: {bundle.artifacts:,} artifacts, {format_size(bundle.size)}, {signed}"
        answer({"path": str(path), **asdict(bundle)}, text, as_json=as_json)


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The file.")],
    folder: CompileCache = None,
    max_size: Size = None,
    as_json: Json = False,
) -> None:
    """Import a bundle: all of it, or nothing if it is not valid. With a key, only a bundle signed with it."""
    from warmstore.compiling.bundles import import_ as import_bundle
    from warmstore.compiling.store.artifact_store import ArtifactStore

    settings = _settings(folder, max_size)
    with ArtifactStore(settings.folder, settings.max_size) as store:
        bundle = import_bundle(store, path)
        checked = f"signed with the key {bundle.key}" if bundle.key else "not checked: no key is configured"
        text = f"{store.folder}: {bundle.artifacts:,} artifacts, {format_size(bundle.size)}, {checked}"
        answer({"folder": str(store.folder), **asdict(bundle)}, text, as_json=as_json)


@app.command()
def warmup(
    jobs: Annotated[list[str], typer.Argument(help="Names of jobs.")],
    folder: CompileCache = None,
    remote: Annotated[
        str | None, typer.Option(help="Fetch missing artifacts from here. Default: WARMSTORE_REMOTE_URL.")
    ] = None,
    max_size: Size = None,
    as_json: Json = False,
) -> None:
    """Check that all artifacts of some jobs are usable on this machine; exits with 1 if not."""
    from warmstore.compiling.jobs import prepare
    from warmstore.compiling.remote.remote_settings import RemoteSettings
    from warmstore.remote.offline import is_offline

    shared = None if is_offline() else RemoteSettings.of(remote, None, _WAIT)
    settings = _settings(folder, max_size)
    ready = [prepare(settings.folder, job, shared, settings.max_size) for job in jobs]
    lines = [
        f"{state.job}: {state.ready} of {state.keys} ready" + "".join(f"\n  {why}" for why in state.reasons)
        for state in ready
    ]
    answer([asdict(state) for state in ready], "\n".join(lines), as_json=as_json)
    if any(state.ready < state.keys or not state.keys for state in ready):
        raise typer.Exit(1)


@app.command()
def doctor(
    folder: CompileCache = None,
    job: Annotated[str | None, typer.Option(help="Only explain the misses of this job's last run.")] = None,
    as_json: Json = False,
) -> None:
    """Show what is wrong with the compile cache on this machine, and why the last runs had misses."""
    from warmstore.cli.across_view import finding_as_json, show_findings
    from warmstore.compiling.doctor import doctor as diagnose

    settings = _settings(folder)
    if folder is not None and not settings.folder.is_dir():
        raise NotAStore(_NONE.format(settings.folder))
    findings = diagnose(settings.folder, job)
    if as_json:
        print_json([finding_as_json(finding) for finding in findings])
    else:
        show_findings(findings, console())
    if any(not finding.well for finding in findings):
        raise typer.Exit(1)


@app.command()
def prune(
    remote: Annotated[
        str | None, typer.Option(help="The remote, such as s3://bucket/prefix. Default: WARMSTORE_REMOTE_URL.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="DURATION", help='Remove older artifacts: "30d", "12h".')
    ] = None,
    max_size: Annotated[
        str | None, typer.Option(help='Then remove the oldest until this size is left, such as "50GB".')
    ] = None,
    dry_run: DryRun = False,
    folder: CompileCache = None,
    option: Option = None,
    as_json: Json = False,
) -> None:
    """Remove old artifacts and unreferenced objects from a remote. Needs a signing key."""
    from warmstore.compiling.remote.remote_memory import RemoteMemory
    from warmstore.compiling.remote.remote_prune import prune as collect
    from warmstore.compiling.remote.remote_settings import URL
    from warmstore.remote.objects import Objects
    from warmstore.remote.signing import Keyring

    url = remote or os.environ.get(URL)
    if not url:
        raise ValueError(f"no remote is given; pass --remote URL or set {URL}")
    local = _settings(folder).folder
    with Objects(url, options=options_of(option)) as objects:
        pruned = collect(
            objects,
            Keyring.from_environment(),
            RemoteMemory(local, objects.identity),
            older_than=None if older_than is None else parse_duration(older_than),
            max_size=None if max_size is None else parse_size(max_size),
            dry_run=dry_run,
        )
        text = (
            f"{objects.location.url}: {'would remove' if dry_run else 'removed'} {pruned.artifacts:,} artifacts, "
            f"{pruned.blobs:,} objects, {format_size(pruned.size)}; {pruned.kept:,} artifacts stay, "
            f"{format_size(pruned.kept_size)}"
        )
        answer({"dry_run": dry_run, **asdict(pruned)}, text, as_json=as_json)


@contextmanager
def _opened(folder: Path | None) -> "Iterator[ArtifactStore]":
    """Open the store of the compile cache, of which nothing is evicted. Raises NotAStore if there is none."""
    from warmstore.compiling.store.artifact_quota import UNLIMITED
    from warmstore.compiling.store.artifact_store import ArtifactStore

    settings = _settings(folder)
    if not (settings.folder / "index.sqlite").exists():
        raise NotAStore(_NONE.format(settings.folder))
    with ArtifactStore(settings.folder, UNLIMITED) as store:
        yield store


def _settings(folder: Path | None, max_size: str | None = None) -> "Settings":
    from warmstore.compiling.settings import Settings

    return Settings.of(folder, max_size, "lru", "auto", None, None, 0.0)
