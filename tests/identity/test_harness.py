"""The suite itself: a cache that keeps nothing fails it, and so does one that always answers, or an edit of nothing."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.identity import table
from tests.identity.cases import Case, Verdict, judge, run_case
from tests.identity.edits.edit import Edit
from tests.identity.places import GLOBAL
from tests.identity.programs import program_of
from tests.identity.server import Reply, Server, Task
from tests.identity.systems import Use
from tests.slow import thinned

EDIT = Edit("int", "3", "4")


class Forgetful:
    """Removes what was kept before each run."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def run(self, task: Task) -> Reply:
        shutil.rmtree(task.cache, ignore_errors=True)
        return self._server.run(task)


def case_of(system: str, when: str = "next process", **options: object) -> Case:
    first, neutral, second = (
        program_of(EDIT, GLOBAL, system, edited=edited, neutral=neutral)
        for edited, neutral in ((False, False), (False, True), (True, False))
    )
    if when != "next process":
        neutral = second = first
    found = Case("int", "plain", "global", system, when, first, neutral, second, "VALUE = 4")
    return replace(found, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("system", thinned(2, ["module", "step"]))
def test_a_cache_that_keeps_nothing_fails(system: str, server: Server) -> None:
    assert run_case(case_of(system), server).verdict is Verdict.RIGHT
    assert run_case(case_of(system), Forgetful(server)).verdict is Verdict.FALSE_ALARM


@pytest.mark.parametrize("system", ["step", "module", "compiled"])
def test_an_edit_that_changes_nothing_fails(system: str, server: Server) -> None:
    case = case_of(system)
    assert run_case(replace(case, second=case.first), server).verdict is Verdict.BROKEN


@pytest.mark.parametrize("system", ["step", "module", "compiled"])
def test_a_program_that_fails_fails(system: str, server: Server) -> None:
    case = case_of(system)
    broken = replace(case.second, files={"program.py": "raise ValueError('on purpose')"})
    outcome = run_case(replace(case, second=broken), server)
    assert outcome.verdict is Verdict.BROKEN
    assert "on purpose" in outcome.words


def test_what_is_judged() -> None:
    case = case_of("step")
    one, other = Use("one", 0), Use("other", 0)
    computed, computed_other = Use("one", 6), Use("other", 6)
    refused = Use(None, 0, "why")

    def verdict(*uses: Use, of: Case = case) -> Verdict:
        use, again, edited = uses
        return judge(of, use, computed, again, computed, edited, computed_other).verdict

    assert verdict(computed, one, computed_other) is Verdict.RIGHT
    assert verdict(computed, one, one) is Verdict.STALE
    assert verdict(computed, other, computed_other) is Verdict.STALE
    assert verdict(computed, computed, computed_other) is Verdict.FALSE_ALARM
    assert verdict(one, one, computed_other) is Verdict.BROKEN
    assert verdict(refused, refused, refused) is Verdict.NOT_ALLOWED
    assert verdict(refused, refused, refused, of=replace(case, refusable=True)) is Verdict.REFUSED


def test_what_is_judged_of_keys() -> None:
    case = case_of("compiled")
    plain, edited = Use("one", 1), Use("other", 1)

    def verdict(*keys: str, of: Case = case) -> Verdict:
        use, again, changed = (Use(key, 0) for key in keys)
        return judge(of, use, plain, again, plain, changed, edited).verdict

    assert verdict("a", "a", "b") is Verdict.RIGHT
    assert verdict("a", "a", "a") is Verdict.STALE
    assert verdict("a", "a", "a", of=replace(case, layout=True)) is Verdict.RIGHT
    assert verdict("a", "b", "c") is Verdict.FALSE_ALARM


def test_a_version_leaves_files_that_are_the_same_alone(tmp_path: Path) -> None:
    program = program_of(EDIT, GLOBAL, "step")
    program.write(tmp_path)
    before = (tmp_path / "program.py").stat()
    program.write(tmp_path)
    assert (tmp_path / "program.py").stat().st_mtime_ns == before.st_mtime_ns
    assert "VALUE = 3" in (tmp_path / "program.py").read_text()


def test_every_edit_is_of_something() -> None:
    for edits in table.GROUPS.values():
        for edit in edits:
            assert edit.new not in (None, edit.old) or edit.setup_new not in (None, edit.setup), edit.name
