"""Options and fixtures of the whole suite."""

import os
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the long loops too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="a long loop; run with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def seen_by_all(tmp_path: Path) -> Path:
    """A folder that every user may enter and read, and only root write: for children that become somebody else."""
    if os.getuid():
        pytest.skip("needs root to become somebody else")
    folder = tmp_path
    while folder.stat().st_uid == 0 and folder.stat().st_mode & 0o055 != 0o055:
        folder.chmod(0o755)
        folder = folder.parent
    return tmp_path
