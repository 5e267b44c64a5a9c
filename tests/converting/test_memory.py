"""Memory does not grow with the source: measured in fresh processes, mapped pages included."""

import sys
from pathlib import Path

import pytest
from benchmarks.convert import MAKERS
from benchmarks.private_memory import in_fresh_process

SIZE = 400_000_000
BOUND = 300e6


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory counts differently elsewhere")
@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_a_conversion_takes_less_than_its_source(tmp_path: Path, name: str) -> None:
    MAKERS[name](tmp_path / name, SIZE)
    found = in_fresh_process("benchmarks.convert", str(tmp_path / name), str(tmp_path / "store"))
    assert found["records"] >= SIZE // 100_000
    assert found["peak"] < BOUND
