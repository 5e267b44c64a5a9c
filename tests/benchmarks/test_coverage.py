"""Which programs `coverage` counts as used, and which as wrong."""

from __future__ import annotations

from typing import Any

from benchmarks.coverage import is_used, report_of, troubles, why_not

SAID = {
    "seconds": 1.0,
    "error": "",
    "wrong": "",
    "digest": "a",
    "frames": 0,
    "hits": 1,
    "misses": 0,
    "lookups": [["root", True, ""]],
    "warnings": [],
}


def _starts(**warm: Any) -> dict[tuple[str, str], dict[str, Any]]:
    cold = {**SAID, "hits": 0, "misses": 1, "frames": 1}
    return {("cold", "ws"): cold, ("warm", "ws"): {**SAID, **warm}, ("cold", "torch"): cold, ("warm", "torch"): cold}


def test_a_program_is_used_if_every_frame_came_from_a_package() -> None:
    assert is_used(_starts()["warm", "ws"])
    for other in ({"hits": 0}, {"misses": 1}, {"frames": 1}, {"warnings": ["left"]}, {"error": "ended"}):
        assert not is_used(_starts(**other)["warm", "ws"])


def test_why_a_program_is_not_used_is_said_once() -> None:
    warm = _starts(misses=2, lookups=[["root", False, "another"]] * 2, warnings=["left"])["warm", "ws"]
    assert why_not(warm) == "left; root: another"
    assert why_not(_starts(hits=0)["warm", "ws"]) == "nothing was looked up"
    assert why_not(_starts(frames=3)["warm", "ws"]) == "3 frames were compiled"


def test_a_warm_start_with_other_bits_is_wrong() -> None:
    assert troubles(_starts()) == {}
    assert troubles(_starts(digest="b")) == {("warm", "ws"): "other bits than the cold start's"}
    report = report_of({"one": _starts(), "two": _starts(wrong="step 0: 1 off"), "three": _starts(hits=0)})
    assert report.broken == ("two, ws warm: step 0: 1 off",)
    assert "used in 2 of 3" in report.notes
    assert [row[-2:] for row in report.tables[0].rows] == [("yes", "yes"), ("yes", "no"), ("no", "yes")]
    assert report.tables[1].rows == (("three", "nothing was looked up"),)
