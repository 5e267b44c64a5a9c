import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.pipeline.metering.test_epoch_meter import make, work
from tests.pipeline.profiles import profile

import warmstore as ws
from warmstore.loading.epoch_times import EpochTimes
from warmstore.pipeline.metering.epoch_meter import TERMS, MeterReading
from warmstore.pipeline.metering.epoch_observer import MeasuredEpoch

SAMPLES = 100
PACE = 0.001


def turn(value: np.ndarray) -> np.ndarray:
    work(0.0005)
    return value


def planned(folder: Path) -> tuple[ws.Pipeline, ws.Plan]:
    """A plan whose profile says that `make` takes 10 ms and `turn` nothing."""
    pipe = ws.Pipeline(range(SAMPLES)).step(make, name="step1").step(turn, cache="never", name="step2")
    found = replace(profile([0, 0.01, 0.0], [8, 800, 800], counts=(SAMPLES,)), pace=PACE)
    return pipe, pipe.plan(profile=found, disk="1MB", folder=folder, workers=0)


def epoch(
    plan: ws.Plan,
    cpu: Sequence[float],
    *,
    seconds: float = 0.0,
    outside: float = 0.0,
    computed: int = 0,
    workers: int = 0,
) -> str:
    """What a plan says of an epoch with CPU seconds by term."""
    taken = seconds or sum(cpu)
    reading = MeterReading(dict(zip(TERMS, cpu, strict=True)), taken - outside, SAMPLES, computed)
    plan._add_epoch(MeasuredEpoch(EpochTimes(taken, outside, 0.0, True, workers), reading, PACE))
    return plan.explain()


def test_the_term_that_is_off_is_named(tmp_path: Path) -> None:
    pipe, plan = planned(tmp_path)
    with pytest.raises(ValueError, match="no steady epoch has been run with this plan; run two whole epochs"):
        plan.explain()
    with pipe.loader(plan, 10) as loader:
        for _ in range(3):
            list(loader)
    text = plan.explain()
    (term,) = re.findall("Most is due to (.*?): ", text)  # the steps, or another one on a busy machine
    assert term in TERMS
    assert " ms more than predicted." in text
    assert "that the plan caches" not in text
    assert all(term in text for term in TERMS)
    assert "the main process together" in text


def test_what_else_explains_an_epoch(tmp_path: Path) -> None:
    _, plan = planned(tmp_path)
    usual = [0.0, 0.0, 0.0, 0.0, 0.0]
    assert "All terms are as predicted." in epoch(plan, usual)
    assert "that the plan caches" not in epoch(plan, usual)
    assert "7 of the samples that the plan caches were computed" in epoch(plan, usual, computed=7)
    assert "The program spent 2.0 s of the epoch between batches" in epoch(plan, usual, seconds=3, outside=2)
    assert "Batches waited 1.0 s in all" in epoch(plan, usual, seconds=1)
    assert "The loader has 3 workers, and the plan 0." in epoch(plan, usual, workers=3)
    text = epoch(plan, [0.0, 0.5, 0.0, 2.5, 0.0])
    assert "Most is due to disk tier: 2.5 s more than predicted." in text
    assert "outside" in text.splitlines()[0]


@pytest.mark.parametrize(("change", "says"), [(1.0, None), (1.3, "30% slower"), (0.8, "20% faster")])
def test_the_drift_of_the_machine_is_shown(change: float, says: str | None, tmp_path: Path) -> None:
    _, plan = planned(tmp_path)
    epoch(plan, [0.0] * 5)
    plan.epochs_run[-1] = replace(plan.epochs_run[-1], pace=change * PACE)
    assert ("The machine is" in plan.explain()) == bool(says)
    assert says is None or f"The machine is {says} than when it was profiled." in plan.explain()


@pytest.mark.parametrize(
    ("seconds", "low", "high", "text"),
    [
        (0.14, 0.09, 0.25, "140 ms predicted, between 89 ms and 251 ms, bounded"),
        (0.75, 0.62, 0.91, "750 ms predicted, between 622 ms and 908 ms, bounded"),
        (10.0, 8.5, 11.5, "10 s predicted, bounded"),
    ],
)
def test_short_epochs_are_predicted_in_a_band(
    seconds: float, low: float, high: float, text: str, tmp_path: Path
) -> None:
    plan = replace(planned(tmp_path)[1], epoch_seconds=seconds)
    assert plan.band == pytest.approx((low, high), abs=0.01)
    assert text in str(plan)
