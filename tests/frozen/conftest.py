"""What is committed stays as it is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def untouched() -> Iterator[None]:
    """Nothing that is committed changes."""
    before = _all_files()
    yield
    assert _all_files() == before


def _all_files() -> dict[Path, bytes]:
    folders = [each for name in ("format", "identity", "remote", "tiers") for each in HERE.glob(f"{name}-*")]
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}
