"""torchdata: the state of a StatefulDataLoader over our batch sampler, with and without workers."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.interop import checks

pytestmark = [pytest.mark.skipif(find_spec("torchdata") is None, reason="needs torchdata"), pytest.mark.slow]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checks.run_loop("stateful", tmp_path_factory.mktemp("stateful"))


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("way", ["dataloader-0", "dataloader-2"])
def test_every_sample_comes_once_an_epoch_also_after_a_resume(runs: Path, way: str, world: int) -> None:
    checks.check(runs, way, world)


@pytest.mark.parametrize("way", ["end-0", "end-2"])
def test_a_state_after_the_last_batch_goes_on_with_the_next_epoch(runs: Path, way: str) -> None:
    checks.check(runs, way, 1)
