"""A subset is the samples at its positions, wherever they come from, and reads what its source keeps."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.pipeline.making import plan_of

import warmstore as ws
from warmstore.loading.source import Source
from warmstore.loading.sources.resolve import source_of
from warmstore.pipeline.plan_opening import source_of as kept_source

COUNT = 23
POSITIONS = [5, 0, 22, 5]


def test_a_subset_of_anything(store: ws.RecordStore) -> None:
    array = np.arange(COUNT)
    for source in (array, torch.arange(COUNT), array.tolist(), store["number"], range(COUNT), ws.Dataset(array)):
        subset = ws.Subset(source, POSITIONS)
        assert len(subset) == 4
        assert subset.__getitems__([3, 0, 2]).batch.tolist() == [5, 5, 22]
        assert (subset[-1], subset[1]) == (5, 0)
        assert [batch.tolist() for batch in ws.Loader(subset, 3)] == [[5, 0, 22], [5]]
        assert pickle.loads(pickle.dumps(subset))[2] == 22
        with pytest.raises(IndexError):
            subset[4]
    assert "4 of 23" in repr(ws.Subset(array, POSITIONS))


def test_positions_and_masks() -> None:
    array = np.arange(COUNT)
    mask = np.zeros(COUNT, bool)
    mask[[3, 20]] = True
    for positions in (
        mask,
        mask.tolist(),
        torch.from_numpy(mask),
        [3, 20],
        np.array([3, 20], np.uint8),
        range(3, 21, 17),
    ):
        found = ws.Subset(array, positions)
        assert found.positions.tolist() == [3, 20]
        assert found.positions.dtype == np.int64
    given = np.array([1, 2])
    kept = ws.Subset(array, given)
    given[:] = 7
    assert kept.positions.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        kept.positions[0] = 1
    assert len(ws.Subset(array, [])) == 0
    for wrong in ([-1], [COUNT], np.array([2**63], np.uint64)):
        with pytest.raises(ws.PositionError, match="outside"):
            ws.Subset(array, wrong)
    with pytest.raises(ws.PositionError, match="mask has 3 entries; the source has 23"):
        ws.Subset(array, [True, False, True])
    for wrong in ([1.0], ["a"], [[1]], 3):
        with pytest.raises(TypeError, match="positions must be integers"):
            ws.Subset(array, wrong)


def test_what_is_masked_selects_nothing() -> None:
    """As in a store: a comparison of a field with absent values gives a masked mask, of either value beneath."""
    labels = np.ma.MaskedArray([1, 2, 0, 1], [False, False, True, False])
    assert ws.Subset(np.arange(4), labels != 1).positions.tolist() == [1]
    with pytest.raises(ws.PositionError, match="element 2 of the positions is masked"):
        ws.Subset(np.arange(4), labels)
    assert ws.Subset(np.arange(4), labels[[0, 1]]).positions.tolist() == [1, 2]


def test_a_subset_of_a_subset() -> None:
    inner = ws.Subset(np.arange(COUNT) * 10, [9, 8, 7])
    outer = ws.Subset(inner, [2, 0])
    assert outer.positions.tolist() == [7, 9]
    assert outer[0] == 70
    with pytest.raises(ws.PositionError):
        ws.Subset(inner, [3])
    assert source_of(outer).identity == source_of(ws.Subset(np.arange(COUNT) * 10, [7, 9])).identity


def test_options_reach_the_source(store: ws.RecordStore) -> None:
    subset = ws.Subset(store, POSITIONS)
    batch = next(iter(ws.Loader(subset, 4, fields=["number", "points"], collate={"points": "pad"})))
    assert list(batch) == ["number", "points"]
    assert batch["points"]["lengths"].tolist() == POSITIONS
    assert not ws.Dataset(subset, copy=False)[0]["points"].flags.writeable
    both = next(iter(ws.Loader((subset, ws.Subset(store["number"], POSITIONS)), 4)))
    assert both[1].tolist() == both[0]["number"].tolist() == POSITIONS


def test_a_subset_in_torchs_loader(store: ws.RecordStore) -> None:
    subset = ws.Subset(store["number"], range(10))
    sampler = ws.BatchSampler(subset, 4, ws.Shuffle(seed=0))
    batches = list(torch.utils.data.DataLoader(subset, batch_sampler=sampler, collate_fn=ws.collate))
    assert sorted(torch.cat(batches).tolist()) == list(range(10))
    default = torch.utils.data.DataLoader(subset, batch_size=5)
    assert [batch.tolist() for batch in default] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_what_has_no_subsets() -> None:
    with pytest.raises(ws.BadSource, match="Mixture has an order of its own"):
        ws.Subset(ws.Mixture({"a": np.arange(3)}, {"a": 1.0}), [0])
    with pytest.raises(ws.BadSource, match="no positions"):
        ws.Subset(map_of_numbers, [0])


def map_of_numbers() -> Any:
    yield from range(3)


class Counting(Source):
    """Notes what a loader asks of it."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return COUNT

    def read(self, positions: Any) -> Any:
        raise AssertionError("the epoch is known")

    def read_in(self, epoch: int, positions: Any) -> Any:
        self.asked.append((epoch, positions.tolist()))
        return positions

    def finish(self) -> None:
        self.asked.append("finish")

    def release(self) -> None:
        self.asked.append("release")

    def notes(self) -> list[str]:
        return []


