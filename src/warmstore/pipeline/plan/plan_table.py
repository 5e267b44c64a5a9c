"""A plan as a table: time and bytes per step, its cached samples, or why it has none."""

import statistics
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from warmstore.pipeline.plan.plan_figures import PlanFigures, other_reason
from warmstore.storage.humanize import format_duration, format_size

_WIDTH = 140


def as_text(plan: PlanFigures) -> str:
    """The table as plain text, at most 140 characters wide."""
    # Without force_jupyter, a console in a notebook displays what it prints instead of writing it to its file.
    console = Console(file=StringIO(), width=_WIDTH, highlight=False, color_system=None, force_jupyter=False)
    show(plan, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().rstrip()


def show(plan: PlanFigures, console: Console) -> None:
    """Print the table, the budgets, the epoch and the notes."""
    shown = Table(box=box.SIMPLE_HEAD, title=_title(plan), title_justify="left", title_style="bold", pad_edge=False)
    for name in ("step", ">time", ">±", ">bytes in", ">bytes out", ">all samples", ">zstd", "kept"):
        shown.add_column(name.removeprefix(">"), justify="right" if name[0] == ">" else "left", overflow="fold")
    before = None
    for k, stage in enumerate(plan.profile.stages):
        nbytes = plan.mean(stage.nbytes)
        squeezed = stage.stored.get("zstd")
        shown.add_row(
            Text(stage.name if not k else f"{k} {stage.name}"),
            format_duration(plan.mean(stage.seconds) + plan.mean(stage.wait)),
            format_duration(stage.spread),
            "" if before is None else format_size(before),
            format_size(nbytes),
            format_size(nbytes * plan.samples),
            f"{plan.mean(squeezed.nbytes) / max(nbytes, 1):.0%}" if squeezed else "",
            Text("\n".join(kept(plan, k)) or reason(plan, k), style="" if kept(plan, k) else "dim"),
        )
        before = nbytes
    console.print(shown)
    for line in summary(plan):
        console.print(line, markup=False, soft_wrap=True)
    for note in plan.notes:
        console.print(Text(f"Note: {note}"))


def kept(plan: PlanFigures, step: int) -> list[str]:
    """The cached samples of a step, a line per placement: `1,200 (60%) in memory, 48 MB`."""
    return [
        f"{plan.samples_in(number):,} ({plan.samples_in(number) / plan.samples:.0%}) "
        f"{'in memory' if place.tier == 'memory' else 'on disk'}, {format_size(plan.nbytes_of(number))}"
        f"{'' if place.codec == 'raw' else ', ' + place.codec}"
        for number, place in enumerate(plan.placements)
        if place.step == step
    ]


def reason(plan: PlanFigures, step: int) -> str:
    """Why no samples are cached after a step."""
    text = plan.reasons[step] if step < len(plan.reasons) else ""
    return f"no: {text or other_reason(plan)}"


def summary(plan: PlanFigures) -> list[str]:
    """Budgets and epochs, in sentences."""
    lines = []
    if plan.memory:
        workers = f" and {format_size(plan.worker_bytes)} for workers" if plan.worker_bytes else ""
        lines.append(f"Memory: {format_size(plan.memory_used)} for samples{workers}, of {format_size(plan.memory)}.")
    if plan.disk:
        direct = ", read past the page cache" if plan.direct_io else ""
        lines.append(f"Disk: {format_size(plan.disk_used)} of {format_size(plan.disk)} in {plan.folder}{direct}.")
    ranks = f" on each of {plan.world_size} ranks" if plan.world_size > 1 else ""
    filling = f", {plan.fill_workers} while samples are missing" if plan.fill_workers != plan.workers else ""
    lines.append(f"Workers: {plan.workers or 'none'}{ranks}{filling}; batches of {plan.batch_size}.")
    lines.append(
        f"Epoch: {predicted(plan)}, bounded by {plan.bound}; "
        f"{format_duration(plan.uncached_seconds)} without caches "
        f"({plan.uncached_seconds / max(plan.epoch_seconds, 1e-9):.1f}x); "
        f"the first one takes {format_duration(plan.build_seconds)} more."
    )
    if plan.measured:
        took = statistics.median(plan.measured)
        lines.append(
            f"Measured: {format_duration(took)}, {took / max(plan.epoch_seconds, 1e-9) - 1:+.0%} of what was predicted "
            f"(median of {len(plan.measured)})."
        )
    return lines


def predicted(plan: PlanFigures) -> str:
    """`2.40 s predicted`; a short epoch has a band: `0.14 s predicted, between 0.10 and 0.25 s`."""
    text = f"{format_duration(plan.epoch_seconds)} predicted"
    if plan.epoch_seconds >= 1:
        return text
    return f"{text}, between {' and '.join(map(format_duration, plan.band))}"


def _title(plan: PlanFigures) -> str:
    how = "" if plan.strategy == "joint" else f", by the rule {plan.strategy!r}"
    return f"Plan for {plan.samples:,} samples, {plan.profile.samples:,} of them measured{how}"
