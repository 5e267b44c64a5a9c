"""The commands across all kinds of stores and caches: `warmstore ls`, `du`, `gc`, `verify`, `diff` and `doctor`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmstore.cli.options import DryRun, Json, Progress, Yes
from warmstore.cli.tables import answer, console, echo, print_json
from warmstore.errors import WarmstoreError
from warmstore.storage.humanize import format_size, parse_duration, parse_size

if TYPE_CHECKING:
    from warmstore.inventory.cached_folder import CachedFolder

Folders = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FOLDER]...", help="Look in these folders and below. Default: all that this user has opened to write."
    ),
]


def ls(folder: Folders = None, as_json: Json = False) -> None:
    """List all stores and caches on this machine: kind, size on the disk, entries, hits, age, and how to free each.

    Sizes are allocated bytes, as `du` counts them: what a removal frees.
    """
    from warmstore.cli.across_view import folder_as_json, show_folders

    found = _found(folder)
    if as_json:
        print_json([folder_as_json(one) for one in found])
    else:
        show_folders(found, time.time(), console())


def du(folder: Folders = None, as_json: Json = False) -> None:
    """Show how many bytes each kind takes on the disk, and how many of them `gc` may remove.

    Sizes are allocated bytes, as `du` counts them.
    """
    from warmstore.cli.across_view import show_usage, usage_by_kind

    usage = usage_by_kind(_found(folder))
    if as_json:
        print_json(usage)
    else:
        show_usage(usage, console())


def gc(
    folder: Folders = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="DURATION", help='Remove what was not used for this long: "30d", "12h", "0s".')
    ] = None,
    max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help='Then remove the least recently used until this is left: "10GB".')
    ] = None,
    include_data: Annotated[
        bool,
        typer.Option(
            "--include-data",
            help="Also remove record stores, and caches that put_batch alone filled: they may exist nowhere else.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove what was not used for long, of all kinds: the least recently used first. Asks first.

    Removes whole versions of feature caches and pipelines, results of functions, single artifacts of compile caches,
    and copies of remotes. Caches that a process uses stay, and so do record stores. Exits with 1 if a removal failed.
    """
    from warmstore.cli.across_view import removal_as_json, show_plan
    from warmstore.inventory.removal import failure_of, plan_removals, remove

    if older_than is None and max_size is None:
        raise ValueError("nothing says what to remove; pass --older-than, --max-size or both")
    plan = plan_removals(
        _found(folder),
        older_than=None if older_than is None else parse_duration(older_than),
        max_size=None if max_size is None else parse_size(max_size),
        include_data=include_data,
    )
    if not as_json:
        show_plan(plan, time.time(), console())
    if not dry_run and plan.removals and not yes and not typer.confirm("Remove this?", err=as_json):
        echo("Nothing was removed.", err=as_json)
        raise typer.Exit(1)
    freed, failures = 0, []
    for removal in () if dry_run else plan.removals:
        try:
            freed += remove(removal)
        except (WarmstoreError, OSError) as error:
            failures.append(failure_of(removal, error))
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "removals": [removal_as_json(removal) for removal in plan.removals],
                "bytes": plan.nbytes if dry_run else freed,
                "left": plan.left,
                "in_use": [str(one.path) for one in plan.in_use],
                "data": [str(one.path) for one in plan.data],
                "failures": failures,
            }
        )
    elif not dry_run and plan.removals:
        echo(f"Freed {format_size(freed)}.")
    for failure in failures:
        echo(f"Error: {failure}", err=True)
    if failures:
        raise typer.Exit(1)


def verify(folder: Folders = None, progress: Progress = None, as_json: Json = False) -> None:
    """Read every byte of stores and caches of all kinds, and compare it with its hash.

    Exits with 1 if any is damaged or cannot be read, or if the folders that are named have none. Damaged artifacts of
    compile caches are dropped, and compiled again. Everything else is only looked at.
    """
    from warmstore.cli.across_view import verified_as_json, verified_text
    from warmstore.inventory.verification import verify as verify_folder

    results = []
    for one in _found(folder):
        results.append(verify_folder(one, progress=progress))
        if not as_json:
            echo(verified_text(results[-1]))
    if as_json:
        print_json([verified_as_json(result) for result in results])
    elif not results:
        echo("There are no stores and caches.")
    if not all(result.ok for result in results) or (folder and not results):
        raise typer.Exit(1)


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A version of a feature cache or pipeline.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    as_json: Json = False,
) -> None:
    """Show how what made B differs from what made A: weights, code, settings; steps and samples. Exits with 1 if so."""
    from warmstore.cli.across_view import comparison_as_json, comparison_text
    from warmstore.inventory.comparison import compare

    found = compare(first, second)
    answer(comparison_as_json(found), comparison_text(found), as_json=as_json)
    if found.differences:
        raise typer.Exit(1)


def doctor(as_json: Json = False) -> None:
    """Check this machine: versions, extras, the compiled part, disks, shared memory, threads, and the compile cache.

    Exits with 1 if something is wrong.
    """
    from warmstore.cli.across_view import finding_as_json, show_findings
    from warmstore.inventory.machine_checks import check_machine

    findings = check_machine()
    if as_json:
        print_json([finding_as_json(finding) for finding in findings])
    else:
        show_findings(findings, console())
    if not all(one.well for one in findings):
        raise typer.Exit(1)


def _found(folders: list[Path] | None) -> "list[CachedFolder]":
    from warmstore.inventory.discovery import find
    from warmstore.inventory.folder_states import read_states

    return sorted(read_states(find(folders or ())), key=lambda one: (-one.nbytes, one.path))
