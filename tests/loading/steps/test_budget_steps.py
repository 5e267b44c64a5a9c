"""Batches of varying size give every sample once, over any ranks, and go on from any step."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slow import either

import warmstore as ws

lengths_of = st.lists(st.integers(1, 20), min_size=1, max_size=60)


def taken(lengths: Any, budget: int, world: int, uneven: Any, state: Any = None, steps: int | None = None) -> Any:
    """What the ranks take from a state on, step by step: [step][rank] = positions, unmarked; and the state after."""
    ranks, states = [], []
    for rank in range(world):
        loader = ws.Loader(
            {"at": np.arange(len(lengths))},
            ws.TokenBudget(budget, lengths),
            ws.Shuffle(seed=3),
            rank=rank,
            world_size=world,
            uneven=uneven,
        )
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        batches, count = [], len(loader)
        for number, batch in enumerate(loader, 1):
            valid = batch.get("valid", np.ones(len(batch["at"]), bool))
            assert max(lengths[at] for at in batch["at"]) * len(batch["at"]) <= budget
            batches.append(batch["at"][valid].tolist())
            states.append(loader.state_dict())
            if number == steps:
                break
        else:
            assert state is not None or len(batches) == count
        ranks.append(batches)
    return ranks, states


@settings(max_examples=either(30, 60))
@given(lengths_of, st.integers(20, 90), st.integers(1, 4), st.integers(1, 4), st.integers(1, 6))
def test_every_sample_comes_once_and_any_step_resumes(
    lengths: list[int], budget: int, world: int, other: int, steps: int
) -> None:
    whole, _ = taken(lengths, budget, world, "pad")
    assert len({len(batches) for batches in whole}) == 1
    assert sorted(at for batches in whole for batch in batches for at in batch) == list(range(len(lengths)))
    first, states = taken(lengths, budget, world, "pad", steps=steps)
    if states[-1]["epoch"]:
        return
    rest, _ = taken(lengths, budget, other, "pad", states[-1])
    both = [at for batches in first + rest for batch in batches for at in batch]
    assert sorted(both) == list(range(len(lengths)))


@settings(max_examples=either(15, 30))
@given(lengths_of, st.integers(20, 90), st.integers(2, 4))
def test_the_rest_is_dropped_or_allowed(lengths: list[int], budget: int, world: int) -> None:
    allowed, _ = taken(lengths, budget, world, "allow")
    counts = [len(batches) for batches in allowed]
    assert max(counts) - min(counts) <= 1
    assert sorted(at for batches in allowed for batch in batches for at in batch) == list(range(len(lengths)))
    dropped, _ = taken(lengths, budget, world, "drop")
    assert {len(batches) for batches in dropped} == {sum(counts) // world}


def test_an_epoch_without_a_step_for_more_ranks_is_over() -> None:
    """Its last batches are fewer than the ranks, and left out: the next `for` is the next epoch, and not empty."""
    lengths = np.full(10, 3)
    pair = ws.Loader(np.arange(10), ws.TokenBudget(6, lengths), rank=0, world_size=2, uneven="drop")
    next(iter(pair))
    for world, batches, epoch in ((3, [[4, 5]], 1), (4, [[0, 1]], 2)):
        loader = ws.Loader(np.arange(10), ws.TokenBudget(6, lengths), rank=0, world_size=world, uneven="drop")
        loader.load_state_dict(pair.state_dict())
        assert [batch.tolist() for batch in loader] == batches
        assert loader.epoch == epoch


def test_len_is_of_the_epoch_that_was_named_and_padded_of_the_one_drawn() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 300)
    loader = ws.Loader(np.arange(300), ws.TokenBudget(120, lengths), "shuffle")
    counts = [len(list(loader)) for _ in range(6)]
    assert len(set(counts)) > 1
    next(iter(loader))
    for epoch, count in enumerate(counts):
        loader.set_epoch(epoch)
        assert len(loader) == count
    for rank in range(2):
        sampler = ws.BatchSampler(300, ws.TokenBudget(120, lengths), "shuffle", rank=rank, world_size=2)
        for count in counts:
            assert len(list(sampler)) == -(-count // 2)
            assert sampler.padded == (rank == 1 and count % 2 == 1)


def test_a_batch_sampler_takes_budgets_too() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 300)
    sampler = ws.BatchSampler(300, ws.TokenBudget(200, lengths), ws.Bucketed(lengths, 8, seed=1))
    assert sampler.batch_size is None
    count, batches = len(sampler), list(sampler)
    assert sorted(at for batch in batches for at in batch) == list(range(300))
    assert len({len(batch) for batch in batches}) > 3
    assert len(batches) == count


def test_rows_packed_by_a_budget_have_one_shape() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, 100)
    source = {"ids": [np.full(length, at, np.int32) for at, length in enumerate(lengths)]}
    loader = ws.Loader(source, ws.RowBudget(4, 64, lengths), "shuffle", collate={"ids": ws.PackRows(64, rows=4)})
    seen: list[int] = []
    for batch in loader:
        rows = batch["ids"]
        assert rows["values"].shape == rows["segments"].shape == (4, 64)
        starts = (rows["positions"] == 0) & (rows["segments"] > 0)
        seen += rows["values"][starts].tolist()
    assert sorted(seen) == list(range(100))


def test_other_numbers_of_lengths_and_other_budgets_are_refused() -> None:
    with pytest.raises(ValueError, match="got 3 lengths for 4 samples"):
        ws.Loader(np.arange(4), ws.TokenBudget(10, [1, 2, 3]))
    loader = ws.Loader(np.arange(4), ws.TokenBudget(10, [1, 2, 3, 4]))
    next(iter(loader))
    with pytest.raises(ws.BadState, match="the state has the batches"):
        ws.Loader(np.arange(4), ws.TokenBudget(12, [1, 2, 3, 4])).load_state_dict(loader.state_dict())
