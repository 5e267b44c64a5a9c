"""The servers and the proxy are what the tests of remotes rest on."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.remote.proxy import Proxy
from tests.remote.servers import BUCKET, GCS, S3, Nginx, gcs_account

obstore = pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")
from obstore.exceptions import AlreadyExistsError, BaseError  # noqa: E402
from obstore.store import GCSStore, HTTPStore, S3Store  # noqa: E402

ONCE: Any = {"max_retries": 0}


def s3(url: str) -> Any:
    return S3Store(
        BUCKET,
        endpoint=url,
        access_key_id="a",
        secret_access_key="b",
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config=ONCE,
    )


def check(store: Any, prefix: str, *, conditional: bool = True) -> None:
    data = os.urandom(200_000)
    obstore.put(store, f"{prefix}/a/b", data)
    assert bytes(obstore.get(store, f"{prefix}/a/b").bytes()) == data
    assert bytes(obstore.get_range(store, f"{prefix}/a/b", start=1000, end=1100)) == data[1000:1100]
    assert obstore.head(store, f"{prefix}/a/b")["size"] == len(data)
    if conditional:
        with pytest.raises(AlreadyExistsError):
            obstore.put(store, f"{prefix}/a/b", b"other", mode="create")
    # One folder at a time: nginx refuses to list a whole tree.
    assert [one["path"] for one in obstore.list_with_delimiter(store, f"{prefix}/a")["objects"]] == [f"{prefix}/a/b"]
    assert obstore.list_with_delimiter(store, prefix)["common_prefixes"] == [f"{prefix}/a"]
    obstore.delete(store, f"{prefix}/a/b")
    with pytest.raises(FileNotFoundError):
        obstore.get(store, f"{prefix}/a/b")


def test_s3(s3_server: S3) -> None:
    store = s3(s3_server.url)
    check(store, "servers")
    large = os.urandom(12 << 20)
    obstore.put(store, "servers/large", large)  # in parts
    assert bytes(obstore.get(store, "servers/large").bytes()) == large


def test_gcs(gcs_server: GCS, tmp_path: Path) -> None:
    account = gcs_account(tmp_path / "account.json", gcs_server.url)
    store = GCSStore(BUCKET, service_account_path=str(account), client_options={"allow_http": True})
    check(store, "servers")
    large = os.urandom(12 << 20)
    obstore.put(store, "servers/large", large)
    assert bytes(obstore.get(store, "servers/large").bytes()) == large


def test_nginx(nginx: Nginx) -> None:
    store = HTTPStore.from_url(nginx.url, client_options={"allow_http": True})
    check(store, "servers", conditional=False)
    obstore.put(store, "stays", b"here")
    nginx.kill()
    nginx.start()
    assert bytes(obstore.get(store, "stays").bytes()) == b"here"


@pytest.mark.parametrize("fault", ["cut", "lost", "error", "truncate"])
def test_faults_that_show(s3_proxy: Proxy, fault: str) -> None:
    store = s3(s3_proxy.url)
    obstore.put(store, "proxy/a", b"x" * 1000)
    s3_proxy.reset({1: fault})
    assert bytes(obstore.get(store, "proxy/a").bytes()) == b"x" * 1000
    with pytest.raises((BaseError, OSError)):
        obstore.get(store, "proxy/a").bytes()
    assert bytes(obstore.get(store, "proxy/a").bytes()) == b"x" * 1000
    assert [request.method for request in s3_proxy.requests[:2]] == ["GET", "GET"]


@pytest.mark.parametrize("fault", ["shorten", "corrupt", "corrupt_upload"])
def test_faults_that_nobody_sees(s3_proxy: Proxy, fault: str) -> None:
    store = s3(s3_proxy.url)
    s3_proxy.reset({0: fault} if fault == "corrupt_upload" else {1: fault})
    obstore.put(store, "proxy/b", b"x" * 1000)
    found = bytes(obstore.get(store, "proxy/b").bytes())
    assert found == (b"x" * 500 if fault == "shorten" else b"x" * 500 + b"h" + b"x" * 499)
