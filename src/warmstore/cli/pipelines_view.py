"""The output of `warmstore pipelines`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from warmstore.cli.tables import print_table, table
from warmstore.pipeline.plan.plan_figures import PlanFigures
from warmstore.pipeline.tiers.tier_inspection import VersionState
from warmstore.records.format.fields import field_text
from warmstore.storage.humanize import format_duration, format_size

_OTHER_FORMAT = "of another format"


def show_versions(tier: Path, states: Sequence[VersionState], now: float, console: Console) -> None:
    """Print one line per version. `now` is in seconds since 1970."""
    shown = table(f"Samples of pipelines in {tier}", "version", "after", ">samples", ">size", ">used\nago")
    for state in states:
        shown.add_row(
            Text(state.path.name),
            Text(_after(state)),
            f"{state.samples:,}",
            format_size(state.nbytes),
            _used(state, now),
        )
    print_table(shown, console)
    console.print(f"Total: {format_size(sum(state.nbytes for state in states))}.")


def show_version(state: VersionState, now: float, console: Console) -> None:
    """Print what a version depends on and what its samples are."""
    others = f", {state.others:,} of them unlike most" if state.others else ""
    lines = {
        "After": _after(state),
        "Samples": f"{state.samples:,}{others}",
        "Values": f"{_values(state)}, {state.codec}",
        "Size": f"{format_size(state.nbytes)} in {state.chunks:,} chunks",
        "Used": "by a process now" if state.in_use else f"{_used(state, now)} ago",
    }
    if state.damage:
        lines["Damage"] = state.damage
    shown = table(state.path.name, "", "", wrap=True)
    shown.show_header = False
    for name, text in lines.items():
        shown.add_row(Text(name, "bold"), Text(text))
    for step in state.steps or ():
        facts = [f"{place}: {text}" for place, text in step["facts"].items()]
        shown.add_row(Text(f"Step {step['name']}", "bold"), Text("\n".join(facts) or f"identity {step['digest']}"))
    print_table(shown, console)


def version_as_json(state: VersionState) -> dict[str, Any]:
    """A version as JSON data."""
    return {
        "version": state.path.name,
        "path": str(state.path),
        "step": state.step,
        "steps": None if state.steps is None else [step["name"] for step in state.steps],
        "codec": state.codec,
        "samples": state.samples,
        "others": state.others,
        "chunks": state.chunks,
        "bytes": state.nbytes,
        "used": state.used,
        "in_use": state.in_use,
        "damage": state.damage or None,
    }


def version_details(state: VersionState) -> dict[str, Any]:
    """A version as JSON data, with what its steps depend on and the schema of its samples."""
    schema = None if state.schema is None else state.schema.to_json()
    return {**version_as_json(state), "steps": state.steps, "schema": schema}


def plan_as_json(plan: PlanFigures) -> dict[str, Any]:
    """What a plan decides and predicts, as JSON data."""
    stages = plan.profile.stages
    return {
        "samples": plan.samples,
        "placements": [
            {
                "step": place.step,
                "after": stages[place.step].name,
                "tier": place.tier,
                "codec": place.codec,
                "samples": plan.samples_in(number),
                "bytes": plan.nbytes_of(number),
            }
            for number, place in enumerate(plan.placements)
        ],
        "steps": [
            {
                "name": stage.name,
                "seconds": plan.mean(stage.seconds),
                "wait": plan.mean(stage.wait),
                "bytes": plan.mean(stage.nbytes),
                "reason": reason or None,
            }
            for stage, reason in zip(stages, plan.reasons, strict=True)
        ],
        "workers": plan.workers,
        "fill_workers": plan.fill_workers,
        "strategy": plan.strategy,
        "epochs": plan.epochs,
        "batch_size": plan.batch_size,
        "memory": plan.memory,
        "memory_used": plan.memory_used,
        "worker_bytes": plan.worker_bytes,
        "disk": plan.disk,
        "disk_used": plan.disk_used,
        "folder": None if plan.folder is None else str(plan.folder),
        "epoch_seconds": plan.epoch_seconds,
        "uncached_seconds": plan.uncached_seconds,
        "build_seconds": plan.build_seconds,
        "limits": plan.limits,
        "notes": list(plan.notes),
    }


def _after(state: VersionState) -> str:
    if state.steps is None:
        return _OTHER_FORMAT
    return " -> ".join(step["name"] for step in state.steps) or "the source"


def _used(state: VersionState, now: float) -> str:
    return "now" if state.in_use else format_duration(max(now - state.used, 0))


def _values(state: VersionState) -> str:
    if state.schema is None:
        return "of several structures"
    return ", ".join(map(field_text, state.schema.fields))
