"""Options and fixtures of the whole suite."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the long loops too")
    parser.addoption("--fresh", action="store_true", help="run edits in interpreters of their own too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="a long loop; run with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def seen_by_all() -> Iterator[Path]:
    """A folder that every user may enter and read, and only root write: for children that become somebody else.

    Not one of pytest's: every run of pytest closes the folder that all runs share to everybody else.
    """
    if os.getuid():
        pytest.skip("needs root to become somebody else")
    with tempfile.TemporaryDirectory(prefix="warmstore-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
