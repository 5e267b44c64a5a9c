"""Tests in a browser, run by `make test-site`: pages that people look at. They need `apt-get install chromium`."""

from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents and not config.getoption("--site"):
            item.add_marker(pytest.mark.skip(reason="needs a browser; run with make test-site"))
