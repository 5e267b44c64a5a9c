"""Planning again for a folder with samples: small changes must not lead to other forms of the same samples."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.pipeline.profiles import profile

import warmstore as ws
from warmstore.pipeline.plan.plan_figures import Placement

SAMPLES = 200
RAW, ZSTD = Placement(1, "disk", "raw"), Placement(1, "disk", "zstd")


def make(index: int, seed: int = 0) -> np.ndarray:
    return np.full(4000, index + seed, np.uint8)


def measured(samples: int, read: float, squeezed_read: float) -> ws.Profile:
    """Of `make`: raw results are read in `read` seconds, compressed ones in `squeezed_read`."""
    made = profile([0, 0.01], [8, 4000], counts=(samples,), read=read, squeezed=0.5)
    (source, step) = made.stages
    zstd = replace(step.stored["zstd"], read=(squeezed_read,), write=(0.0,))
    return replace(made, stages=(source, replace(step, stored={**step.stored, "zstd": zstd})))


def planned(
    folder: Path, read: float, squeezed_read: float, samples: int = SAMPLES, disk: str = "2MB", **arguments: int
) -> tuple[ws.Pipeline, ws.Plan]:
    pipe = ws.Pipeline(range(samples)).step(make, name="step1", **arguments)
    return pipe, pipe.plan(profile=measured(samples, read, squeezed_read), disk=disk, folder=folder, workers=0)


def test_a_form_that_is_stored_is_taken_again_where_another_one_is_hardly_faster(tmp_path: Path) -> None:
    pipe, plan = planned(tmp_path, 0.00051, 0.0005)
    assert plan.placements == (ZSTD,)
    assert pipe.fill(plan, workers=0, progress=False).computed == SAMPLES
    assert planned(tmp_path / "empty", 0.0005, 0.00051)[1].placements == (RAW,)
    for told in ({}, {"samples": SAMPLES + 10}, {"samples": SAMPLES - 10}, {"disk": "2.1MB"}, {"disk": "1.9MB"}):
        pipe, again = planned(tmp_path, 0.0005, 0.00051, **told)
        assert again.placements == (ZSTD,), told
        assert pipe.fill(again, workers=0, progress=False).computed == (10 if told == {"samples": SAMPLES + 10} else 0)


def test_what_is_much_faster_is_taken_all_the_same(tmp_path: Path) -> None:
    pipe, plan = planned(tmp_path, 0.00051, 0.0005)
    pipe.fill(plan, workers=0, progress=False)
    assert planned(tmp_path, 0.0005, 0.001)[1].placements == (RAW,)


def test_results_of_other_steps_are_not_a_reason(tmp_path: Path) -> None:
    pipe, plan = planned(tmp_path, 0.00051, 0.0005)
    pipe.fill(plan, workers=0, progress=False)
    assert planned(tmp_path, 0.0005, 0.00051, seed=1)[1].placements == (RAW,)
