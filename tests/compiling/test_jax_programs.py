"""jax.jit in fresh processes."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.compiling.programs import SQUARES, START, run

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="needs jax")


@pytest.mark.parametrize("before", ["", "import jax; jax.jit(lambda x: x + 1)(1)\n"], ids=["init first", "jax first"])
def test_a_fresh_process_in_another_place_finds_everything(tmp_path: Path, before: str) -> None:
    first = run(SQUARES, tmp_path / "store", start=before + START)
    assert first.right
    assert first.kept
    (tmp_path / "store").rename(tmp_path / "moved")
    (tmp_path / "tmp").mkdir()
    second = run(SQUARES, tmp_path / "moved", start=before + START, env={"TMPDIR": str(tmp_path / "tmp")})
    assert second.right
    assert second.hits
    assert second.misses == []
