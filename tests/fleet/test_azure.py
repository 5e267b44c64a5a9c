"""Azure Blob Storage, by Azurite: stores and caches through AZURE_STORAGE_CONNECTION_STRING."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.fleet.azurite import CONTAINER, KEY, Azurite, installed

import warmstore as ws


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    if installed() is None:
        pytest.skip("npm cannot install azurite")
    with Azurite(tmp_path_factory.mktemp("azurite")) as server:
        server.make_container()
        yield server


@pytest.fixture
def url(azurite: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    return f"az://{CONTAINER}/{tmp_path.name}"


def test_stores_and_staged_parts(url: str, tmp_path: Path) -> None:
    write = ws.StagedWrite(url, fields={"n": ws.Array("int64")})
    parts = []
    for first in (0, 100):
        with write.part() as part:
            part.extend({"n": np.arange(first, first + 100)})
        parts.append(part.finish())
    write.commit(parts)
    with ws.RecordStore.open(url, cache_dir=tmp_path / "cached") as store:
        assert store["n"][:].tolist() == list(range(200))
    with ws.RecordStore.clone(url, tmp_path / "clone") as clone:
        assert clone.verify().ok


def test_caches_of_two_hosts(url: str, tmp_path: Path) -> None:
    for host in range(2):
        with ws.FeatureCache(url, "id", cache_dir=tmp_path / f"{host}") as cache:
            cache.put_batch(range(10 * host, 10 * host + 10), np.full((10, 3), host, np.float32))
    with ws.FeatureCache(url, "id", cache_dir=tmp_path / "reader") as cache:
        values, missing = cache.get_batch(range(20))
        assert not len(missing)
        assert np.asarray(values)[:, 0].tolist() == [0.0] * 10 + [1.0] * 10


def test_a_wrong_key_is_refused_and_not_shown(url: str, azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = KEY[::-1].strip("=")[:84] + "AAAA"[: (4 - 84 % 4) % 4]
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string.replace(KEY, wrong))
    with pytest.raises((ws.RemoteRefused, ws.RemoteUnavailable)) as refused:
        ws.RecordStore.open(url)
    assert wrong not in str(refused.value)
