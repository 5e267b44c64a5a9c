"""The history in the folder of a plan: what was predicted, and what its epochs took."""

from pathlib import Path

import pytest
from tests.pipeline.functions import change
from tests.pipeline.making import plan_of

import warmstore as ws
from warmstore.storage.history import NAME, read_history


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
