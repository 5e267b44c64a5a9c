"""The history in the folder of a plan: what was predicted, and what its epochs took."""

import os
from pathlib import Path

import pytest
import torch
from tests.pipeline.functions import change
from tests.pipeline.making import plan_of

import warmstore as ws
from warmstore.pipeline.plan import plan_recorder
from warmstore.storage.history import NAME, Pace, read_history

pytestmark = pytest.mark.forks


def records(folder: Path, event: str) -> list[dict]:
    return [record for record in read_history(folder) if record["event"] == event]


def pipe_and_plan(folder: Path | None) -> tuple[ws.Pipeline, ws.Plan]:
    pipe = ws.Pipeline(list(range(20))).step(change, by=3)
    return pipe, plan_of(pipe, [(1, "disk", "raw")] if folder else [(1, "memory", "raw")], folder=folder)


def test_a_plan_and_its_epochs(tmp_path: Path) -> None:
    pipe, plan = pipe_and_plan(tmp_path)
    for _ in range(2):  # also where a program makes a loader for each epoch
        with pipe.loader(plan, 10, workers=0) as loader:
            list(loader)
    (planned,) = records(tmp_path, "plan")
    assert (planned["epoch_seconds"], planned["uncached_seconds"], planned["sample_seconds"]) == (1.0, 1.0, 0.05)
    assert planned["placements"] == [{"after": "change", "tier": "disk", "codec": "raw", "samples": 20}]
    found = records(tmp_path, "epoch")
    assert [(record["epoch"], record["hits"], record["misses"]) for record in found] == [(0, 0, 20), (1, 20, 0)]
    for record in found:
        assert record["name"] == "change (20 samples)"
        assert (record["predicted_seconds"], record["uncached_seconds"]) == (1.0, 1.0)
        assert record["saved_seconds"] == pytest.approx(1.0 - record["waited_seconds"], abs=1e-5)
        assert 0 < record["waited_seconds"] <= record["seconds"]
    assert [record["is_steady"] for record in found] == [False, False]  # each was the first of its loader


def test_short_epochs_share_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1e9]  # later than any other clock
    monkeypatch.setattr(plan_recorder, "Pace", lambda: Pace(soon=2, clock=lambda: now[0]))
    pipe, plan = pipe_and_plan(tmp_path)
    with pipe.loader(plan, 10, workers=0) as loader:
        for _ in range(5):
            list(loader)
        now[0] += 1.0
        for _ in range(4):
            list(loader)
    found = records(tmp_path, "epoch")
    assert [(record["epoch"], record.get("epochs", 1), record["hits"]) for record in found] == [
        (0, 1, 0),
        (1, 1, 20),
        (2, 4, 80),
        (6, 3, 60),
    ]
    assert found[2]["uncached_seconds"] == 4.0
    assert [record["is_steady"] for record in found] == [False, True, True, True]
    _, other = pipe_and_plan(tmp_path)
    with pipe.loader(other, 10, workers=0) as loader:  # of one more plan, as where a cell is run again
        list(loader)
    assert records(tmp_path, "epoch")[-1]["epoch"] == 9


