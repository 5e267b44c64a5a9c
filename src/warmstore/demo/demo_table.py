"""The demo's output: the time by phase, the caches, and whether the runs agree."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from warmstore.demo.demo_run import PHASES, DemoRun
from warmstore.storage.humanize import format_size

SHOWN_EPOCHS = 5


def time_table(runs: Sequence[DemoRun]) -> Table:
    """Seconds by epoch: for each run the totals, then the phases."""
    table = new_table("Seconds")
    table.add_column("", no_wrap=True)
    for name in (*(f"epoch\n{name}" for name in epoch_names(len(runs[0].epochs))), "all\nepochs", "times\nfaster"):
        table.add_column(name, justify="right", no_wrap=True, min_width=6)
    for run in runs:
        sums = [sum(epoch.values()) for epoch in run.epochs]
        table.add_row(run.name, *columns(sums), times(runs[0].seconds, run.seconds), style="bold green")
        for phase, label in PHASES.items():
            table.add_row(f"  {label}", *columns([epoch.get(phase, 0.0) for epoch in run.epochs]), "")
        blank = [""] * len(epoch_names(len(sums)))
        faster = times(runs[0].start_to_exit, run.start_to_exit)
        table.add_row("  start to exit", *blank, f"{run.start_to_exit:.3f}", faster, style="dim", end_section=True)
    return table


def cache_table(cold: DemoRun, warm: DemoRun) -> Table:
    """Size of each cache, and its hits and misses in the two runs that used it."""
    table = new_table("Caches")
    table.add_column("", no_wrap=True)
    for name in ("on disk", "entries", "cold\nhits", "cold\nmisses", "warm\nhits", "warm\nmisses"):
        table.add_column(name, justify="right", no_wrap=True)
    for before, after in zip(cold.caches, warm.caches, strict=True):
        counts = (after.entries, before.hits, before.misses, after.hits, after.misses)
        table.add_row(after.name, format_size(after.bytes), *(f"{count:,}" for count in counts))
    return table


def print_verdict(console: Console, runs: Sequence[DemoRun], found: Sequence[str]) -> None:
    """Print whether the results of all runs are equal, or how they differ."""
    if found:
        console.print("[bold red]✘ NOT the same result.[/] The runs differ:")
        for line in found:
            console.print(f"  {line}", markup=False)
        return
    losses, accuracies = runs[0].losses, runs[0].accuracies
    console.print(f"[bold green]✔ Same result, bit for bit, in all {len(runs)} runs:[/]")
    console.print(
        f"  {len(losses)} training losses, the last one {float.fromhex(losses[-1]):.6f} = {losses[-1]}\n"
        f"  {len(accuracies)} test accuracies, the last one {float.fromhex(accuracies[-1]):.1%} of images held out\n"
        f"  the trained weights, SHA-256 {runs[0].weights[:16]}..."
    )


def new_table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False
    )


def epoch_names(epochs: int) -> list[str]:
    """Column heads: one per epoch; if there are many, the later ones share one."""
    if epochs <= SHOWN_EPOCHS:
        return [str(number + 1) for number in range(epochs)]
    return [*(str(number + 1) for number in range(SHOWN_EPOCHS - 1)), f"{SHOWN_EPOCHS}-{epochs}"]


def columns(seconds: Sequence[float]) -> list[str]:
    """One cell for each of `epoch_names`, and the sum."""
    shown = list(seconds)
    if len(shown) > SHOWN_EPOCHS:
        shown = [*shown[: SHOWN_EPOCHS - 1], sum(shown[SHOWN_EPOCHS - 1 :])]
    return [f"{value:.3f}" for value in (*shown, sum(seconds))]


def times(slow: float, fast: float) -> str:
    ratio = slow / fast
    return f"{ratio:.0f}x" if ratio >= 20 else f"{ratio:.1f}x"
