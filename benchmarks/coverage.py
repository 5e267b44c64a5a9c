"""Which everyday programs does `ws.compile` start without tracing, and is what they compute right?

Each program of `corpus` starts in four fresh processes: cold and warm with `ws.compile`, cold and warm with
`torch.compile` and the cache. Each process compares its steps with eager ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.compiling import ROOT, start
from benchmarks.report import Bar, Cell, Report, Table
from benchmarks.settings import Settings

Said = dict[str, Any]
STARTS = (("cold", "ws"), ("warm", "ws"), ("cold", "torch"), ("warm", "torch"))
_QUICK = ("masked_attention", "break_by_print")
_SECONDS = 300
_LONGEST = 300


def run(settings: Settings) -> Report:
    from benchmarks.corpus import PROGRAMS

    headers = settings.folder / "headers"
    start("small", headers, "init")  # precompiles headers, which takes longer than any of these programs
    names = _QUICK if settings.quick else tuple(PROGRAMS)
    return report_of({name: starts_of(name, headers, settings.folder) for name in names})


def starts_of(program: str, headers: Path, folder: Path) -> dict[tuple[str, str], Said]:
    """What the four starts of a program say, with stores that hold nothing but headers before."""
    stores = {mode: folder / f"{program}-{mode}" for mode in ("ws", "torch")}
    for store in stores.values():
        shutil.copytree(headers, store)
    found = {(when, mode): said(program, mode, stores[mode]) for when, mode in STARTS}
    for store in stores.values():
        shutil.rmtree(store)
    return found


def said(program: str, mode: str, store: Path) -> Said:
    """What a process that runs a program says; `error` where it ended otherwise."""
    command = [sys.executable, "-m", "benchmarks.corpus.run", program, "--mode", mode, "--cache", str(store)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    try:
        done = subprocess.run(command, env=variables, cwd=ROOT, text=True, capture_output=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return _failed(f"not done after {_SECONDS} s")
    _, brace, text = done.stdout.partition("{\n")
    if done.returncode or not brace:
        return _failed(f"ended with {done.returncode}: {done.stderr.strip().rpartition(chr(10))[2]}")
    result: Said = json.loads(brace + text)
    return result


def _failed(error: str) -> Said:
    nothing = {"seconds": None, "wrong": "", "digest": "", "frames": None, "hits": 0, "misses": 0}
    return {**nothing, "error": error, "lookups": [], "warnings": []}


def report_of(found: dict[str, dict[tuple[str, str], Said]]) -> Report:
    """The report of what all processes said, by program and by when and how it was started."""
    used = [name for name, starts in found.items() if is_used(starts["warm", "ws"])]
    columns = (
        "",
        "ws.compile, cold",
        "torch.compile, cold",
        "torch.compile, warm",
        "ws.compile, warm",
        "frames",
        "hits",
        "misses",
        "used",
        "right",
    )
    why = [(name, _cut(why_not(starts["warm", "ws"]))) for name, starts in found.items() if name not in used]
    slower = [
        (name, starts["cold", "ws"]["seconds"] / starts["cold", "torch"]["seconds"])
        for name, starts in found.items()
        if starts["cold", "ws"]["seconds"] and starts["cold", "torch"]["seconds"]
    ]
    wrong = [
        f"{name}, {mode} {when}: {trouble}"
        for name, starts in found.items()
        for (when, mode), trouble in troubles(starts).items()
    ]
    bars = (
        Bar.at_least("% of programs that `ws.compile` starts without tracing", 100 * len(used) / len(found), 90),
        Bar.at_most("wrong results and failures", len(wrong), 0),
        Bar.at_most("seconds of a warm start of those, the median", _median(found, used, "warm"), 0.5),
        Bar.at_most("a cold start: times that of `torch.compile`, the median", median(r for _, r in slower), 1.2)
        if slower
        else Bar.at_most("a cold start: times that of `torch.compile`", None, 1.2),
    )
    worst = ", ".join(f"{name} {ratio:.2f}" for name, ratio in sorted(slower, key=lambda one: -one[1])[:5])
    return Report(
        "coverage",
        f"Everyday programs, {len(found)} of them, start in fresh processes with `ws.compile`: models, training steps, "
        "roots of all kinds, and the Python around them (benchmarks/corpus).",
        (
            Table("Seconds from init to the end of the first step", columns, tuple(map(_row, found, found.values()))),
            Table("Not used", ("", "note"), tuple(why)),
        ),
        bars,
        (
            f"used in {len(used)} of {len(found)}",
            "torch.compile has the cache of graphs. Frames are those that Dynamo compiled in the warm process of "
            "ws.compile, hits and misses its lookups of packages. Used: it found packages for all frames, Dynamo "
            "compiled none, nothing was left to torch.compile. Right: all four processes computed what eager ones do, "
            "and both of `ws.compile` the same bits.",
            "Each program has a store for `ws.compile` and one for `torch.compile`, with precompiled headers in them.",
            f"Cold starts with `ws.compile` beside `torch.compile`, times the seconds, the worst: {worst}.",
        ),
        broken=tuple(wrong),
    )


def is_used(warm: Said) -> bool:
    """Whether everything in a warm process came from packages."""
    return bool(warm["hits"]) and not (warm["misses"] or warm["frames"] or warm["warnings"] or warm["error"])


def why_not(warm: Said) -> str:
    """Why not everything in a warm process came from packages."""
    reasons = [warm["error"], *warm["warnings"]]
    reasons += [f"{frame}: {why}" for frame, hit, why in warm["lookups"] if not hit]
    if not any(reasons):
        reasons = ["nothing was looked up"] if not warm["hits"] else [f"{warm['frames']} frames were compiled"]
    return "; ".join(dict.fromkeys(filter(None, reasons)))


def troubles(starts: dict[tuple[str, str], Said]) -> dict[tuple[str, str], str]:
    """What was wrong or failed, by start."""
    found = {which: one["error"] or one["wrong"] for which, one in starts.items() if one["error"] or one["wrong"]}
    cold, warm = starts["cold", "ws"], starts["warm", "ws"]
    if not found and cold["digest"] != warm["digest"]:
        found["warm", "ws"] = "other bits than the cold start's"
    return {which: _cut(trouble) for which, trouble in found.items()}


def _row(name: str, starts: dict[tuple[str, str], Said]) -> tuple[Cell, ...]:
    cold, warm = starts["cold", "ws"], starts["warm", "ws"]
    before = [starts[which, "torch"]["seconds"] for which in ("cold", "warm")]
    used, right = is_used(warm), not troubles(starts)
    counts = (warm["frames"], warm["hits"], warm["misses"])
    return (name, cold["seconds"], *before, warm["seconds"], *counts, _yes(used), _yes(right))


def _median(found: dict[str, dict[tuple[str, str], Said]], names: Sequence[str], when: str) -> float | None:
    seconds = [found[name][when, "ws"]["seconds"] for name in names]
    return median(seconds) if seconds else None


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
