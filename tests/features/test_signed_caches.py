"""Caches at a remote whose parts are signed: what a peer with write access and without a key can do."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warmstore as ws
from warmstore.errors import NotTrusted
from warmstore.features.remote_binding import pull_folder, push_folder
from warmstore.features.remote_merging import merge_parts
from warmstore.remote.signing import KEY, SigningKey
from warmstore.replicate.remote_copy import Remote

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")

PICKLED: dict[str, Any] = {"allow_pickle": True, "lists": "per_sample"}
SECRET = "hmac:" + "5a" * 32


class Payload:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


class Item:
    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Item) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"file://{tmp_path / 'remote'}"


def put(cache: ws.FeatureCache, ids: range, item: Any = None) -> None:
    cache.put_batch(list(ids), [Item(number) if item is None else item for number in ids])


def test_pickles_of_a_peer_without_a_key_are_never_run(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad = tmp_path / "it ran"
    monkeypatch.setenv(KEY, SigningKey.new().line)  # a key of his own
    with ws.FeatureCache(tmp_path / "peer", "net", **PICKLED) as peer:
        put(peer, range(10), Payload(bad))
        peer.push(url)
    monkeypatch.delenv(KEY)
    with pytest.raises(NotTrusted, match="key"):
        ws.FeatureCache(url, "net", **PICKLED, cache_dir=tmp_path / "none")
    monkeypatch.setenv(KEY, SECRET)
    with ws.FeatureCache(tmp_path / "honest", "net", **PICKLED) as honest:
        put(honest, range(20, 30))
        honest.push(url)
    with ws.FeatureCache(url, "net", **PICKLED, cache_dir=tmp_path / "here") as cache:
        found, missing = cache.get_batch(list(range(30)))
        assert missing.tolist() == [*range(20)]
        assert found == [Item(number) for number in range(20, 30)]
    with ws.FeatureCache(tmp_path / "pulled", "net", **PICKLED) as cache:
        assert cache.pull(url).records == 10
    assert "which you do not have" in caplog.text
    assert not bad.exists()


def test_samples_that_were_pulled_unsigned_are_not_unpickled_later(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, SigningKey.new().line)
    with ws.FeatureCache(tmp_path / "peer", "net", **PICKLED) as peer:
        put(peer, range(10))
        peer.push(url)
    monkeypatch.setenv(KEY, SECRET)
    with ws.FeatureCache(tmp_path / "pulled", "net") as cache:
        assert cache.pull(url).records == 10
    with pytest.raises(NotTrusted, match=r"^\[Errno 1\] it holds samples of a remote that nobody signed"):
        ws.FeatureCache(tmp_path / "pulled", "net", **PICKLED)


def test_changed_bytes_of_a_signed_part_are_left_out(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer writes the chunk and the sidecar of an honest host anew, with names as a checksum would have them."""
    monkeypatch.setenv(KEY, SECRET)
    with ws.FeatureCache(tmp_path / "honest", "net", sign=True) as honest:
        honest.put_batch([1, 2], np.ones((2, 8), np.float32))
        honest.push(url)
    (chunk,) = (tmp_path / "remote").rglob("chunks/*")
    (sidecar,) = (tmp_path / "remote").rglob("sidecars/*")
    assert len(chunk.name) == len(sidecar.name) == 64
    for path in (chunk, sidecar):
        good = path.read_bytes()
        path.write_bytes(good[:-200] + bytes(len(good[-200:])))
        with ws.FeatureCache(tmp_path / f"without {path.parent.name}", "net", sign=True) as cache:
            assert cache.pull(url).damaged == 1
        path.write_bytes(good)
    with ws.FeatureCache(tmp_path / "b", "net", sign=True) as cache:
        assert cache.pull(url).records == 2


