"""Records of a history, summed: also those of a machine whose clock was set back, and damaged ones."""

from typing import Any

from warmstore.report.cache_history import CacheHistory


def record(at: float, number: int, event: str = "use", **figures: Any) -> dict[str, Any]:
    return {"v": 1, "kind": "features", "event": event, "at": at, "run": f"run {number}", "n": number, **figures}


def test_the_last_record_of_the_file_counts_after_the_clock_was_set_back() -> None:
    history = CacheHistory.of(
        [
            record(2e9, 0, "plan", name="resize", samples=10),
            record(2e9, 0, entries=10),
            record(1e9, 1, "plan", name="resize", samples=50),
            record(1e9, 1, entries=50),
        ]
    )
    assert (history.entries, history.plans["resize"]["samples"]) == (50, 50)


def test_figures_that_are_no_figures_count_as_zero() -> None:
    for wrong in (10**400, -(10**400), float("nan"), float("inf"), 1e30, "1", None, True):
        history = CacheHistory.of([record(1e9, 0, hits=wrong, misses=1)])
        assert (history.sum("hits"), history.sum("misses")) == (0, 1)
    for wrong in (9e17, -1.0, 10**400):
        history = CacheHistory.of([record(wrong, 0, hits=1)])
        assert (history.last_at, history.runs["run 0"].began, history.sum("hits")) == (0, 0, 1)
