"""Tests in a browser, run by `make test-site`: pages that people look at. They need `apt-get install chromium`."""

import os
from pathlib import Path

import pytest

_HERE = f"{Path(__file__).parent}{os.sep}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--site"):
        return
    for item in items:
        if str(item.path).startswith(_HERE):
            item.add_marker(pytest.mark.skip(reason="needs a browser; run with make test-site"))
