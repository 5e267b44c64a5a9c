"""Keras on torch: fit over torch's DataLoader, and over a stream of our batches."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.interop import checks

pytestmark = [pytest.mark.skipif(find_spec("keras") is None, reason="needs keras"), pytest.mark.slow]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checks.run_loop("keras", tmp_path_factory.mktemp("keras"))


@pytest.mark.parametrize("way", ["loader", "dataloader-0", "dataloader-2"])
def test_every_sample_comes_once_an_epoch_also_after_a_resume(runs: Path, way: str) -> None:
    checks.check(runs, way, 1)
