import functools
import json
import logging
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import main
from benchmarks.programs import CASES, EDITS, MODULE_EDITS, MODULE_NEUTRAL, NEUTRAL, Case
from benchmarks.report import load
from benchmarks.settings import Settings
from benchmarks.staleness import Outcomes, check, judge, outcome, report, same, three_rounds
from benchmarks.staleness_peers import PEERS, UNCACHED, Peer, RefusedError, refused_in_log, uncached
from benchmarks.staleness_process import Calls, cases_of, in_child
from benchmarks.staleness_process import main as run_round

pytestmark = pytest.mark.forks

RIGHT = {"fill": {"values": [3]}, "again": {"values": [3]}, "edited": {"values": [4]}}


def answers(again: int, edited: Any, calls: int) -> dict[str, dict[str, Any]]:
    """What a contestant said of RIGHT, with so many calls in the later rounds."""
    return {
        "fill": {"values": [3], "calls": 1},
        "again": {"values": [3], "calls": again},
        "edited": {"values": edited, "calls": calls},
    }


def test_programs_can_be_read_in_both_versions() -> None:
    for case in CASES:
        texts = [case.texts(version) for version in (1, 2)]
        for name, text in (item for version in texts for item in version.items()):
            if name.endswith(".py"):
                compile(text, f"{case.name}/{name}", "exec")
        settings = (case.environment, case.folders)
        if not case.neutral:
            assert texts[0] != texts[1] or any(before != after for before, after in settings), case.name


def test_there_are_enough_programs_and_no_two_of_a_name() -> None:
    assert (len(EDITS) >= 40, len(NEUTRAL) >= 25, len(MODULE_EDITS) >= 15, len(MODULE_NEUTRAL) >= 10) == (True,) * 4
    assert Counter((case.name, case.module, case.neutral) for case in CASES).most_common(1)[0][1] == 1


def test_a_text_that_stands_in_two_places_is_no_change() -> None:
    with pytest.raises(ValueError, match="stands in 2 places"):
        Case("twice", {"main.py": "3\n3\n"}, (("3", "4"),)).texts(2)


def test_files_that_stay_as_they_are_keep_their_times(tmp_path: Path) -> None:
    case = Case("edited", {"main.py": "N = 3\n", "other.py": "M = 3\n"}, (("N = 3", "N = 4"),))
    case.write(tmp_path, 1)
    for name in case.files:
        os.utime(tmp_path / case.checkout(1) / name, ns=(1, 1))
    case.write(tmp_path, 2)
    assert (tmp_path / case.checkout(2) / "main.py").read_text() == "N = 4\n"
    assert (tmp_path / case.checkout(2) / "other.py").stat().st_mtime_ns == 1


def test_a_touched_checkout_has_newer_files_and_a_moved_one_lies_elsewhere(tmp_path: Path) -> None:
    case = Case("moved", {"main.py": "N = 3\n"}, moved=True, touched=True)
    case.write(tmp_path, 1)
    os.utime(tmp_path / case.checkout(1) / "main.py", ns=(1, 1))
    case.write(tmp_path, 2)
    assert (tmp_path / case.checkout(2) / "main.py").stat().st_mtime_ns > 1
    assert not (tmp_path / case.checkout(1)).exists()


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (answers(0, [3], 0), "stale"),
        (answers(0, [3], 1), "stale"),
        (answers(0, [4], 1), "miss"),
        (answers(0, [4], 0), "hit"),
        (answers(1, [4], 1), "always"),
        ({**answers(0, [4], 1), "edited": {"refused": "no"}}, "refused"),
        ({**answers(0, [4], 1), "fill": {"refused": "no"}}, "refused"),
        ({**answers(0, [4], 1), "again": {"failed": "no"}, "edited": {"refused": "no"}}, "failed"),
        ({**answers(0, [4], 1), "again": {"values": [4], "calls": 0}}, "failed"),
    ],
)
def test_outcomes(told: dict[str, dict[str, Any]], expected: str) -> None:
    assert outcome(told, RIGHT) == expected


def test_values_agree_but_for_the_last_bits() -> None:
    assert same([[1.0, 2.0]], [[1.0 + 1e-12, 2.0]])
    assert not same([[1.0, 2.0]], [[1.001, 2.0]])
    assert not same([1, 2], [1, 2, 3])
    assert not same("a", "b")


@pytest.mark.parametrize(("values", "words"), [([4], "agree"), ([3], "")])
def test_an_edit_must_change_an_answer(values: list[int], words: str) -> None:
    edit = next(number for number, case in enumerate(CASES) if not case.neutral)
    rounds = {"fill": {edit: {"values": [4]}}, "again": {edit: {"values": [4]}}, "edited": {edit: {"values": values}}}
    if words:
        with pytest.raises(ValueError, match=words):
            check(rounds)
    else:
        check(rounds)


