import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import psutil
import pytest
from benchmarks.side_by_side import Contestant, Role, WrongValuesError, busy_processes, named, over, side_by_side


def contestant(name: str, call: Callable, role: Role = "peer") -> Contestant:
    @contextmanager
    def setup() -> Iterator[Callable]:
        yield call

    return Contestant(name, setup, role)


def always(ask: object, result: object) -> bool:
    return True


def test_contestants_take_turns_in_the_order_of_the_asks() -> None:
    calls = []
    rows = side_by_side(
        [contestant(n, lambda ask, n=n: calls.append((n, ask)), "limit" if n == "a" else "peer") for n in "abc"],
        [1, 2],
        always,
    )
    assert calls == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("c", 2)]
    assert [len(row.seconds) for row in rows] == [2, 2, 2]
    assert named(rows, "a").ratio == 1


def test_readers_have_asks_in_orders_of_their_own() -> None:
    calls: dict[str, list[int]] = {"a": [], "b": []}
    rows = side_by_side(
        [contestant(n, lambda ask, n=n: calls[n].append(ask), "limit" if n == "a" else "peer") for n in "ab"],
        range(50),
        always,
        reads=True,
    )
    # Half of the calls are not timed.
    assert [len(row.seconds) for row in rows] == [50, 50]
    assert {name: sorted(asked) for name, asked in calls.items()} == {n: sorted([*range(50)] * 2) for n in "ab"}
    assert sum(one == other for one, other in zip(calls["a"], calls["b"], strict=True)) < 20


def test_in_a_loop_a_contestant_has_many_calls_in_a_row_and_the_second_half_is_timed() -> None:
    calls: list[str] = []
    rows = side_by_side(
        [contestant(n, lambda ask, n=n: calls.append(n), "limit" if n == "a" else "peer") for n in "ab"],
        range(8),
        always,
        reads=True,
        loop=3,
    )
    turns = ["".join(calls)[at : at + 12] for at in (0, 12)] + ["".join(calls)[24:]]
    assert {"".join(sorted(turn)) for turn in turns} == {"aaaaaabbbbbb", "aaaaabbbbb"}
    assert all(turn.strip("a").strip("b") == "" for turn in turns)  # one after the other
    assert [len(row.seconds) for row in rows] == [8, 8]


def test_any_reader_may_come_after_any_other() -> None:
    calls: list[str] = []
    names = [contestant(n, lambda ask, n=n: calls.append(n), "limit" if n == "a" else "peer") for n in "abc"]
    side_by_side(names, range(40), always, reads=True)
    assert {(one, other) for one, other in pairwise(calls) if one != other} == {
        (one, other) for one in "abc" for other in "abc" if one != other
    }


def test_what_a_contestant_prepares_comes_before_each_of_its_calls() -> None:
    done = []

    @contextmanager
    def setup() -> Iterator[Callable]:
        yield lambda ask: done.append(("call", ask))

    rows = side_by_side(
        [Contestant("a", setup, "limit", prepare=lambda ask: done.append(("prepare", ask)))], [1, 2], always
    )
    assert done == [("prepare", 1), ("call", 1), ("prepare", 2), ("call", 2)]
    assert len(named(rows, "a").seconds) == 2


def test_a_contestant_that_cannot_prepare_has_no_figure() -> None:
    def prepare(ask: int) -> None:
        1 // ask

    peer = replace(contestant("peer", always_none), prepare=prepare)
    rows = side_by_side([contestant("limit", always_none, "limit"), peer], [1, 0, 1], always)
    assert named(rows, "peer").trouble.startswith("failed: ZeroDivisionError")


def test_wrong_values_leave_no_figure() -> None:
    rows = side_by_side(
        [contestant("double", lambda ask: 2 * ask, "limit"), contestant("square", lambda ask: ask * ask)],
        [2, 3],
        lambda ask, result: result == 2 * ask,
        check_every=1,
    )
    wrong = named(rows, "square")
    assert wrong.trouble == "wrong values in call 1"
    assert (wrong.seconds, wrong.median, wrong.ratio) == ((), None, None)
    assert over(wrong, named(rows, "double")) is None


def test_wrong_values_found_at_the_end_leave_no_figure() -> None:
    @contextmanager
    def setup() -> Iterator[Callable]:
        yield lambda ask: None
        raise WrongValuesError("in the file")

    rows = side_by_side([contestant("limit", always_none, "limit"), Contestant("writer", setup)], [1], always)
    assert named(rows, "writer").trouble == "wrong values in the file"


def test_a_missing_peer_has_a_row_that_says_so() -> None:
    @contextmanager
    def setup() -> Iterator[Callable]:
        import no_such_peer

        yield no_such_peer.gather

    rows = side_by_side([contestant("limit", always_none, "limit"), Contestant("peer", setup)], [1], always)
    assert named(rows, "peer").trouble == "not installed (no_such_peer)"


def test_a_peer_that_fails_is_cleaned_up_and_the_others_go_on() -> None:
    left = []

    @contextmanager
    def setup() -> Iterator[Callable]:
        try:
            yield lambda ask: 1 // ask
        finally:
            left.append(True)

    rows = side_by_side([contestant("limit", always_none, "limit"), Contestant("peer", setup)], [1, 0, 1], always)
    assert named(rows, "peer").trouble.startswith("failed: ZeroDivisionError")
    assert left == [True]
    assert len(named(rows, "limit").seconds) == 3


def test_a_limit_that_fails_is_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        side_by_side([contestant("limit", lambda ask: 1 // ask, "limit")], [0], always)


def always_none(ask: object) -> None:
    return None


def test_pauses_are_before_the_timed_calls_and_no_part_of_them() -> None:
    times: list[float] = []
    limit = contestant("limit", lambda ask: times.append(time.perf_counter()), "limit")
    rows = side_by_side([limit], range(4), always, pause=0.02)
    assert min(later - earlier for earlier, later in pairwise(times)) >= 0.02
    assert rows[0].median is not None
    assert rows[0].median < 0.02


def test_busy_processes_run_until_the_end() -> None:
    before = psutil.Process().children()
    with busy_processes(2):
        children = [one for one in psutil.Process().children() if one not in before]
        assert len(children) == 2
        assert all(one.is_running() for one in children)
    assert not any(one.is_running() for one in children)
