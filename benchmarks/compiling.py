"""How long until the first step of a program that was compiled before, and does it help where it must?

Each figure is of fresh processes: from before `init` to after the first call (and its backward), imports apart; the
whole process stands beside it. The peer is the framework alone with a warm cache folder of its own. `compiled_starts`
is what runs in the processes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import team_day
from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings

ROOT = Path(__file__).parent.parent


# What stands in the table, beside "cold" and "warm".
PEER, PEER_COLD, COMPILE, ELSEWHERE = (
    "framework alone, warm",
    "framework alone, cold",
    "ws.compile, warm",
    "bundle imported elsewhere",
)
PORTABLE = "portable, warm, under avx2"


def run(settings: Settings) -> Report:
    folder, times = settings.folder, settings.pick(5, 1)
    store, runs = folder / "store", _Runs()
    model = "small" if settings.quick else "transformer"
    programs = ["small"] if settings.quick else ["transformer", "convolutions", "jax function"]
    alone = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "alone"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "alone-jax"),
        "TMPDIR": str(_made(folder / "alone-tmp")),
    }
    for program in programs:
        runs.add(program, PEER_COLD, start(program, folder, "alone", env=alone))
        runs.add(program, "cold", start(program, store, "init"))
    for program in programs:
        if program != "jax function":
            start(program, store, "compile")
    moved = _moved(store, folder)
    for program in programs:
        for _ in range(times):  # in turn, so that what else the machine does meets all of them
            runs.add(program, PEER, start(program, folder, "alone", env=alone))
            runs.add(program, "warm", start(program, store, "init"))
            runs.add(program, ELSEWHERE, moved(program))
            if program != "jax function":
                runs.add(program, COMPILE, start(program, store, "compile"))
    avx2 = {"ATEN_CPU_CAPABILITY": "avx2"}
    other = start(model, store, "init", env=avx2)
    runs.add(model, "first start under avx2", other)
    runs.add(model, "portable, cold", start(model, store, "init", "portable"))
    for _ in range(times):
        runs.add(model, PORTABLE, start(model, store, "init", "portable", env=avx2))
    cold = [runs.of(model, "cold")[0]["cpu"]]
    if not settings.quick:
        cold.append(start(model, folder / "another", "init")["cpu"])
    two = min(_two_at_once(model, folder / f"two-{number}") for number in range(settings.pick(2, 1)))
    training = start(model, store, "train")
    day = team_day.day(_made(folder / "day"), "compile", settings.pick(400, 8), settings.pick(20, 2))
    hits = team_day.rows(day)
    slower = max(runs.seconds(program, ELSEWHERE) / runs.seconds(program, "warm") for program in programs)
    bars = (
        Bar.at_least(
            f"{model}: times faster, warm than cold",
            runs.seconds(model, "cold") / runs.seconds(model, "warm"),
            25,
        ),
        Bar.at_most(f"{model}: seconds, warm", runs.seconds(model, "warm"), 1.0),
        Bar.at_most(f"{model}: seconds, {COMPILE}", runs.seconds(model, COMPILE), 0.4),
        Bar.at_most(f"{ELSEWHERE}: times the local warm start, the worst program", slower, 1.2),
        Bar.at_most("graphs found that another instruction set compiled", other["graphs found"], 0),
        Bar.at_most(
            "graphs missed by portable code under avx2",
            max(one["graphs missed"] for one in runs.of(model, PORTABLE)),
            0,
        ),
        Bar.at_most("milliseconds of init, median", median(runs.all("init")) * 1e3, 50),
        Bar.at_most("harvest: % of a training step", training["share"] * 100, 2),
        Bar.at_most("two cold processes at once: times the processor's seconds of one", two / min(cold), 1.15),
        Bar.at_least("a team's day: % of starts that compiled nothing", hits[-1][3], 90),
    )
    wrong = [
        f"{program}, {what}: wrong values"
        for (program, what), said in runs.said.items()
        if not all(one["right"] for one in said)
    ]
    wrong += [f"a team's day, {one.kind}: wrong values" for one, result in day if not result["right"]]
    return Report(
        "compiling",
        "Compiled programs start in fresh processes: a transformer of six blocks in an nn.Sequential, and "
        "convolutions, forward and backward, and a JAX function; and a day of a team that starts and edits five small "
        "models.",
        (*map(runs.table, programs), _day_table(hits)),
        bars,
        (
            f"Medians of {times} warm processes, in turn; cold ones run once. Seconds are from before `init` to after "
            "the first step, imports of frameworks apart; process is all of it, from its start to its end, and CPU the "
            "seconds of its processors; found and missed are graphs. The first cold start precompiles headers for all.",
            "The framework alone has folders of its own: TORCHINDUCTOR_CACHE_DIR, JAX_COMPILATION_CACHE_DIR, TMPDIR.",
            "Elsewhere: another HOME, user, working directory, temporary folder, place of the source, an empty store.",
            f"Two cold processes at once took {two:.0f} seconds of the processors, one {min(cold):.0f}.",
            f"Harvest: a look at the live folder cost a training step of {training['step'] * 1e3:.1f} ms "
            f"{training['look'] * 1e3:.1f} ms more, and there is one every {training['every']:.0f} s.",
            f"A team's day: {len(day)} starts with `ws.compile`, each forked from a process that had imported torch, "
            "in homes and checkouts of their own; what a developer edits stays edited (benchmarks/team_day.py).",
        ),
        broken=tuple(wrong),
    )


def _day_table(hits: list[tuple[str, int, int, float, float, float]]) -> Table:
    columns = ("", "starts", "compiled nothing", "%", "median s of these", "of others")
    return Table("A team's day", columns, tuple(hits))


class _Runs:
    """What processes said, by program and way."""

    def __init__(self) -> None:
        self.said: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def add(self, program: str, what: str, said: dict[str, Any]) -> None:
        self.said.setdefault((program, what), []).append(said)

    def of(self, program: str, what: str) -> list[dict[str, Any]]:
        return self.said[program, what]

    def all(self, figure: str) -> list[float]:
        return [one[figure] for said in self.said.values() for one in said if one.get(figure) is not None]

    def seconds(self, program: str, what: str) -> float:
        return median(one["seconds"] for one in self.of(program, what))

    def table(self, program: str) -> Table:
        columns = ("", "seconds", "best", "worst", "process", "CPU", "found", "missed")
        rows = [
            (
                what,
                self.seconds(program, what),
                min(one["seconds"] for one in said),
                max(one["seconds"] for one in said),
                median(one["process"] for one in said),
                median(one["cpu"] for one in said),
                said[-1]["graphs found"],
                said[-1]["graphs missed"],
            )
            for (of, what), said in self.said.items()
            if of == program
        ]
        return Table(f"First steps: {program}", columns, tuple(rows))


def start(
    program: str, store: Path, how: str, profile: str = "fast", *, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> dict[str, Any]:
    """Run a program in a fresh process; what it says, and what the process took."""
    return _finish(_launch(program, store, how, profile, env or {}, cwd))


def _launch(
    program: str, store: Path, how: str, profile: str, env: dict[str, str], cwd: Path
) -> tuple[subprocess.Popen[str], float]:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(cwd), os.environ.get("PYTHONPATH", "")]), **env}
    command = [sys.executable, "-m", "benchmarks.compiled_starts", program, str(store), how, profile]
    began = time.perf_counter()
    return subprocess.Popen(command, env=variables, cwd=cwd, text=True, stdout=subprocess.PIPE), began


def _finish(running: tuple[subprocess.Popen[str], float]) -> dict[str, Any]:
    process, began = running
    out, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{process.args} failed")
    said: dict[str, Any] = json.loads(out.splitlines()[-1])
    return {**said, "process": time.perf_counter() - began}


def _moved(store: Path, folder: Path) -> Callable[[str], dict[str, Any]]:
    """Export a bundle, import it into an empty store, and start from there with everything else moved too."""
    from warmstore.compiling.bundles import export, import_
    from warmstore.compiling.store.artifact_store import ArtifactStore

    there = _made(folder / "another place")
    with closing(ArtifactStore(store)) as full, closing(ArtifactStore(there / "store")) as empty:
        export(full, folder / "bundle.tar.zst")
        import_(empty, folder / "bundle.tar.zst")
    shutil.copytree(
        ROOT / "benchmarks", there / "checkout" / "benchmarks", ignore=shutil.ignore_patterns("results", "__pycache__")
    )
    env = {
        "HOME": str(_made(there / "home")),
        "TMPDIR": str(_made(there / "tmp")),
        "USER": "another",
        "LOGNAME": "another",
    }
    return lambda program: start(program, there / "store", "init", env=env, cwd=there / "checkout")


def _two_at_once(program: str, store: Path) -> float:
    """The processors' seconds of two cold processes."""
    running = [_launch(program, store, "init", "fast", {}, ROOT) for _ in range(2)]
    return sum(float(_finish(one)["cpu"]) for one in running)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
