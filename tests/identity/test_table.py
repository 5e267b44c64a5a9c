"""Never a stale answer: every edit, wherever it stands, met by every system.

How it works. `edits/` holds pairs of values, classes, functions and programs, before and after an edit. `places` says
where in a program a value may stand. `table` deals out edits over places, systems and times, and `programs` writes each
version of each program down. `server` runs a version in a process of its own, where `systems` puts it through a
pipeline, a cached module or a compiled call. `cases` compares: version 1 fills the cache, a neutral version of it must
be answered without running its code, version 2 must give what it gives without a cache.

Some of the cases run always, all of them with `--slow`, and a tenth in interpreters of their own with `--fresh`. To
see one again: `pytest tests/identity --slow -k "step and metaclass and closure"`.
"""

from collections.abc import Callable

import pytest
from tests.identity import table
from tests.identity.cases import Case, run_case
from tests.identity.conftest import one_in, without_interpreters
from tests.identity.places import PLACES
from tests.identity.server import FreshInterpreters, Server

ORDINARY = 400  # one in so many cases runs always
FRESH = 10

CASES = list(table.cases())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        config = metafunc.config
        if "interpreters" in metafunc.fixturenames:
            chosen = [case for case in CASES if one_in(FRESH, case.id)]
        else:
            everything = config.getoption("--slow")
            chosen = [case for case in CASES if everything or (one_in(ORDINARY, case.id) and not case.slow)]
        if "interpreters" in metafunc.fixturenames and not config.getoption("--fresh"):
            metafunc.parametrize("case", [without_interpreters()])
        else:
            metafunc.parametrize("case", chosen, ids=[case.id for case in chosen])


def test_an_edit_is_never_answered_from_the_cache(
    case: Case, server: Server, compilers: FreshInterpreters, record_property: Callable[[str, object], None]
) -> None:
    check(case, compilers if case.system == "compiler" else server, record_property)


def test_nor_in_fresh_interpreters(
    case: Case, interpreters: FreshInterpreters, record_property: Callable[[str, object], None]
) -> None:
    check(case, interpreters, record_property)


def check(case: Case, runner: Server | FreshInterpreters, record_property: Callable[[str, object], None]) -> None:
    outcome = run_case(case, runner)
    said = {
        "edit": case.edit,
        "group": case.group,
        "place": case.place,
        "system": case.system,
        "when": case.when,
        "verdict": outcome.verdict.value,
        "failed": not outcome.is_allowed,
    }
    record_property("identity", said)
    assert outcome.is_allowed, f"{outcome.verdict.value}: {outcome.words}"


def test_the_table_is_large_and_whole() -> None:
    assert len(CASES) >= 2000
    assert len({case.id for case in CASES}) == len(CASES)
    for system in table.SYSTEMS:
        mine = [case for case in CASES if case.system == system]
        assert {case.place for case in mine} >= {place.name for place in PLACES}
        assert {case.edit for case in mine if case.group != "programs"} >= table.EVERYWHERE
        assert {case.group for case in mine} == {"programs", *table.GROUPS}
