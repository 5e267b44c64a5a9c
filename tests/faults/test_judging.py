"""The judges themselves: what ends a child is told, and the others are judged."""

import signal
import threading
from typing import Any

import pytest
from tests.faults.judging import HANG, judge_all, waits_for_a_start

pytestmark = pytest.mark.forks


class _NeverBegins(threading.Thread):
    """A thread that dies before Python knows that it runs, as where there is no memory."""

    def _bootstrap(self) -> None:
        pass


def _judge(number: int) -> Any:
    if number in (1, 2):
        signal.alarm(1)
    if number == 1:
        _NeverBegins().start()
    if number == 2:
        threading.Event().wait()
    return number


def test_a_hang_says_where_it_waits() -> None:
    found, failures = judge_all(range(4), _judge)
    assert found == {0: 0, 3: 3}
    assert [number for number, _ in failures] == [1, 2]
    starting, waiting = (why for _, why in failures)
    assert starting.startswith(HANG)
    assert waiting.startswith(HANG)
    assert "in _judge" in waiting
    assert waits_for_a_start(starting)
    assert not waits_for_a_start(waiting)
