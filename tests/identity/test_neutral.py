"""No false alarm: what changes nothing that a program computes lets its samples be found, and its code is not run.

A server of another seed of hashes stands for other processes; with `--fresh` each run has an interpreter of its own.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.identity import neutral
from tests.identity.cases import Outcome, Runner, Verdict
from tests.identity.conftest import one_in, without_interpreters
from tests.identity.neutral import NeutralCase
from tests.identity.server import FreshInterpreters, Server, Task

ORDINARY = 120  # one in so many cases runs always

CASES = list(neutral.cases())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        config = metafunc.config
        if "interpreters" in metafunc.fixturenames:
            chosen = CASES
        else:
            chosen = [case for case in CASES if config.getoption("--slow") or one_in(ORDINARY, case.id)]
        if "interpreters" in metafunc.fixturenames and not config.getoption("--fresh"):
            metafunc.parametrize("case", [without_interpreters()])
        else:
            metafunc.parametrize("case", chosen, ids=[case.id for case in chosen])


def test_a_neutral_change_is_answered_from_the_cache(
    case: NeutralCase, server: Server, reseeded: Server, record_property: Callable[[str, object], None]
) -> None:
    check(case, server, reseeded if case.neutral.seed else server, record_property)


def test_also_in_fresh_interpreters(
    case: NeutralCase, interpreters: FreshInterpreters, record_property: Callable[[str, object], None]
) -> None:
    check(case, interpreters, interpreters, record_property)


def test_there_are_many() -> None:
    assert len(CASES) >= 200
    assert len({case.id for case in CASES}) == len(CASES)


def check(case: NeutralCase, first: Runner, second: Runner, record_property: Callable[[str, object], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="warmstore-identity-") as folder:
        outcome = run_neutral(case, first, second, Path(folder))
    said = {
        "edit": case.neutral.name,
        "group": f"neutral: {case.neutral.name}",
        "place": case.name,
        "system": case.system,
        "when": "neutral",
        "verdict": outcome.verdict.value,
        "failed": outcome.verdict is not Verdict.RIGHT,
    }
    record_property("identity", said)
    assert outcome.verdict is Verdict.RIGHT, f"{outcome.verdict.value}: {outcome.words}"


def run_neutral(case: NeutralCase, first: Runner, second: Runner, folder: Path) -> Outcome:
    """Fill in one process, and find everything in another."""
    other = folder / "other"
    other.mkdir()
    root = case.write(folder, second=False)
    cache, main = str(folder / "cache"), case.neutral.main
    filled = first.run(Task(case.system, str(root), cache, case.neutral.first, str(root), main=main))
    root = case.write(folder, second=True)
    if case.neutral.name == "touched files":
        for path in root.glob("**/*.py"):
            os.utime(path, (1_600_000_000, 1_600_000_000))
    cwd = str(other if case.neutral.cwd else root)
    environment = dict(case.neutral.environment)
    found = second.run(Task(case.system, str(root), cache, case.neutral.second, cwd, environment, main=main))
    for reply in (filled, found):
        if reply.error:
            return Outcome(Verdict.BROKEN, reply.error)
        for use in reply.uses:
            if use.refused:
                return Outcome(Verdict.NOT_ALLOWED, use.refused)
    *uses, plain = found.uses
    if case.system == "compiled":
        keys = {use.values for use in (*filled.uses, *uses)}
        return Outcome(Verdict.RIGHT) if len(keys) == 1 else Outcome(Verdict.FALSE_ALARM, "another key")
    if any(use.values != plain.values for use in (*filled.uses, *uses)):
        return Outcome(Verdict.STALE, "the outputs differ")
    if filled.uses and not filled.uses[0].calls and case.neutral.first[0] != "fill":
        return Outcome(Verdict.BROKEN, "the first use was not counted")
    again = [*filled.uses[1 - (case.neutral.first[0] == "fill") :], *uses]
    if any(use.calls for use in again):
        said = "; ".join(line for use in again for line in use.said)
        return Outcome(Verdict.FALSE_ALARM, f"the code ran {[use.calls for use in again]} times again; {said}")
    return Outcome(Verdict.RIGHT)
