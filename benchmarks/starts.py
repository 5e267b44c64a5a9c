"""How long does a program wait for `import warmstore`, and a person for `warmstore --help`?

Each run is a fresh process, from the start of the interpreter to its end. Beside the seconds on the clock are those of
the processor, which other work on the machine changes less.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median

from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings

IMPORT, HELP = "import warmstore", "warmstore --help"
PROGRAMS = {
    "the limit: an interpreter that does nothing": ("-c", "pass"),
    IMPORT: ("-c", "import warmstore"),
    "import warmstore; warmstore.Array": ("-c", "import warmstore; warmstore.Array"),
    "import warmstore; warmstore.RecordStore": ("-c", "import warmstore; warmstore.RecordStore"),
    HELP: ("-m", "warmstore", "--help"),
    "warmstore store convert --help": ("-m", "warmstore", "store", "convert", "--help"),
    "import numpy": ("-c", "import numpy"),
    "import pyarrow": ("-c", "import pyarrow"),
    "import typer": ("-c", "import typer"),
    "import torch": ("-c", "import torch"),
}


def run(settings: Settings) -> Report:
    rounds = settings.pick(20, 2)
    # Compiled once, in a folder of its own, as an installed package is: sources may lie where none is written.
    variables = {**os.environ, "PYTHONPYCACHEPREFIX": str(settings.folder)}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in PROGRAMS}
    for turn in range(rounds + 1):
        for name, program in PROGRAMS.items():
            took = _seconds([sys.executable, *program], variables)
            if turn:  # the first one compiles, and reads the files from the disk
                times[name].append(took)
    rows = [
        (name, *(1e3 * median(column) for column in zip(*taken, strict=True)), 1e3 * max(taken)[0])
        for name, taken in times.items()
    ]
    return Report(
        "starts",
        "A fresh process imports warmstore, or prints its help.",
        (Table("", ("", "median ms", "median ms of processor", "worst ms"), tuple(rows)),),
        (
            Bar.at_most("import: seconds, median", median(wall for wall, _ in times[IMPORT]), 0.25),
            Bar.at_most("help: seconds, median", median(wall for wall, _ in times[HELP]), 0.4),
        ),
        (
            f"{rounds} processes each, in turn, with compiled bytecode and files in the page cache.",
            "Everything public but the errors is imported when it is first asked for, so a program pays for NumPy and "
            "pyarrow with its first store, and for torch with its first cached module.",
        ),
    )


def _seconds(command: list[str], variables: dict[str, str]) -> tuple[float, float]:
    """The seconds of a process on the clock and on the processor."""
    before, began = os.times(), time.perf_counter()
    subprocess.run(command, env=variables, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, spent
