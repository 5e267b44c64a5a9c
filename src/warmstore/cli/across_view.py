"""The output of the commands across all kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from warmstore.cli.tables import print_table, table
from warmstore.inventory.cached_folder import KINDS, CachedFolder
from warmstore.storage.humanize import format_duration, format_size

if TYPE_CHECKING:
    from warmstore.compiling.finding import Finding
    from warmstore.inventory.comparison import Comparison
    from warmstore.inventory.removal import Removal, RemovalPlan
    from warmstore.inventory.verification import Verified

_COMMANDS = 10  # that `ls` prints; --json has one for every folder


def folder_as_json(folder: CachedFolder) -> dict[str, Any]:
    """A folder as JSON data."""
    return {
        "kind": folder.kind,
        "path": str(folder.path),
        "entries": folder.entries,
        "bytes": folder.nbytes,
        "created": folder.created,
        "used": folder.used,
        "hits": folder.hits,
        "misses": folder.misses,
        "in_use": folder.in_use,
        "is_data": folder.is_data,
        "problem": folder.problem or None,
        "free": folder.free or None,
    }


def show_folders(folders: Sequence[CachedFolder], now: float, console: Console) -> None:
    """Print one line per folder, then how to free the largest. `now` is in seconds since 1970."""
    if not folders:
        console.print("There are no stores and caches.")
        return
    shown = table("", "kind", ">size", ">entries", ">hits", ">age", ">used\nago", "path")
    for folder in folders:
        shown.add_row(
            folder.kind,
            format_size(folder.nbytes),
            "-" if folder.entries is None else f"{folder.entries:,}",
            "-" if folder.hits is None else f"{folder.hits:,}",
            format_duration(now - folder.created) if folder.created else "-",
            _idle(folder, now),
            Text(str(folder.path) + (f" ({folder.problem})" if folder.problem else "")),
        )
    print_table(shown, console)
    console.print(f"Total: {format_size(sum(folder.nbytes for folder in folders))} on the disk.")
    known = [folder for folder in folders if folder.free]
    if known:
        console.print("To free the largest:" if len(known) > _COMMANDS else "To free them:")
    for folder in known[:_COMMANDS]:
        note = "   # may exist nowhere else" if folder.is_data else ""
        console.print(Text(f"  {folder.free}{note}"), soft_wrap=True)
    if len(known) > _COMMANDS:
        console.print(f"--json has the commands for the other {len(known) - _COMMANDS:,}.")


def usage_by_kind(folders: Sequence[CachedFolder]) -> dict[str, dict[str, int]]:
    """For each kind and in total: folders, entries, bytes, and the bytes that `gc` may remove."""
    usage = {}
    for kind in (*KINDS, "total"):
        chosen = [folder for folder in folders if kind in (folder.kind, "total")]
        if chosen or kind == "total":
            usage[kind] = {
                "folders": len(chosen),
                "entries": sum(folder.entries or 0 for folder in chosen),
                "bytes": sum(folder.nbytes for folder in chosen),
                "removable": sum(folder.nbytes for folder in chosen if _is_removable(folder)),
            }
    return usage


def _is_removable(folder: CachedFolder) -> bool:
    return not (folder.in_use or folder.is_data or folder.is_unknown)


def show_usage(usage: Mapping[str, Mapping[str, int]], console: Console) -> None:
    """Print what `usage_by_kind` returns."""
    shown = table("", "", ">folders", ">entries", ">size", ">gc may free")
    for kind, figures in usage.items():
        sizes = format_size(figures["bytes"]), format_size(figures["removable"])
        shown.add_row(KINDS.get(kind, kind), f"{figures['folders']:,}", f"{figures['entries']:,}", *sizes)
    print_table(shown, console)


def removal_as_json(removal: Removal) -> dict[str, Any]:
    """A removal as JSON data."""
    return {
        "kind": removal.folder.kind,
        "path": str(removal.folder.path),
        "entries": removal.entries,
        "bytes": removal.nbytes,
        "used": removal.used,
        "whole": removal.whole,
    }


def show_plan(plan: RemovalPlan, now: float, console: Console) -> None:
    """Print what a collection removes, and what it leaves."""
    if plan.removals:
        shown = table("", "kind", ">frees", ">entries", ">used\nago", "path")
        for removal in plan.removals:
            shown.add_row(
                removal.folder.kind,
                format_size(removal.nbytes),
                "-" if removal.entries is None else f"{removal.entries:,}",
                format_duration(now - removal.used),
                Text(str(removal.folder.path)),
            )
        print_table(shown, console)
    console.print(f"{format_size(plan.nbytes)} to free; caches of {format_size(plan.left)} stay.")
    for folder in plan.in_use:
        console.print(Text(f"In use, and stays: {folder.path}"), soft_wrap=True)
    if plan.data:
        size = format_size(sum(folder.nbytes for folder in plan.data))
        console.print(
            f"{len(plan.data):,} folders with {size} may exist nowhere else, and stay; see --include-data.",
            soft_wrap=True,
        )
    if plan.limit is not None and plan.left > plan.limit:
        console.print(f"That is more than {format_size(plan.limit)}: the rest is in use, or cannot be removed.")


def verified_text(result: Verified) -> str:
    """What was found in one folder, as lines."""
    first, *others = result.lines
    lines = [f"{result.folder.path}: {first}", *(line if line.startswith(" ") else f"  {line}" for line in others)]
    return "\n".join([*lines, *([f"  {result.repair}"] if result.repair else [])])


def verified_as_json(result: Verified) -> dict[str, Any]:
    """What was found in one folder, as JSON data."""
    return {
        "kind": result.folder.kind,
        "path": str(result.folder.path),
        "ok": result.ok,
        "found": list(result.lines),
        "repair": result.repair or None,
    }


def comparison_text(found: Comparison) -> str:
    """How two versions differ, as lines."""
    if found.differences:
        text = "\n  ".join([f"From {found.first} (A) to {found.second} (B):", *found.differences])
    else:
        same = "the same steps" if found.not_compared else "the same"
        text = f"{found.first} (A) and {found.second} (B) were made from {same}."
    return f"{text}\nNot compared: {found.not_compared}." if found.not_compared else text


def comparison_as_json(found: Comparison) -> dict[str, Any]:
    """How two versions differ, as JSON data."""
    paths = {"a": str(found.first), "b": str(found.second)}
    return {"kind": found.kind, **paths, "differences": found.differences, "not_compared": found.not_compared or None}


def finding_as_json(finding: Finding) -> dict[str, Any]:
    """A finding of a doctor as JSON data."""
    return {"name": finding.name, "ok": finding.well, "text": finding.said}


def show_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print the findings of a doctor."""
    shown = table("", "", "", "", wrap=True)
    shown.show_header, shown.box = False, None
    for finding in findings:
        mark = Text("✓", "green") if finding.well else Text("✗", "red")
        shown.add_row(mark, Text(finding.name), Text(finding.said))
    print_table(shown, console)


def _idle(folder: CachedFolder, now: float) -> str:
    if folder.in_use:
        return "now"
    return format_duration(now - folder.used) if folder.used else "-"
