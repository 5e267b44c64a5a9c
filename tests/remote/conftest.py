"""The servers of the tests, started once a session, or anew where a test kills one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.remote.packages import find_nginx
from tests.remote.proxy import Proxy
from tests.remote.servers import GCS, S3, Nginx


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """moto, shared by all tests: use names of your own in its bucket."""
    pytest.importorskip("moto", reason="moto is not installed: pip install 'warmstore[dev]'")
    with S3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GCS]:
    """The fake of Google Cloud Storage, shared by all tests."""
    with GCS(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Nginx]:
    """nginx with WebDAV, with a folder of its own; may be killed and started again."""
    if find_nginx() is None:
        pytest.skip("nginx with its module dav-ext is not there: python -m tests.remote.packages gets it")
    with Nginx(tmp_path / "nginx") as server:
        yield server


@pytest.fixture
def s3_proxy(s3_server: S3) -> Iterator[Proxy]:
    """A proxy before the S3 server."""
    with Proxy(s3_server.url) as proxy:
        yield proxy
