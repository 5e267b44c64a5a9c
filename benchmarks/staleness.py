"""After an edit, does a cache answer with what the old program gave? And what does it compute again for nothing?

Each tiny program of `benchmarks.programs` runs under each contestant in three fresh processes over one cache: version 1
fills it, version 1 again shows whether the cache answers at all, and version 2 is compared with version 2 uncached.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from benchmarks.programs import CASES, Case
from benchmarks.report import Bar, Cell, Report, Table
from benchmarks.settings import Settings
from benchmarks.staleness_peers import PEERS, UNCACHED
from benchmarks.staleness_process import ROUNDS, Answer, command

ROOT = Path(__file__).parents[1]
MOST_REFUSED = 0.05  # of the edited programs
NOTES = (
    "Each program runs as a script over one cache in three fresh processes with three hash seeds: version 1 fills the "
    "cache, version 1 runs again, and version 2 is compared with version 2 uncached. Each run asks for three values.",
    "stale: a wrong answer. miss: a right answer, and the function was called. hit: a right answer without a call. "
    "always: a miss of a cache that also misses where nothing changed, so it is no sign that an edit was noticed. "
    "refused: the contestant raises, or warns that it will not find again what it keeps.",
    "After an edit a miss is right, after a neutral change a hit. A false alarm is a neutral change with a miss.",
    "The step stands in the script unless the program says otherwise: datasets and dask pickle the functions of a "
    "script by value and imported functions by name. joblib compares the source of the cached function alone.",
    "dask.tokenize is no cache: the answer to each call is kept here in a file that is named by "
    "`tokenize(step, value, arguments, ensure_deterministic=True)`.",
    "A module is an argument of the step that calls it. torchcachex and CachedModule wrap the module instead: "
    "torchcachex identifies it by a name that its user chooses and nobody changes here, CachedModule has "
    '`versions="new"`. Pipelines are forced onto the disk with `cache="disk"`.',
)

Outcome = Literal["stale", "hit", "miss", "always", "refused", "failed"]
Answers = dict[int, Answer]
"""Of one run of all programs, by the number of the program in CASES."""
Outcomes = dict[int, Outcome]
Missing = str
"""Why a contestant has no answers: it is not installed."""


def run(settings: Settings) -> Report:
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # side by side: nothing is timed
        rounds = dict(zip(PEERS, threads.map(lambda name: three_rounds(name, settings), PEERS), strict=True))
    expected = rounds.pop(UNCACHED)
    assert not isinstance(expected, Missing)
    check(expected)
    return report(
        {
            name: answers if isinstance(answers, Missing) else judge(answers, expected)
            for name, answers in rounds.items()
        }
    )


def three_rounds(name: str, settings: Settings) -> dict[str, Answers] | Missing:
    """A contestant's answers to its programs in each round, each round in a fresh process.

    Raises:
        RuntimeError: a process failed.
    """
    folder = settings.folder / name
    folder.mkdir()
    answers = {}
    for seed, round_name in enumerate(ROUNDS, 1):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "HF_HUB_OFFLINE": "1"}
        process = subprocess.run(
            command(name, round_name, folder, settings.quick),
            env=environment,
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        if process.returncode:
            raise RuntimeError(f"{name}, {round_name}: {process.stderr[-2000:]}")
        found: dict[str, Any] = json.loads((folder / f"{round_name}.json").read_text())
        if "missing" in found:
            return str(found["missing"])
        answers[round_name] = {int(number): answer for number, answer in found["answers"].items()}
    return answers


def check(expected: dict[str, Answers]) -> None:
    """Hold the programs, run uncached, to what they say of themselves.

    Raises:
        ValueError: an edit that changes no answer, or a neutral change that does.
    """
    for number, edited in expected["edited"].items():
        case, before = CASES[number], expected["fill"][number]
        if not same(before["values"], expected["again"][number]["values"]):
            raise ValueError(f"{case.name}: two runs of version 1 differ")
        if same(before["values"], edited["values"]) != case.neutral:
            raise ValueError(f"{case.name}: the versions {'differ' if case.neutral else 'agree'}")


def judge(answers: dict[str, Answers], expected: dict[str, Answers]) -> Outcomes:
    """The outcome of each program that a contestant was given."""
    return {
        number: outcome(*({name: rounds[name][number] for name in ROUNDS} for rounds in (answers, expected)))
        for number in answers["edited"]
    }


def outcome(answers: dict[str, Answer], expected: dict[str, Answer]) -> Outcome:
    """What NOTES define, of one program, from its answers by round.

    failed: an error of warmstore's that is no refusal, or a wrong answer before anything was edited.
    """
    for trouble in ("failed", "refused"):
        if any(trouble in answer for answer in answers.values()):
            return "failed" if trouble == "failed" else "refused"
    right = {name: same(answers[name]["values"], expected[name]["values"]) for name in ROUNDS}
    if not (right["fill"] and right["again"]):
        return "failed"
    if not right["edited"]:
        return "stale"
    if not answers["edited"]["calls"]:
        return "hit"
    return "always" if answers["again"]["calls"] else "miss"


def same(value: Any, other: Any) -> bool:
    """Equal, but for the last bits of sums."""
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, float) and isinstance(other, float):
        return math.isclose(value, other, rel_tol=1e-5, abs_tol=1e-6)
    return bool(value == other)


def report(outcomes: dict[str, Outcomes | Missing]) -> Report:
    """The report on all contestants, each with its outcomes or the reason that it has none."""
    tables = []
    for title, module in (("Functions", False), ("Modules", True)):
        judged = {
            name: found if isinstance(found, Missing) else select(found, module=module)
            for name, found in outcomes.items()
            if module or not PEERS[name].modules
        }
        tables.append(summary(title, judged))
        installed = {name: found for name, found in judged.items() if not isinstance(found, Missing)}
        tables.append(details(f"{title}: edits, where a miss is right", installed, neutral=False))
        tables.append(details(f"{title}: neutral changes, where a hit is right", installed, neutral=True))
    ours = {name: found for name, found in outcomes.items() if PEERS[name].ours and not isinstance(found, Missing)}
    return Report(
        "staleness",
        "Everyday edits of tiny programs: which caches still answer with what the old program gave? And everyday "
        "changes that leave the answers as they are: which caches compute again?",
        tuple(tables),
        tuple(bar for name, found in ours.items() for bar in bars(PEERS[name].name, found)),
        NOTES,
        tuple(line for name, found in ours.items() for line in wrong_answers(PEERS[name].name, found)),
    )


def select(outcomes: Outcomes, **wanted: bool) -> Outcomes:
    """The outcomes of the cases with those attributes, such as `neutral=True`."""
    return {
        number: result
        for number, result in outcomes.items()
        if all(getattr(CASES[number], name) == value for name, value in wanted.items())
    }


def summary(title: str, outcomes: dict[str, Outcomes | Missing]) -> Table:
    """How often each contestant has each outcome."""
    cases: list[Case] = []
    rows: list[tuple[Cell, ...]] = []
    columns = ("", "stale", "noticed", "always", "refused", "hits", "false alarms", "neutral, refused", "note")
    for name, found in outcomes.items():
        if isinstance(found, Missing):
            rows.append((PEERS[name].name, *[None] * (len(columns) - 2), found))
            continue
        cases = [CASES[number] for number in found]
        edits, neutral = (Counter(select(found, neutral=value).values()) for value in (False, True))
        failed = edits["failed"] + neutral["failed"]
        counts = (edits["stale"], edits["miss"], edits["always"], edits["refused"])
        counts += (neutral["hit"], neutral["miss"] + neutral["always"], neutral["refused"])
        rows.append((PEERS[name].name, *counts, f"{failed} failed" if failed else ""))
    changes = sum(case.neutral for case in cases)
    return Table(f"{title}: {len(cases) - changes} edits and {changes} neutral changes", columns, tuple(rows))


def details(title: str, outcomes: dict[str, Outcomes], *, neutral: bool) -> Table:
    """The outcome of each program under each contestant."""
    selected = {name: select(found, neutral=neutral) for name, found in outcomes.items()}
    numbers = sorted({number for found in selected.values() for number in found})
    rows = tuple((CASES[number].name, *(found[number] for found in selected.values())) for number in numbers)
    return Table(title, ("", *(PEERS[name].name for name in selected)), rows)


def bars(name: str, outcomes: Outcomes) -> tuple[Bar, ...]:
    edits, neutral = (Counter(select(outcomes, neutral=value).values()) for value in (False, True))
    return (
        Bar.at_most(f"{name}: stale answers", edits["stale"], 0),
        Bar.at_most(f"{name}: edited programs refused, share", edits["refused"] / edits.total(), MOST_REFUSED),
        Bar.at_most(f"{name}: neutral changes without a hit", neutral.total() - neutral["hit"], 0),
    )


def wrong_answers(name: str, outcomes: Outcomes) -> tuple[str, ...]:
    """A line on the programs that have wrong answers or errors, where there are any."""
    wrong = [f"{CASES[number].name} ({result})" for number, result in outcomes.items() if result in ("stale", "failed")]
    return (f"{name}, wrong: {'; '.join(wrong)}",) if wrong else ()
