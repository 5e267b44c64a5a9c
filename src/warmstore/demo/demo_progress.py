"""The demo's progress: one bar for all its processes on a terminal, else one line per run."""

from collections.abc import Sequence
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

# Approximate durations in uncached epochs, so that the bar moves evenly.
COMPUTED, CACHED, START = 1.0, 0.01, 0.3


def costs(name: str, epochs: int) -> list[float]:
    """The duration of each epoch of a run."""
    return {
        "no cache": [COMPUTED] * epochs,
        "cold cache": [COMPUTED] + [CACHED] * (epochs - 1),
        "warm cache": [CACHED] * epochs,
    }[name]


class DemoProgress:
    """Turns the jobs' messages into one moving bar."""

    def __init__(self, console: Console, names: Sequence[str], epochs: int) -> None:
        self._console = console
        self._epochs = epochs
        self._name = ""
        self._epoch = 0
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<26}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            expand=True,
            disable=not console.is_terminal or console.is_dumb_terminal,
        )
        total = START + sum(START + sum(costs(name, epochs)) for name in names)
        self._task = self._bar.add_task("writing image files", total=total)

    def __enter__(self) -> Self:
        self._say("writing image files")
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def begin(self, name: str) -> None:
        """Start a run. The previous one has ended."""
        self._name, self._epoch = name, 0
        self._say(f"{name}: training for {self._epochs} epoch{'s' if self._epochs > 1 else ''}")
        self._bar.update(self._task, description=f"{name}: starting", advance=START)

    def hear(self, message: dict[str, Any]) -> None:
        """Process a message of the running job."""
        if message["kind"] == "step":
            cost = costs(self._name, self._epochs)[self._epoch]
            description = f"{self._name}: epoch {self._epoch + 1} of {self._epochs}"
            self._bar.update(self._task, description=description, advance=cost * message["part"])
        elif message["kind"] == "epoch":
            self._epoch += 1

    def _say(self, line: str) -> None:
        if self._bar.disable:
            self._console.print(line)
