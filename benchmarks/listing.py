"""How long do commands take that look over everything which is cached on a machine?

A registry knows a thousand feature caches. Each command is a fresh process, as in a shell, and its output is compared
with what was made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import warmstore as ws
from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings

SAMPLES = 3
COMMANDS = ("--help", "ls", "du", "gc --older-than 30d --dry-run")


def run(settings: Settings) -> Report:
    count = settings.pick(1_000, 20)
    times = settings.pick(9, 1)
    environment = {**os.environ, "XDG_CACHE_HOME": str(settings.folder / "user"), "TMPDIR": str(settings.folder)}
    for number in range(count):
        with ws.FeatureCache(settings.folder / "caches", f"backbone_{number}") as cache:
            cache.put_batch(range(SAMPLES), np.ones((SAMPLES, 8), np.float32))
    check(settings.folder, count, environment)
    seconds: dict[str, list[float]] = {command: [] for command in COMMANDS}
    for _ in range(times):
        for command in COMMANDS:
            began = time.perf_counter()
            warmstore(command, environment)
            seconds[command].append(time.perf_counter() - began)
    rows = [(f"warmstore {command}", float(np.median(all_of)), max(all_of)) for command, all_of in seconds.items()]
    medians = {command: float(np.median(all_of)) for command, all_of in seconds.items()}
    return Report(
        "listing",
        f"Commands in fresh processes, on a machine with {count:,} feature caches.",
        (Table("", ("", "median s", "worst s"), tuple(rows)),),
        (
            Bar.at_most(f"seconds of `warmstore ls` over {count:,} caches, median", medians["ls"], 1.0),
            Bar.at_most("seconds of `warmstore --help`, median", medians["--help"], 0.4),
        ),
        (f"{times} processes each, in turn, from start to end. The files are in the page cache.",),
    )


def check(folder: Path, count: int, environment: dict[str, str]) -> None:
    listed = json.loads(warmstore("ls --json", environment))
    found = [one for one in listed if Path(one["path"]).is_relative_to(folder)]  # and no memory tiers of other programs
    assert len(found) == count, f"{len(found)} caches listed"
    assert {one["entries"] for one in found} == {SAMPLES}, "wrong entries"
    du = ["du", "--block-size=1", "-s", found[0]["path"]]
    size = int(subprocess.run(du, capture_output=True, text=True, check=True).stdout.split()[0])
    assert found[0]["bytes"] == size, "wrong size"


def warmstore(command: str, environment: dict[str, str]) -> str:
    line = [sys.executable, "-m", "warmstore", *command.split()]
    return subprocess.run(line, capture_output=True, text=True, check=True, env=environment, cwd=Path("/")).stdout
