"""The corpus of edits, run: version 1 in one process, version 2 in the next, with one store."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.compiling.edits import grid
from tests.compiling.edits.cases import Case, parsed
from tests.compiling.programs import run_to_end

_HERE = Path(__file__).parent
_TOLERANCE = 1e-4
_CHUNK = 80


@dataclass
class Verdict:
    """What became of a case, each field by the name of the run.

    Attributes:
        wrong: what came out wrong, by the run.
        errors: what failed in the harness or the process.
        as_torch: what came out wrong with `torch.compile` too, when it was changed while it ran.
        missed: why nothing was found where something should have been.
        left: what was said of programs that are left to `torch.compile`.
        shows_nothing: why the case shows nothing.
        hits: how many packages were used in each run.
    """

    case: Case
    wrong: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    as_torch: dict[str, str] = field(default_factory=dict)
    missed: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    shows_nothing: str = ""
    hits: dict[str, int] = field(default_factory=dict)


def corpus() -> list[Case]:
    """All cases: those of the grid, and those of the texts beside this file."""
    found = grid.cases()
    for path in sorted(_HERE.glob("*.txt")):
        found += parsed(path.stem, path.read_text())
    names = [one.name for one in found]
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)
    return found


def differs(one: Any, other: Any) -> bool:
    """Whether two outcomes are not the same, but for rounding."""
    if isinstance(one, float) and isinstance(other, float):
        both = math.isnan(one) and math.isnan(other)
        return not (both or math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE))
    if isinstance(one, list) and isinstance(other, list):
        if one and other and isinstance(one[0], str) and one[0].startswith("raised"):
            return bool(one[0] != other[0])
        return len(one) != len(other) or any(map(differs, one, other))
    return bool(one != other)


def run(
    cases: Sequence[Case],
    folder: Path,
    version: int,
    store: Path,
    compiler: str = "ws",
    env: dict[str, str] | None = None,
    *,
    live: bool = False,
    blind: bool = False,
    kernels: bool = False,
) -> dict[str, dict[str, Any]]:
    """What the runner says of each case, in processes with one store."""
    for one in cases:
        for number in (1, 2):
            (folder / f"v{number}").mkdir(parents=True, exist_ok=True)
            for name, text in one.files(number).items():
                (folder / f"v{number}" / f"{name}.py").write_text(text)
    found: dict[str, dict[str, Any]] = {}
    for number, chunk in enumerate(_chunks(cases)):
        left = [[one.name, one.live] for one in chunk]
        while left:
            task, out = folder / f"task-{number}.json", folder / f"out-{number}.jsonl"
            out.unlink(missing_ok=True)
            said = {
                "folder": str(folder / f"v{version}"),
                "edited": str(folder / "v2"),
                "store": str(store),
                "out": str(out),
                "compiler": compiler,
            }
            task.write_text(json.dumps({**said, "cases": left, "live": live, "blind": blind, "kernels": kernels}))
            process = _process(task, env)
            lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
            found |= {one["name"]: one for one in lines}
            left = left[len(lines) :]
            if left:  # the process has ended in this one
                found[left[0][0]] = {"error": f"the process ended with {process.returncode}: {process.stderr[-3000:]}"}
                left = left[1:]
    return found


def _process(task: Path, env: dict[str, str] | None) -> subprocess.CompletedProcess[str]:
    settings = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    variables = {**os.environ, **settings, **(env or {})}
    variables["PYTHONPATH"] = os.pathsep.join(str(Path(one).resolve()) for one in sys.path if one)  # it runs elsewhere
    command = [sys.executable, str(_HERE / "runner.py"), str(task)]
    try:
        return run_to_end(command, env=variables, cwd=task.parent, timeout=1500)
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(command, 124, "", str(error.stderr)[-3000:])


def _chunks(cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
    for at in range(0, len(cases), _CHUNK):
        yield cases[at : at + _CHUNK]


def judged(
    cases: Sequence[Case],
    folder: Path,
    *,
    plain: bool = False,
    live: bool = False,
    blind: bool = False,
    kernels: bool = False,
) -> list[Verdict]:
    """Run cases and judge them.

    Args:
        cases: which.
        folder: where programs and stores are put.
        plain: also with `torch.compile` and this cache.
        live: also with the change made while the program runs, from what other processes made of both
            versions.
        blind: with keys that say nothing of the program, to see what the cases would notice.
        kernels: with kernels in C++. Else the graphs call ATen's operators: keys and guards are the same, and the
            C++ compiler takes most of the time.
    """
    how = {"kernels": kernels, "blind": blind}
    verdicts = {one.name: Verdict(one) for one in cases}
    runs: dict[str, dict[str, dict[str, Any]]] = {}
    runs["first"] = run(cases, folder, 1, folder / "store", **how)
    if plain:
        shutil.copytree(folder / "store", folder / "plain-store", symlinks=True)
    runs["second"] = run(cases, folder, 2, folder / "store", **how)
    runs["again"] = run(cases, folder, 1, folder / "store", **how)
    if plain:
        runs["plain first"] = run(cases, folder, 1, folder / "plain-store", "plain", kernels=kernels)
        runs["plain second"] = run(cases, folder, 2, folder / "plain-store", "plain", kernels=kernels)
    if live:
        changed = [one for one in cases if one.live]
        runs["live"] = run(changed, folder, 1, folder / "store", live=True, kernels=kernels)
    (folder / "runs.json").write_text(json.dumps(runs))
    for name, verdict in verdicts.items():
        for kind, said in runs.items():
            if name in said:
                _judge(verdict, kind, said[name])
        _judge_hits(
            verdict, {kind: said[name] for kind, said in runs.items() if name in said and "error" not in said[name]}
        )
    return list(verdicts.values())


def _judge(verdict: Verdict, kind: str, said: dict[str, Any]) -> None:
    if "error" in said:
        verdict.errors[kind] = said["error"]
        return
    verdict.hits[kind] = said["hits"]
    if differs(said["eager"], said["got"]):
        plain = said.get("plain")
        is_as_torch = plain is not None and ("error" in plain or differs(plain["eager"], plain["got"]))
        # Of what was compiled before, torch.compile may have read the graphs: that would be no excuse.
        is_first = kind == "first" or kind.startswith("live")
        found = verdict.as_torch if (is_as_torch and is_first) or "first" in verdict.as_torch else verdict.wrong
        found[kind] = f"{said['hits']} hits, eager {_short(said['eager'])}, but {_short(said['got'])}"
    if kind.startswith("live") and not differs(said["before"], said["eager"]):
        verdict.shows_nothing += "the live change makes no difference. "


def _short(outcome: Any) -> str:
    """The first numbers of each tensor, and the last line of each error."""
    if isinstance(outcome, list):
        if len(outcome) == 3 and isinstance(outcome[2], list) and str(outcome[0]).startswith("torch."):
            return (
                f"{outcome[0][6:]} {[round(one, 3) for one in outcome[2][:3]]}{' with gradient' if outcome[1] else ''}"
            )
        if outcome and str(outcome[0]).startswith("raised"):
            return f"{outcome[0]} {outcome[1].strip().splitlines()[-1]}"
        return f"[{', '.join(map(_short, outcome))}]"
    return repr(outcome)


def _judge_hits(verdict: Verdict, runs: dict[str, dict[str, Any]]) -> None:
    case = verdict.case
    if "first" in runs and "second" in runs:
        is_other = differs(runs["first"]["eager"], runs["second"]["eager"])
        if is_other == case.is_neutral and not case.is_same:
            verdict.shows_nothing += f"the edit makes {'a' if is_other else 'no'} difference. "
    kinds = ("again", "second") if case.is_neutral else ("again",)
    if case.is_same or verdict.as_torch:  # what torch fails to compile is kept by nobody
        kinds = ()
    for kind in kinds:
        if kind in runs and runs[kind]["traced"]:
            said = [one for one in runs[kind]["said"] if "is left to torch.compile" in one]
            found = verdict.left if said else verdict.missed
            found[kind] = "; ".join(said) or f"{runs[kind]['traced']} frames were traced, misses {runs[kind]['misses']}"
