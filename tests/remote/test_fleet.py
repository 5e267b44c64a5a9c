"""The simulated fleet of the benchmarks: nothing is lost, whatever the store does, and the bars of requests hold."""

import asyncio
import random
from typing import Any

import pytest

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")

from benchmarks.fleet import Habits, VirtualLoop, simulate


def simulated(hosts: int, batches: int, habits: Habits, seed: int = 0) -> dict[str, Any]:
    random.seed(seed)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(simulate(hosts, batches, 20.0, habits))


def test_a_fleet_of_a_hundred_hosts() -> None:
    found = simulated(100, 2, Habits())
    assert found["appended"] == 200
    assert found["failed"] == 0
    assert found["idle_reading"]["requests"] == 1
    assert found["idle_reading"]["bytes"] < 100_000
    assert found["first_reading"]["requests"] <= 10


@pytest.mark.parametrize("seed", range(3))
def test_late_listings_and_failing_requests_lose_nothing(seed: int) -> None:
    """`simulate` fails if the final state lacks a segment."""
    found = simulated(30, 3, Habits(lag=3.0, rate=200.0, failures=0.05), seed)
    assert found["appended"] > 60
