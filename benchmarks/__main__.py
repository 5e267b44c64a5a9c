"""Run the benchmarks: `python -m benchmarks [--quick] [--only NAME] [--folder FOLDER] [--results FOLDER]`.

Each benchmark has a process of its own, so that none inherits another's threads, heap or open stores. A full run leaves
its figures in benchmarks/results and remakes docs/benchmarks.md from all that lie there; a quick one only prints.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from benchmarks import machine
from benchmarks.report import load, page, show
from benchmarks.runner import in_own_process

NAMES = (
    "starts",
    "gather",
    "cold",
    "small_memory",
    "records",
    "labels",
    "features",
    "first_epoch",
    "cached_functions",
    "torchcachex",
    "processes",
    "reopen",
    "sessions",
    "write",
    "edits",
    "cache_write",
    "convert",
    "scaling",
    "keys",
    "samplers",
    "loader",
    "trainers",
    "pipelines",
    "pipelines_in_memory",
    "pipeline_peers",
    "compiling",
    "coverage",
    "artifacts",
    "remote",
    "remote_reads",
    "remote_stores",
    "ray_fill",
    "staleness",
    "identity",
    "listing",
)
HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"


def main(arguments: list[str] | None = None) -> int:
    """Returns 1 where warmstore failed or was wrong; a missed bar is shown, not an error: machines differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure warmstore beside its peers.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it works, not how fast it is")
    parser.add_argument("--only", action="append", choices=NAMES, help="this benchmark (may be given again)")
    parser.add_argument("--folder", type=Path, help="where the data goes (several GB, removed afterwards)")
    parser.add_argument("--results", type=Path, help="where the JSON files go (a quick run: nowhere, unless told)")
    told = parser.parse_args(arguments)

    console = Console()
    parent = told.folder or machine.disk_folder()
    results = told.results or (None if told.quick else HERE / "results")
    reports = []
    for name in told.only or NAMES:
        report = in_own_process(name, parent, told.quick)
        show(report, console)
        reports.append(report)
        if results:
            report.save(results)
    if not told.quick and not told.results:
        kept = [load(results / f"{name}.json") for name in NAMES if (results / f"{name}.json").exists()]
        PAGE.write_text(page(kept, machine.facts(parent)))
        console.print(f"wrote {PAGE.name}")
    if told.quick:
        console.print("quick sizes: a passed or missed bar says nothing here", highlight=False)
    missed = sum(not bar.passed for report in reports for bar in report.bars)
    console.print(f"{missed} of {sum(len(report.bars) for report in reports)} bars missed", highlight=False)
    return int(any(report.broken for report in reports))


if __name__ == "__main__":
    sys.exit(main())
