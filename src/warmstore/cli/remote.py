"""`warmstore remote`: what a store or a cache at a remote holds, its repair, and garbage collection."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmstore.cli.command_group import noun
from warmstore.cli.options import Anonymous, DryRun, Json, Option, Progress, Sign, Url, Yes, remote_of
from warmstore.cli.tables import console, echo, print_json, print_table, table
from warmstore.storage.humanize import format_size, parse_duration

if TYPE_CHECKING:
    from warmstore.replicate.upkeep import RemoteReport

app = noun("Check, repair and clean up a store or a cache at a remote.")

Deep = Annotated[bool, typer.Option("--deep", help="Read all chunks, instead of comparing their sizes.")]


@app.command()
def verify(
    url: Url,
    deep: Deep = False,
    as_json: Json = False,
    option: Option = None,
    anonymous: Anonymous = False,
    sign: Sign = False,
) -> None:
    """Show the hosts of a cache at a remote, and what is damaged. The status is 1 if anything is."""
    from warmstore.replicate import upkeep

    report = upkeep.verify(remote_of(url, option, anonymous, sign=sign), deep=deep)
    _show(report, as_json)
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def repair(
    url: Url,
    deep: Deep = False,
    as_json: Json = False,
    option: Option = None,
    anonymous: Anonymous = False,
    sign: Sign = False,
) -> None:
    """Forget what is damaged in a cache at a remote. Hosts that have it push it again."""
    from warmstore.replicate import upkeep

    _show(upkeep.repair(remote_of(url, option, anonymous, sign=sign), deep=deep), as_json)


@app.command()
def retire(
    url: Url,
    host: Annotated[str, typer.Argument(metavar="HOST", help="A host's name, or 8 digits of its store's id.")],
    yes: Yes = False,
    as_json: Json = False,
    option: Option = None,
    anonymous: Anonymous = False,
    sign: Sign = False,
) -> None:
    """Forget what one host has pushed to a cache. Should it push again, it is back. Asks first."""
    from warmstore.replicate import upkeep

    remote = remote_of(url, option, anonymous, sign=sign)
    if not yes:
        for one in upkeep.find_host(remote, host):
            echo(f"{one.host} ({one.store[:8]}): {one.chunks} chunks, {format_size(one.size)}", err=as_json)
        if not typer.confirm("Forget this?", err=as_json):
            echo("Nothing was forgotten.", err=as_json)
            raise typer.Exit(1)
    hosts = upkeep.retire(remote, host)
    if as_json:
        print_json([asdict(one) for one in hosts])
        return
    for one in hosts:
        echo(f"{one.host} ({one.store[:8]}): {one.chunks} chunks, {format_size(one.size)}, are no longer listed")


@app.command()
def merge(
    url: Url,
    work_dir: Annotated[Path | None, typer.Option(help="A local folder for a copy of the cache.")] = None,
    progress: Progress = None,
    as_json: Json = False,
    option: Option = None,
    anonymous: Anonymous = False,
    sign: Sign = False,
) -> None:
    """Replace all parts of a cache at a remote by one, such as those of a Slurm array that has ended."""
    from warmstore.features.remote_merging import merge_parts

    remote = remote_of(url, option, anonymous, sign=sign)
    merged = merge_parts(remote, work_dir=work_dir, progress=progress)
    if as_json:
        print_json(asdict(merged))
        return
    echo(f"{remote.shown}: {merged.parts} parts are one now, with {merged.samples:,} samples")


@app.command()
def gc(
    url: Url,
    keep: Annotated[str, typer.Option("--keep", help="Objects younger than this stay, such as 7d; a day at least.")],
    dry_run: DryRun = False,
    as_json: Json = False,
    option: Option = None,
    anonymous: Anonymous = False,
) -> None:
    """Remove the objects of a store or a cache at a remote that nothing names. Safe beside pushes."""
    from warmstore.replicate import upkeep

    removed = upkeep.gc(remote_of(url, option, anonymous), keep=parse_duration(keep), dry_run=dry_run)
    if as_json:
        print_json(asdict(removed))
        return
    would = "would be removed" if dry_run else "removed"
    young = f"; {removed.young} younger ones stay" if removed.young else ""
    echo(f"{removed.objects} objects, {format_size(removed.size)}, {would}{young}")


def _show(report: "RemoteReport", as_json: bool) -> None:
    if as_json:
        print_json(asdict(report) | {"ok": report.ok})
        return
    if report.hosts:
        hosts = table("hosts", "host", "store", ">chunks", ">size", ">damaged")
        for host in report.hosts:
            damaged = str(len(host.damaged)) if host.damaged else "-"
            hosts.add_row(host.host, host.store[:8], str(host.chunks), format_size(host.size), damaged)
        print_table(hosts, console())
    for problem in report.problems:
        echo(f"damaged: {problem}")
    echo(f"{report.unused} objects, {format_size(report.unused_size)}, are named by nothing")
