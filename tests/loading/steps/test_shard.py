"""Every place of an epoch falls to one rank, in order, whatever the ranks and batch sizes are."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstore.errors import BadRank
from warmstore.loading.steps.shard import Shard, find_rank

lengths, sizes, worlds = st.integers(0, 100), st.integers(1, 12), st.integers(1, 6)


@given(lengths, st.integers(0, 110), sizes, worlds)
def test_steps_of_all_ranks_are_the_places_in_order(length: int, start: int, size: int, world: int) -> None:
    shards = [Shard(size, rank, world, "allow") for rank in range(world)]
    ranks = [list(shard.steps(length, start)) for shard in shards]
    assert [len(steps) for steps in ranks] == [shard.count(length, start) for shard in shards]
    found = [
        place
        for at in range(max(map(len, ranks)))
        for steps in ranks
        for step in steps[at : at + 1]
        for place in range(step.first, step.last)
    ]
    assert found == list(range(start, length))
    for at in range(max(map(len, ranks))):
        sizes = [step.last - step.first for steps in ranks for step in steps[at : at + 1]]
        assert max(sizes) <= size
        assert max(sizes) - min(sizes) <= 1
        assert len({step.after for steps in ranks for step in steps[at : at + 1]}) == 1


@given(lengths, st.integers(0, 100), sizes, worlds)
def test_drop_last_gives_every_rank_full_batches_only(length: int, start: int, size: int, world: int) -> None:
    for rank in range(world):
        shard = Shard(size, rank, world, "drop")
        steps = list(shard.steps(length, start))
        assert len(steps) == shard.count(length, start) == max(length - start, 0) // (size * world)
        assert all(step.last - step.first == size for step in steps)


@given(lengths, st.integers(0, 100), sizes, worlds)
def test_padding_makes_all_batches_full_and_repeats_from_the_start(
    length: int, start: int, size: int, world: int
) -> None:
    whole = -(-max(length - start, 0) // (size * world))
    filled: list[int] = []
    for rank in range(world):
        shard = Shard(size, rank, world, "full")
        steps = list(shard.steps(length, start))
        assert len(steps) == shard.count(length, start) == whole
        for step in steps:
            assert step.last - step.first + step.fill[1] - step.fill[0] == size
            filled += range(*step.fill)
    assert filled == list(range(whole * size * world - max(length - start, 0)))


@given(lengths, st.integers(0, 100), sizes, worlds)
def test_ranks_take_equally_many_steps_of_equally_many_rows(length: int, start: int, size: int, world: int) -> None:
    ranks = [list(Shard(size, rank, world).steps(length, start)) for rank in range(world)]
    assert len({len(steps) for steps in ranks}) == 1
    for steps in zip(*ranks, strict=True):
        assert len({step.last - step.first + step.padded for step in steps}) == 1
        assert len({step.is_last for step in steps}) == 1
    assert all(step.is_last == (step is steps[-1]) for steps in ranks for step in steps)
    assert sum(step.padded for steps in ranks for step in steps) < world
    over = Shard(size, 0, world).is_over(length, start)
    assert over == (not ranks[0])


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0), (5, 1), (True, 2), (0.5, 2), ("0", 2)])
def test_a_rank_outside_the_world_is_refused(rank: Any, world: Any) -> None:
    with pytest.raises(BadRank, match=f"rank {rank!r} is outside a world of {world!r}"):
        Shard(4, rank, world)


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match="uneven must be one of 'pad', 'drop', 'allow', 'full'; got 'fill'"):
        Shard(4, uneven="fill")  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -1, 2.5, True, None, "8"])
def test_a_batch_size_below_one_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="batch_size must be an integer from 1"):
        Shard(size)


def test_rank_comes_from_the_arguments_then_torch_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert find_rank() == (0, 1)
    monkeypatch.setenv("RANK", "3")
    assert find_rank() == (0, 1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert find_rank() == (3, 4)
    state = {"up": False}
    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: state["up"],
        get_rank=lambda: 1,
        get_world_size=lambda: 2,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    assert find_rank() == (3, 4)
    state["up"] = True
    assert find_rank() == (1, 2)
    assert find_rank(5, 9) == (5, 9)


def test_half_a_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRank, match="rank 1 and world_size None"):
        find_rank(1)
    monkeypatch.setenv("RANK", "one")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadRank, match="RANK='one'"):
        find_rank()
