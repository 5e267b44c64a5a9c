"""The servers of tests/remote, for stores that are pushed there."""

from tests.remote.conftest import gcs_server, nginx, s3_proxy, s3_server

__all__ = ["gcs_server", "nginx", "s3_proxy", "s3_server"]