class Scaler:
    def __call__(self, value: int) -> int:
        return value * 3

    def apply(self, value: int) -> int:
        return value * 4


def scale(value: int, factor: int = 3) -> int:
    return value * factor


@pytest.mark.parametrize("step", [scale, functools.partial(scale, factor=4), Scaler(), Scaler().apply])
def test_calls_are_counted_in_all_threads_while_they_are_to_be(step: Any) -> None:
    def call_here_and_in_a_thread() -> None:
        step(1)
        thread = threading.Thread(target=step, args=(1,))
        thread.start()
        thread.join()

    calls = Calls(step)
    try:
        call_here_and_in_a_thread()
        with calls:
            call_here_and_in_a_thread()
        call_here_and_in_a_thread()
    finally:
        threading.setprofile(None)
    assert calls.count == 2


def test_a_warning_in_those_words_is_a_refusal() -> None:
    with pytest.raises(RefusedError, match="a lock couldn't be"), refused_in_log("peer", "couldn't be hashed"):
        logging.getLogger("peer.below").warning("a %s couldn't be hashed", "lock")
    with refused_in_log("peer", "couldn't be hashed"):
        logging.getLogger("peer").warning("slow")


def test_a_child_that_dies_says_why(tmp_path: Path) -> None:
    def fail() -> dict[str, Any]:
        raise ValueError("of no use")

    assert in_child(lambda: {"values": [1]}, tmp_path) == {"values": [1]}
    with pytest.raises(RuntimeError, match="of no use"):
        in_child(fail, tmp_path)


def test_a_contestant_that_is_not_installed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "absent", Peer("absent", ("no_such_module",), uncached))
    run_round("absent", "fill", str(tmp_path), "quick")
    assert json.loads((tmp_path / "fill.json").read_text()) == {"missing": "not installed (no_such_module)"}


@pytest.mark.slow
def test_joblib_sees_an_edit_of_the_step_and_none_of_its_helper(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    expected, found = (three_rounds(name, Settings(tmp_path, quick=True)) for name in (UNCACHED, "joblib"))
    assert not isinstance(expected, str)
    assert not isinstance(found, str)
    check(expected)
    outcomes = {CASES[number].name: result for number, result in judge(found, expected).items()}
    assert outcomes["a constant in the step"] == "miss"
    assert outcomes["a helper in another module"] == "stale"
    assert outcomes["another function of the same file"] == "hit"


def test_the_report_counts_outcomes_and_names_wrong_answers() -> None:
    everything = cases_of(PEERS["pipeline"], quick=False)
    perfect: Outcomes = {number: "hit" if case.neutral else "miss" for number, case in everything.items()}
    modules: Outcomes = {number: perfect[number] for number in cases_of(PEERS["module"], quick=False)}
    edit, neutral = (
        next(number for number, case in everything.items() if case.neutral == kind) for kind in (False, True)
    )
    made = report(
        {
            "pipeline": {**perfect, edit: "stale", neutral: "always"},
            "module": modules,
            "joblib": {**perfect, edit: "refused"},
            "torchcachex": "not installed (torchcachex)",
        }
    )
    functions, edits, changes, modules_summary, *_ = made.tables
    assert functions.rows[0] == ("warmstore, Pipeline", 1, len(EDITS) - 1, 0, 0, len(NEUTRAL) - 1, 1, 0, "")
    assert [row[0] for row in functions.rows] == ["warmstore, Pipeline", "joblib.Memory"]
    assert edits.rows[0][1:] == ("stale", "refused")
    assert changes.rows[0][1:] == ("always", "hit")
    assert modules_summary.rows[-1][-1] == "not installed (torchcachex)"
    assert [bar.figure for bar in made.bars] == [1, 0, 1, 0, 0, 0]
    assert made.broken == (f"warmstore, Pipeline, wrong: {CASES[edit].name} (stale)",)


@pytest.mark.slow  # starts twenty processes that import torch
def test_the_quick_staleness_is_right_and_every_peer_has_outcomes_or_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    status = main(["--quick", "--only", "staleness", "--folder", f"{tmp_path / 'data'}", "--results", f"{tmp_path}"])
    made = load(tmp_path / "staleness.json")
    assert status == 0, made.broken
    assert list((tmp_path / "data").iterdir()) == []
    assert (len(made.tables), len(made.bars)) == (6, 6)
    for summary in (made.tables[0], made.tables[3]):
        assert all(row[1] is not None or "not installed" in row[-1] for row in summary.rows), summary