def test_a_public_key_reads_and_does_not_push(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    key = SigningKey.new("ed25519")
    monkeypatch.setenv(KEY, key.line)
    with ws.FeatureCache(tmp_path / "ci", "net", sign=True) as writer:
        writer.put_batch([1, 2], np.ones((2, 8), np.float32))
        writer.push(url)
    monkeypatch.setenv(KEY, key.public.line)
    with ws.FeatureCache(url, "net", sign=True, cache_dir=tmp_path / "here") as cache:
        assert not len(cache.get_batch([1, 2])[1])
        cache.put_batch([3], np.ones((1, 8), np.float32))
        with pytest.raises(NotTrusted, match="sign"):
            cache.push()
    with ws.FeatureCache(tmp_path / "unsigned", "net") as cache:
        assert cache.pull(url).records == 2


def test_unsigned_and_signed_hosts_fill_one_cache(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, SECRET)
    for host, sign in (("a", True), ("b", False)):
        with ws.FeatureCache(tmp_path / host, "net", sign=sign) as cache:
            cache.put_batch([host], np.ones((1, 8), np.float32))
            cache.push(url)
    for host, sign, count in (("c", True, 1), ("d", False, 2)):
        with ws.FeatureCache(tmp_path / host, "net", sign=sign) as cache:
            assert cache.pull(url).records == count


def test_a_folder_with_pickles_is_pushed_and_pulled_signed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ws.FeatureCache(tmp_path / "a", "net", **PICKLED) as cache:
        put(cache, range(3))
    with pytest.raises(NotTrusted, match="needs a key"):
        push_folder(tmp_path / "a" / "net", Remote(url).below("net"))
    assert not (tmp_path / "remote").exists()
    monkeypatch.setenv(KEY, SECRET)
    assert push_folder(tmp_path / "a" / "net", Remote(url).below("net")).chunks == 1
    assert pull_folder(tmp_path / "b" / "net", Remote(url).below("net")).records == 3
    for folder, options in ((tmp_path / "b", {}), (url, {"cache_dir": tmp_path / "c"})):
        with ws.FeatureCache(folder, "net", **PICKLED, **options) as cache:
            assert cache.get_batch(list(range(3)))[0] == [Item(number) for number in range(3)]


def test_signed_parts_are_merged_to_a_signed_one(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, SECRET)
    for host in range(2):
        with ws.FeatureCache(tmp_path / str(host), "net", sign=True) as cache:
            cache.put_batch([host], np.ones((1, 8), np.float32))
            cache.push(url)
    before = sorted((tmp_path / "remote").rglob("*"))
    with pytest.raises(NotTrusted, match=r"parts of it are signed.*sign=True"):
        merge_parts(Remote(url).below("net"))
    assert sorted((tmp_path / "remote").rglob("*")) == before
    assert merge_parts(Remote(url, sign=True).below("net")).samples == 2
    with ws.FeatureCache(tmp_path / "new", "net", sign=True) as cache:
        assert cache.pull(url).records == 2


@pytest.fixture
def unsigned(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that has pulled pickles of a peer without a key."""
    monkeypatch.setenv(KEY, SigningKey.new().line)
    with ws.FeatureCache(tmp_path / "peer", "net", **PICKLED) as peer:
        put(peer, range(10), Payload(tmp_path / "it ran"))
        peer.push(url)
    monkeypatch.setenv(KEY, SECRET)
    with ws.FeatureCache(tmp_path / "pulled", "net", lists="per_sample") as cache:
        assert cache.pull(url).records == 10
    return tmp_path / "pulled" / "net"


def test_unsigned_samples_stay_unsigned_in_a_merge(unsigned: Path, tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path / "merged", "net") as cache:
        assert cache.merge(unsigned).added == 10
    for options in (PICKLED, {"sign": True}):
        with pytest.raises(NotTrusted, match="nobody signed"):
            ws.FeatureCache(tmp_path / "merged", "net", **options)
        with ws.FeatureCache(tmp_path / "own", "net", **options) as cache:
            with pytest.raises(NotTrusted, match="nobody signed"):
                cache.merge(unsigned)
            assert not len(cache)
    assert not (tmp_path / "it ran").exists()


def test_unsigned_samples_are_not_signed_later(unsigned: Path, tmp_path: Path) -> None:
    with ws.FeatureCache(unsigned.parent, "net") as cache:
        cache.rebalance()
    with pytest.raises(NotTrusted, match="nobody signed"):
        ws.FeatureCache(unsigned.parent, "net", sign=True)
    with pytest.raises(NotTrusted, match="nobody signed"):
        push_folder(unsigned, Remote(tmp_path / "trusted", sign=True))
    assert not (tmp_path / "trusted").exists()


def test_what_another_process_pulls_unsigned_is_not_unpickled_or_signed(
    url: str, unsigned: Path, tmp_path: Path
) -> None:
    with ws.FeatureCache(tmp_path / "shared", "net", **PICKLED) as trusting:
        put(trusting, range(20, 30))
        trusting.flush()
        assert trusting.get_batch([20])[0] == [Item(20)]
        with ws.FeatureCache(tmp_path / "shared", "net", lists="per_sample") as other:
            assert other.pull(url).records == 10
        for look in (lambda: trusting.get_batch([1]), lambda: trusting[1], lambda: trusting.push(tmp_path / "trusted")):
            with pytest.raises(NotTrusted, match="nobody signed"):
                look()
    assert not (tmp_path / "it ran").exists()
