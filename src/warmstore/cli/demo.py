"""`warmstore demo`: one training job without a cache, with a cold one and with a warm one.

Each run is a fresh process (`warmstore.demo.digits`), so that the warm run can only use the disk. The demo shows the
time by phase, and fails unless the results of all three runs are equal bit for bit.
"""

import importlib.util
import os
import shlex
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmstore.cli.options import Json
from warmstore.cli.tables import print_json
from warmstore.demo.demo_run import DemoRun, call_digits, differences, run_job
from warmstore.errors import NotInstalled

if TYPE_CHECKING:
    from rich.console import Console

NEEDED = {"torch": "PyTorch", "sklearn": "scikit-learn", "PIL": "Pillow", "blake3": "BLAKE3"}
DIGITS = 1797
RUNS = ("no cache", "cold cache", "warm cache")


def demo(
    folder: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, help="Keep images and caches in a new folder in this one.", show_default="temporary"
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs per run.")] = 5,
    as_json: Json = False,
    images: Annotated[int, typer.Option(min=20, max=DIGITS, hidden=True)] = DIGITS,
) -> None:
    """Train on the same images without a cache, with a cold one and with a warm one (about a minute)."""
    missing = [label for module, label in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise NotInstalled(f"the demo needs {' and '.join(missing)}: pip install 'warmstore[demo]'")
    from rich.console import Console

    from warmstore.demo.demo_table import cache_table, print_verdict, time_table

    console = Console(highlight=False, stderr=as_json)
    console.print(
        f"[bold]One training job, three times, each in a fresh process.[/] {images:,} handwritten digits: PNG files "
        "are decoded, resized to 96 x 96 and encoded by a frozen encoder (Gabor filters and random convolutions from a "
        f"fixed seed; nothing is downloaded). A compiled linear head is trained on the features for {epochs} "
        f"epoch{'s' if epochs > 1 else ''}.\n"
    )
    with ExitStack() as stack:
        if folder:
            place = new_folder(folder)
        else:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warmstore-")))
        try:
            runs = run_all(console, place, epochs, images)
        except subprocess.CalledProcessError as error:
            typer.echo(error.stderr, err=True)
            raise ChildProcessError(f"the demo's job failed with exit code {error.returncode}") from None
    found = differences(runs)

    console.print(time_table(runs))
    console.print(
        "[dim]cold: a short profile, and a first epoch that fills the caches. warm: another process, with profile and "
        "caches from disk; planning still loads the solver. no cache: torch.compile has none either, "
        "as in a new container. "
        "start to exit: the whole process, with the import of PyTorch and the last writes to the caches.[/]\n"
    )
    console.print(cache_table(runs[1], runs[2]))
    if not all(run.compiled for run in runs):
        console.print("[yellow]The head was not compiled: torch.compile finds no C++ compiler here.[/]\n")
    print_verdict(console, runs, found)
    if folder:
        console.print(f"Images and caches are in {place}", markup=False, soft_wrap=True)
        console.print(
            f"Where the seconds went: warmstore report {shlex.quote(str(place))}", markup=False, soft_wrap=True
        )
    if as_json:
        print_json(figures(runs, found, images))
    if found:
        raise typer.Exit(1)


def run_all(console: "Console", place: Path, epochs: int, images: int) -> list[DemoRun]:
    """Write the image files into `place`, then run the job on them in each of the three ways."""
    from warmstore.demo.demo_progress import DemoProgress

    files, caches = place / "images", place / "caches"
    runs = []
    with DemoProgress(console, RUNS, epochs) as progress:
        call_digits(["prepare", str(files), "--count", str(images)])
        for name in RUNS:
            progress.begin(name)
            arguments = [str(files), "--epochs", str(epochs), "--threads", str(threads())]
            if name != "no cache":
                arguments += ["--caches", str(caches)]
            runs.append(run_job(name, arguments, progress.hear))
    return runs


def new_folder(folder: Path) -> Path:
    """Make a new folder inside `folder`, so that the cold cache is cold also when the demo runs again."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=time.strftime("demo-%Y%m%d-%H%M%S-"), dir=folder))


def threads() -> int:
    """Threads of each run, equal for all runs: the number of threads can change the last bit of a sum."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, 4)


def figures(runs: list[DemoRun], found: list[str], images: int) -> dict[str, object]:
    """What `--json` writes."""
    return {
        "images": images,
        "threads": threads(),
        "identical": not found,
        "differences": found,
        "times_faster": {run.name: runs[0].seconds / run.seconds for run in runs},
        "runs": [asdict(run) for run in runs],
    }
