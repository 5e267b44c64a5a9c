"""accelerate: prepared or not, with `save_state`, `skip_first_batches` and stateful loaders, one rank and two."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.interop import checks

pytestmark = pytest.mark.skipif(find_spec("accelerate") is None, reason="needs accelerate")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checks.run_loop("accelerate", tmp_path_factory.mktemp("accelerate"))


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("way", ["loader", "stream"])
def test_every_sample_of_a_loader_comes_once_an_epoch_also_after_a_resume(runs: Path, way: str, world: int) -> None:
    checks.check(runs, way, world)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("way", ["dataloader-0", "dataloader-2", "counted-0", "skip-0"])
def test_so_it_does_where_accelerate_shards(runs: Path, way: str, world: int) -> None:
    checks.check(runs, way, world, shared=world > 1)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("way", ["stateful-0", "stateful-2"])
def test_so_it_does_with_stateful_loaders(runs: Path, way: str, world: int) -> None:
    checks.check(runs, way, world, shared=world > 1)


def test_accelerate_shards_in_our_order(runs: Path) -> None:
    (alone,) = checks.runs_of(runs, "skip-0", 1)["whole"]
    own, shared = (checks.runs_of(runs, way, 2)["whole"] for way in ("loader", "dataloader-0"))
    steps = [[number for rank in own for number in rank.train[step][1]] for step in range(len(own[0].train))]
    assert steps == [numbers for _, numbers, _ in shared[0].train]
    assert alone.samples != shared[0].samples


def test_a_rank_that_was_passed_is_refused_where_accelerate_shards(runs: Path) -> None:
    for rank in range(2):
        (message,) = checks.run_of(runs, "refused", 2, "whole", rank).notes
        assert "accelerate shards" in message
        assert "leave rank= and world_size= out" in message


def test_prepare_leaves_a_loader_as_it_is(runs: Path) -> None:
    ranks = [checks.run_of(runs, "prepared", 2, "whole", rank) for rank in range(2)]
    assert [rank.notes for rank in ranks] == [[True], [True]]
    assert sorted(number for rank in ranks for number in checks.numbers(rank, 0)) == list(range(ranks[0].samples))


@pytest.mark.parametrize("world", [1, 2])
def test_a_checkpoint_at_the_end_of_an_epoch_goes_on_with_the_next(runs: Path, world: int) -> None:
    checks.check(runs, "end", world)
