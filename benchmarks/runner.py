"""One benchmark, run in a process and a folder of its own: nothing it starts, keeps or writes outlives it."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from benchmarks import machine
from benchmarks.report import Report
from benchmarks.settings import Settings
from benchmarks.side_by_side import describe


def in_own_process(name: str, parent: Path, quick: bool) -> Report:
    """Run one benchmark in a new process over a new folder, which is removed whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="warmstore-bench-", dir=parent))
    try:
        with ProcessPoolExecutor(
            1,
            multiprocessing.get_context("spawn"),
            initializer=_prepare,
            initargs=(multiprocessing.get_start_method(), folder / "state"),
        ) as pool:
            return pool.submit(run_one, name, Settings(folder, quick)).result()
    finally:
        shutil.rmtree(folder)


def run_one(name: str, settings: Settings) -> Report:
    """Run the benchmark of that name; the report says when, how long, and how busy the machine was with other work."""
    began, idle_before, own_before = time.perf_counter(), _idle(), _own()
    try:
        report: Report = importlib.import_module(f"benchmarks.{name}").run(settings)
    except Exception as error:  # the other benchmarks still have something to say
        traceback.print_exc()
        report = Report(name, "This benchmark did not come to its end.", (), broken=(describe(error),))
    spent = time.perf_counter() - began
    others = (psutil.cpu_count() or 1) - (_idle() - idle_before + _own() - own_before) / spent
    facts = {
        "run on": datetime.now(UTC).date().isoformat(),
        "took": f"{spent:.0f} s",
        "sizes": "quick" if settings.quick else "full",
        "cores busy with other work": f"{max(0.0, others):.1f}",
        "CPU": machine.processor(),
    }
    if hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        facts["priority"] = "real-time (chrt)"
    return replace(report, run=facts)


def _prepare(start_method: str, state: Path) -> None:
    """In the new process: start others as a user's program does, and keep folders out of the user's registry."""
    multiprocessing.set_start_method(start_method, force=True)  # a spawned process would spawn its own workers
    os.environ["XDG_STATE_HOME"] = str(state)


def _idle() -> float:
    """Seconds all cores together have been idle, or waiting for a disk."""
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))


def _own() -> float:
    """Seconds of computing of this process and those it has waited for."""
    return sum(psutil.Process().cpu_times()[:4])
