"""The judges themselves: what ends a child is told, and the others are judged."""

import signal
import threading
from typing import Any

import pytest
from tests.faults.judging import HANG, judge_all

pytestmark = pytest.mark.forks


def _judge(number: int) -> Any:
    if number == 1:
        signal.alarm(1)
        threading.Event().wait()
    return number


def test_a_hang_says_where_it_waits() -> None:
    found, failures = judge_all(range(3), _judge)
    assert found == {0: 0, 2: 2}
    ((number, why),) = failures
    assert number == 1
    assert why.startswith(HANG)
    assert "in _judge" in why
