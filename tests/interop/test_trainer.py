"""transformers: a Trainer that takes its batches from us, with evaluation, checkpoints and texts, one rank and two."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.interop import checks

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checks.run_loop("trainer", tmp_path_factory.mktemp("trainer"))


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("way", ["loader", "text"])
def test_every_sample_comes_once_an_epoch_also_after_a_resume(runs: Path, way: str, world: int) -> None:
    checks.check(runs, way, world)


@pytest.mark.parametrize(("way", "world"), [("dataloader-0", 1), ("dataloader-2", 1), ("dataloader-0", 2)])
def test_so_it_does_where_accelerate_shards(runs: Path, way: str, world: int) -> None:
    checks.check(runs, way, world, shared=world > 1)


def test_a_rank_that_was_passed_is_refused(runs: Path) -> None:
    for rank in range(2):
        (message,) = checks.run_of(runs, "refused", 2, "whole", rank).notes
        assert "leave rank= and world_size= out" in message


@pytest.mark.parametrize("world", [1, 2])
def test_a_checkpoint_at_the_end_of_an_epoch_goes_on_with_the_next(runs: Path, world: int) -> None:
    checks.check(runs, "end", world)
