"""Tests with whole clusters, run by `make test-fleet`: Ray, Spark, and servers that are not in the quick suite."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.remote.conftest import s3_server

__all__ = ["s3_server"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            # Ray and Spark leave sockets and processes to the garbage collector, and warn of their own parts.
            item.add_marker(pytest.mark.filterwarnings("default"))
            if not config.getoption("--fleet"):
                item.add_marker(pytest.mark.skip(reason="needs clusters; run with make test-fleet"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A Ray cluster of this machine, with 2 CPUs."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'warmstore[ray]'")
    root = str(Path(__file__).parents[2])
    environment = {"PYTHONPATH": root, "OMP_NUM_THREADS": "1", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    ray.init(
        "local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=256 << 20,
        logging_level="ERROR",
        runtime_env={"env_vars": environment},
    )
    yield
    ray.shutdown()
