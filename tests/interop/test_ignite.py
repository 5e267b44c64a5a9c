"""ignite: engines over loaders of ours and of torch, with evaluators and checkpoints."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.interop import checks

pytestmark = [pytest.mark.skipif(find_spec("ignite") is None, reason="needs ignite"), pytest.mark.slow]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checks.run_loop("ignite", tmp_path_factory.mktemp("ignite"))


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("way", ["loader", "dataloader-0", "dataloader-2"])
def test_every_sample_comes_once_an_epoch_also_after_a_resume(runs: Path, way: str, world: int) -> None:
    checks.check(runs, way, world)


@pytest.mark.parametrize("world", [1, 2])
def test_a_checkpoint_at_the_end_of_an_epoch_goes_on_with_the_next(runs: Path, world: int) -> None:
    checks.check(runs, "end", world)


def test_workers_that_live_on(runs: Path) -> None:
    checks.check(runs, "persistent-2", 1)