def test_two_plans_of_one_name_count_their_own_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of two parts of a data set that are equally long, whose loaders take turns."""
    monkeypatch.setattr(plan_recorder, "Pace", lambda: Pace(soon=0, clock=lambda: 1e9))
    (pipe, plan), (other_pipe, other) = pipe_and_plan(tmp_path), pipe_and_plan(tmp_path)
    with pipe.loader(plan, 10, workers=0) as loader, other_pipe.loader(other, 10, workers=0) as other_loader:
        for _ in range(3):
            list(loader)
            list(other_loader)
    found = [(each["epoch"], each["epochs"], each["hits"] + each["misses"]) for each in records(tmp_path, "epoch")]
    assert sorted(found) == [(0, 3, 60), (1, 3, 60)]


def test_a_forked_child_records_its_own_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_recorder, "Pace", lambda: Pace(soon=1, clock=lambda: 1e9))
    pipe, plan = pipe_and_plan(tmp_path)
    with pipe.loader(plan, 10, workers=0) as loader:
        for _ in range(3):
            list(loader)
        child = os.fork()
        if not child:
            status = 1
            try:
                with pipe.loader(plan, 10, workers=0) as other:
                    for _ in range(2):
                        list(other)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
    found = [(record["epoch"], record.get("epochs", 1), record["hits"]) for record in records(tmp_path, "epoch")]
    assert found == [(0, 1, 0), (0, 2, 40), (1, 2, 40)]


def test_a_fill(tmp_path: Path) -> None:
    pipe, plan = pipe_and_plan(tmp_path)
    pipe.fill(plan, 10, progress=False)
    pipe.close()
    (record,) = records(tmp_path, "fill")
    assert (record["computed"], record["hits"]) == (20, 0)
    assert record["seconds"] > 0


def test_a_plan_without_a_folder_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pipe, plan = pipe_and_plan(None)
    with pipe.loader(plan, 10) as loader:
        list(loader)
    pipe.close()
    assert not list(tmp_path.rglob(NAME))


def test_an_eviction_of_the_disk_tier(tmp_path: Path) -> None:
    from warmstore.pipeline.tiers.tier_quota import TierVersions

    pipe, plan = pipe_and_plan(tmp_path)
    pipe.fill(plan, 10, progress=False)
    pipe.close()
    assert TierVersions(tmp_path / "warmstore-samples", 1 << 20).evict(1)
    (record,) = records(tmp_path, "evicted")
    assert record["bytes"] > 0


def test_a_long_epoch_is_recorded_in_parts_and_no_sample_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "is_due", lambda pace: True)
    pipe, plan = pipe_and_plan(tmp_path)
    with pipe.loader(plan, 10, workers=0) as loader:
        for _ in range(2):
            list(loader)
    parts, whole = records(tmp_path, "part"), records(tmp_path, "epoch")
    assert [(part["hits"], part["misses"]) for part in parts] == [(0, 10), (0, 10), (10, 0), (10, 0)]
    assert [(epoch["hits"], epoch["misses"]) for epoch in whole] == [(0, 0), (0, 0)]
    assert [epoch["uncached_seconds"] for epoch in whole] == [1.0, 1.0]


def test_an_epoch_that_does_not_end_is_recorded_when_the_loader_is_closed(tmp_path: Path) -> None:
    pipe, plan = pipe_and_plan(tmp_path)
    loader = pipe.loader(plan, 5, workers=0)
    next(iter(loader))
    loader.close()
    assert not records(tmp_path, "epoch")
    (part,) = records(tmp_path, "part")
    assert part["misses"] >= 5
    assert part["name"] == "change (20 samples)"


def test_a_data_set_without_a_loader_of_ours(tmp_path: Path) -> None:
    pipe, plan = pipe_and_plan(tmp_path)
    data = pipe.dataset(plan)
    for workers in (2, 0):
        loader = torch.utils.data.DataLoader(data, 5, num_workers=workers, collate_fn=ws.collate)
        list(loader)
    data.close()
    parts = records(tmp_path, "part")
    assert sum(part["hits"] + part["misses"] for part in parts) == 40
    assert sum(part["misses"] for part in parts) == 20
    assert len({part["pid"] for part in parts}) == 3


def test_the_workers_of_a_loader_count_each_sample_once(tmp_path: Path) -> None:
    pipe, plan = pipe_and_plan(tmp_path)
    with pipe.loader(plan, 5, workers=2, start_method="fork") as loader:
        for _ in range(2):
            list(loader)
    assert not records(tmp_path, "part")
    assert [(epoch["hits"], epoch["misses"]) for epoch in records(tmp_path, "epoch")] == [(0, 20), (20, 0)]
