"""The same calls mean the same on every kind of remote."""

from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from tests.remote.proxy import Proxy
from tests.remote.servers import GCS, S3, Nginx, gcs_account, s3_variables

from warmstore.errors import RemoteRefused
from warmstore.remote.objects import Objects


@pytest.fixture(params=["folder", "s3", "gs", "http"])
def objects(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Objects]:
    url = str(tmp_path / "remote")
    if request.param == "s3":
        server: S3 = request.getfixturevalue("s3_server")
        for name, value in s3_variables(server.url).items():
            monkeypatch.setenv(name, value)
        url = "s3://bucket/objects on servers"
    if request.param == "gs":
        google: GCS = request.getfixturevalue("gcs_server")
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(gcs_account(tmp_path / "account", google.url)))
        url = "gs://bucket/objects-on-servers"
    if request.param == "http":
        nginx: Nginx = request.getfixturevalue("nginx")
        url = f"{nginx.url}/a%20cache/of mine"
    with Objects(url) as one:
        yield one


def test_objects(objects: Objects) -> None:
    large = bytes(range(256)) * 30_000
    assert objects.entries() == []
    assert objects.get("a/b") is None
    assert objects.put("a/b", b"0123456789")
    assert objects.put("a/c d/e+f", large)
    assert objects.put("ab", b"")
    assert objects.get("a/b") == b"0123456789"
    assert objects.get("a/c d/e+f") == large
    assert objects.get("ab") == b""
    assert objects.get("a/b", 2, 5) == b"234"
    assert objects.get("a/b", 7) == b"789"
    assert [(one.name, one.size) for one in objects.entries()] == [("a/b", 10), ("a/c d/e+f", len(large)), ("ab", 0)]
    assert [one.name for one in objects.entries("a")] == ["a/b", "a/c d/e+f"]
    assert objects.size("a/b") == 10
    assert not objects.put("a/b", b"other", create=True)
    assert objects.put("a/b", b"other")
    assert objects.get("a/b") == b"other"
    objects.delete(["a/b", "never", "ab"])
    assert [one.name for one in objects.entries()] == ["a/c d/e+f"]
    assert objects.size("a/b") is None
    assert objects.entries("never") == []


def test_a_remote_that_says_no_is_told_apart(nginx: Nginx) -> None:
    async def list_a_tree() -> None:
        async for _ in obstore.list(objects._opened(write=False), "a"):
            pass

    with Objects(nginx.url) as objects:
        objects.put("a/b", b"")
        with pytest.raises(RemoteRefused, match="credentials") as caught:
            objects.run(objects._checked(list_a_tree, "a tree cannot be listed", missing=None))
    assert "<" not in str(caught.value)


def test_s3_removes_many_objects_in_one_request(s3_proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_variables(s3_proxy.url).items():
        monkeypatch.setenv(name, value)
    with Objects("s3://bucket/many") as objects:
        for number in range(40):
            objects.put(f"{number}", b"x")
        s3_proxy.reset()
        objects.delete(f"{number}" for number in range(60))
        assert len(s3_proxy.requests) == 1
        assert not objects.entries()