@pytest.mark.parametrize("around", [lambda inner: inner, lambda inner: {"x": inner}, lambda inner: (inner, inner)])
def test_a_source_hears_of_epochs_and_ends(around: Any) -> None:
    source = Counting()
    loader = ws.Loader(ws.Subset(around(source), [4, 2]), 2)
    list(loader)
    list(loader)
    loader.close()
    assert (0, [4, 2]) in source.asked
    assert (1, [4, 2]) in source.asked
    assert "finish" in source.asked
    assert "release" not in source.asked  # other subsets may read it


def test_the_identity_of_a_subset() -> None:
    array = np.arange(COUNT)
    found = source_of(ws.Subset(array, [1, 2])).identity
    assert found["kind"] == "subset"
    assert found["of"] == source_of(array).identity
    assert source_of(ws.Subset(array, [2, 1])).identity != found
    state = ws.Loader(ws.Subset(array, [1, 2]), 1).state_dict()
    with pytest.raises(ws.BadState, match="identity"):
        ws.Loader(ws.Subset(array, [1, 3]), 1).load_state_dict(state)


@pytest.mark.parametrize("tier", ["disk", "memory"])
def test_folds_over_a_pipeline_share_what_it_keeps(tmp_path: Path, tier: str) -> None:
    seen: list[int] = []

    def watched(index: int) -> Any:
        seen.append(index)
        return np.full(4, index)

    pipe = ws.Pipeline(range(COUNT)).step(watched)
    source = kept_source(pipe._chain, plan_of(pipe, [(1, tier, "raw")], [COUNT], folder=tmp_path / "kept"), 0)
    parts = [part for pair in ws.folds(source, 3) for part in pair]
    seen.clear()
    for number in range(2):
        for train, valid in zip(parts[::2], parts[1::2], strict=True):
            rows = [np.asarray(batch) for part in (train, valid) for batch in ws.Loader(part, 4, workers=0)]
            assert sorted(np.concatenate(rows)[:, 0].tolist()) == list(range(COUNT))
        assert len(seen) == COUNT, f"epoch {number}"
    source.release()


def test_a_pipeline_without_a_plan_has_subsets_too() -> None:
    pipe = ws.Pipeline(range(COUNT)).step(lambda index: np.full(2, index), version="1")
    train, valid = ws.split(pipe, 0.8)
    rows = [batch for part in (train, valid) for batch in ws.Loader(part, 4, workers=0)]
    assert sorted(np.concatenate(rows)[:, 0].tolist()) == list(range(COUNT))
    assert pipe[0].tolist() == [0, 0]
