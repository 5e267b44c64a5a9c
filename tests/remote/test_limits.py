"""The budget of a start, and the breaker of a dead remote."""

import threading
import time
from types import SimpleNamespace

import pytest

from warmstore.remote import limits
from warmstore.remote.limits import CircuitBreaker, RequestLimits, StallBudget


def test_a_silent_remote_costs_the_budget_once() -> None:
    budget = StallBudget(0.3)
    began = time.monotonic()
    assert not budget.wait(lambda: False)
    assert time.monotonic() - began > 0.25
    assert not any(budget.wait(lambda: False) for _ in range(10_000))  # 3000 s, if each cost the budget
    assert budget.left == 0
    assert budget.wait(lambda: True)


def test_waiting_for_data_that_flows_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    budget = StallBudget(0.5)
    done = threading.Event()

    def flow() -> None:
        while not budget._waiting:
            time.sleep(0.001)
        for _ in range(12):
            clock[0] += 0.1
            budget.flowed(1 << 20)
        done.set()
        budget.notify()

    thread = threading.Thread(target=flow)
    thread.start()
    assert budget.wait(done.is_set)
    thread.join()
    assert budget.left > 0.2


def test_a_trickle_is_no_flow() -> None:
    budget = StallBudget(0.4)
    over = threading.Event()

    def trickle() -> None:
        while not over.wait(0.02):
            budget.flowed(1)

    thread = threading.Thread(target=trickle)
    thread.start()
    assert not budget.wait(lambda: False)
    over.set()
    thread.join()


def test_a_breaker_opens_rests_and_lets_one_try() -> None:
    now = [0.0]
    breaker = CircuitBreaker(2, 10.0, clock=lambda: now[0])
    assert not breaker.failed()
    assert breaker.allows()
    assert breaker.failed()
    assert breaker.is_open
    assert not breaker.allows()
    now[0] = 11.0
    assert breaker.allows()
    assert not breaker.allows()
    assert not breaker.failed()
    now[0] = 25.0
    assert not breaker.allows(), "the second rest is twice as long"
    now[0] = 32.0
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.allows()
    assert breaker.allows()


def test_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="read_timeout=-1"):
        RequestLimits(read_timeout=-1)
