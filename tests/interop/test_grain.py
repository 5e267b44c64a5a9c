"""Grain: our data sets and stores are sources of its pipelines, whose iterators have the state."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.interop import checks

pytestmark = pytest.mark.skipif(find_spec("grain") is None, reason="needs grain")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checks.run_loop("grain", tmp_path_factory.mktemp("grain"))


@pytest.mark.parametrize("way", ["dataset", "store"])
def test_every_sample_comes_once_an_epoch_also_after_a_resume(runs: Path, way: str) -> None:
    checks.check(runs, way, 1)
