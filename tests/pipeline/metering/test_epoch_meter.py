import time
from pathlib import Path

import numpy as np
import pytest
from tests.pipeline.making import plan_of
from tests.slow import thinned, unforked

import warmstore as ws
from warmstore.pipeline.metering.epoch_meter import EpochMeter, total
from warmstore.pipeline.metering.machine_pace import machine_pace

pytestmark = pytest.mark.forks
SAMPLES = 40


def work(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def make(index: int) -> np.ndarray:
    return np.full(100, index)


def heavy(value: np.ndarray) -> np.ndarray:
    work(0.001)
    return value + 1


def waiting(value: np.ndarray) -> np.ndarray:
    time.sleep(0.002)
    return value


def test_laps_are_charged_to_their_terms_without_gaps() -> None:
    meter = EpochMeter()
    meter.begin(8)
    work(0.01)
    meter.lap("source reads")
    meter.compute(3)
    work(0.02)
    meter.lap("steps")
    time.sleep(0.03)
    meter.end()
    reading = meter.take()
    assert reading.cpu["source reads"] == pytest.approx(0.01, abs=0.003)
    assert reading.cpu["steps"] == pytest.approx(0.02, abs=0.003)
    assert reading.cpu["batches"] < 0.005
    assert reading.waits >= 0.029
    assert (reading.samples, reading.computed) == (8, 3)
    assert total([reading, reading]).samples == 16
    assert meter.take().samples == 0


@pytest.mark.parametrize(("workers", "start_method"), thinned(3, [(0, "fork"), (2, "fork"), (2, unforked())]))
def test_epochs_are_measured_in_all_processes(workers: int, start_method: str, tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(SAMPLES)).step(make).step(heavy)
    plan = plan_of(pipe, [(1, "memory", "raw"), (1, "disk", "raw")], [10, 20], folder=tmp_path)
    with pipe.loader(plan, 4, workers=workers, start_method=start_method) as loader:
        for _ in range(3):
            list(loader)
    assert len(plan.epochs_run) == len(plan.measured) == 2
    for epoch in plan.epochs_run:
        reading = epoch.reading
        assert (reading.samples, reading.computed) == (SAMPLES, 10)  # those without a placement
        assert reading.cpu["steps"] >= 0.001 * SAMPLES
        assert 0 < reading.cpu["memory tier"] < reading.cpu["steps"]
        assert 0 < reading.cpu["disk tier"] < reading.cpu["steps"]
        assert 0 < reading.cpu["source reads"] < reading.cpu["steps"]
        assert reading.seconds >= sum(reading.cpu.values()) - 0.01
        assert (epoch.workers, epoch.times.seconds) == (workers, plan.measured[plan.epochs_run.index(epoch)])
        assert epoch.pace > 0


def test_waiting_steps_wait_and_the_program_is_outside() -> None:
    pipe = ws.Pipeline(range(SAMPLES)).step(make).step(waiting)
    plan = plan_of(pipe, [(1, "memory", "raw")], [SAMPLES])
    with pipe.loader(plan, 4, workers=0) as loader:
        for _ in range(2):
            for _ in loader:
                time.sleep(0.005)
    (epoch,) = plan.epochs_run
    assert epoch.reading.waits >= 0.002 * SAMPLES
    assert epoch.times.outside >= 0.005 * (SAMPLES / 4 - 1)  # after the last batch, the epoch is over
    assert epoch.times.seconds >= epoch.times.outside + epoch.reading.waits


def test_the_pace_of_a_machine_is_a_few_milliseconds() -> None:
    assert 1e-5 < machine_pace() < 0.5
