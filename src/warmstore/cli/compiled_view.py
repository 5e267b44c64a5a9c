"""The output of `warmstore compiled`."""

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from warmstore.cli.tables import print_table, table
from warmstore.compiling.artifact import Artifact
from warmstore.compiling.store.store_stats import StoreStats
from warmstore.storage.humanize import format_duration, format_size

_COUNTERS = {
    "hit": "found",
    "miss": "missing",
    "incompatible": "for another environment",
    "damaged": "damaged and compiled again",
    "evicted": "evicted",
    "left": "left to torch.compile",
}


def show_stats(found: StoreStats, console: Console) -> None:
    """Print a store's artifacts by kind and by job, and its lookups."""
    kinds = table("", "kind", ">artifacts", ">size")
    for kind, (count, taken) in found.kinds.items():
        kinds.add_row(Text(kind), f"{count:,}", format_size(taken))
    console.print(Text(f"Compiled artifacts in {found.folder}", "bold"), soft_wrap=True)
    if found.kinds:
        print_table(kinds, console)
    else:
        console.print("None yet.")
    taken = found.counted + found.claimed
    console.print(
        f"On disk {format_size(found.size)}. Of the limit of {format_size(found.limit)}, {format_size(taken)} are "
        f"taken, {taken / found.limit:.1%}: in whole blocks, with what running processes have reserved."
    )
    counted = [f"{found.counters[name]:,} {label}" for name, label in _COUNTERS.items() if found.counters.get(name)]
    if counted:
        console.print(f"Looked up: {'; '.join(counted)}.")
    if found.hits:
        console.print(f"Used {found.hits:,} times: {format_duration(found.seconds_saved)} of compiling saved.")
    if found.jobs:
        jobs = table("", "job", ">artifacts")
        for job, count in found.jobs.items():
            jobs.add_row(Text(job), f"{count:,}")
        print_table(jobs, console)
    if found.read_only:
        console.print("[yellow]The folder is read-only: nothing is added.[/]")


def show_artifacts(found: Sequence[Artifact], console: Console) -> None:
    """Print one line per artifact."""
    if not found:
        console.print("No artifacts.")
        return
    now = time.time()
    shown = table("", "artifact", "kind", ">size", ">took", ">uses", ">used\nago", "made on")
    shown.columns[0].no_wrap = False
    shown.columns[0].overflow = "fold"
    for artifact in found:
        shown.add_row(
            Text(artifact.key),
            Text(artifact.kind),
            format_size(artifact.size),
            format_duration(artifact.seconds) if artifact.seconds else "-",
            f"{artifact.hits:,}",
            format_duration(now - artifact.last_used),
            Text(artifact.host),
        )
    print_table(shown, console)


def artifact_as_json(artifact: Artifact) -> dict[str, Any]:
    """An artifact as JSON data."""
    plain = {name: value for name, value in vars(artifact).items() if name not in ("environment", "requirements")}
    environment = {name: value for name, value in vars(artifact.environment).items() if not name.startswith("_")}
    environment.pop("digest", None)
    return plain | {"requirements": dict(artifact.requirements), "environment": environment}
