"""A cache at a remote of which parts are damaged, in use by others, or were filled in another way."""

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from tests import warm
from tests.features.test_remote_binding import fill, has
from torch import nn

import warmstore as ws
from warmstore.errors import Damaged, StaleCache
from warmstore.remote.signing import KEY
from warmstore.replicate.pull import PullResult
from warmstore.replicate.remote_copy import read_chunks
from warmstore.storage.files import Files

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return tmp_path / "remote"


def url_of(remote: Path) -> str:
    return f"file://{remote}"


def pushed(folder: Path, remote: Path, ids: range, *, verify: bool = False) -> None:
    with ws.FeatureCache(folder, "net") as cache:
        if len(ids):
            fill(cache, ids)
        cache.push(url_of(remote), verify=verify)


@pytest.mark.slow
def test_processes_of_one_host_sync_one_folder(tmp_path: Path, remote: Path) -> None:
    for first in range(0, 1000, 100):
        pushed(tmp_path / f"host{first}", remote, range(first, first + 100))
    program = """if True:
        import sys
        import warmstore as ws
        for _ in range(3):
            with ws.FeatureCache(sys.argv[1], "net") as cache:
                cache.pull(sys.argv[2])
        with ws.FeatureCache(sys.argv[1], "net") as cache:
            assert len(cache) == 1000, len(cache)
    """
    for attempt in range(3):
        command = [sys.executable, "-c", program, str(tmp_path / f"shared{attempt}"), url_of(remote)]
        processes = [warm.popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
        ended = [(process.communicate()[1], process.returncode) for process in processes]
        assert [code for _, code in ended] == [0, 0, 0], ended


@pytest.mark.parametrize("folder", ["heads", "chunks", "sidecars", "about"])
def test_a_damaged_part_is_left_out(
    folder: str, tmp_path: Path, remote: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(tmp_path / "a", remote, range(100))
    (damaged,) = remote.rglob(f"{folder}/*")
    with ws.FeatureCache(tmp_path / "b", "net") as cache:
        fill(cache, range(100, 200))
        cache.push(url_of(remote))
    good = damaged.read_bytes()
    damaged.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another host"))  # which keeps no copies of the log
    whole = range(200) if folder == "about" else range(100, 200)
    with ws.FeatureCache(tmp_path / "c", "net") as cache, caplog.at_level(logging.WARNING):
        if folder == "about":  # both hosts have the same description
            assert cache.pull(url_of(remote)).records == 0
            pushed(tmp_path / "a", remote, range(0), verify=True)
            assert cache.pull(url_of(remote)).records == 200
        else:
            assert cache.pull(url_of(remote)).records == 100
        assert has(cache, whole)
        fill(cache, range(200, 300))
        cache.push(url_of(remote))
    assert "left out" in caplog.text
    with ws.FeatureCache(url_of(remote), "net", cache_dir=tmp_path / "here") as cache:
        assert has(cache, range(100, 300))
    pushed(tmp_path / "a", remote, range(0), verify=True)  # its owner heals it
    with ws.FeatureCache(tmp_path / "d", "net") as cache:
        assert cache.pull(url_of(remote)) == PullResult(3, ANY, 300)


def test_sidecars_with_more_bytes_are_a_miss(tmp_path: Path, remote: Path) -> None:
    pushed(tmp_path / "a", remote, range(4000))
    for path in remote.rglob("sidecars/*"):
        path.write_bytes(path.read_bytes() + bytes(64))
    with ws.FeatureCache(url_of(remote), "net", cache_dir=tmp_path / "here") as cache:
        assert len(cache.get_batch(list(range(10)))[1]) == 10


def test_hashes_with_more_bytes_are_damage(tmp_path: Path, remote: Path) -> None:
    with ws.RecordStore.create(tmp_path / "a", {"x": ws.Array("int64")}) as store:
        store.extend({"x": np.arange(10)})
        store.push(url_of(remote))
    for path in remote.rglob("*.hashes"):
        path.write_bytes(path.read_bytes() + bytes(64))
    with pytest.raises(Damaged):
        ws.RecordStore.clone(url_of(remote), tmp_path / "b")


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 4).eval().requires_grad_(False)


def test_a_module_uses_a_cache_filled_by_put_batch(
    tmp_path: Path, remote: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = torch.arange(30.0).reshape(10, 3)
    with ws.FeatureCache(tmp_path / "a", "net") as cache:
        cache.put_batch(list(range(5)), module()(inputs[:5]))
        cache.push(url_of(remote))
    for host in ("b", "c", "b"):  # the next runs find parts with and without a fingerprint
        with ws.FeatureCache(url_of(remote), "net", cache_dir=tmp_path / host) as cache:
            wrapped = ws.CachedModule(module(), cache)
            assert torch.equal(wrapped(inputs, cache_ids=list(range(10))), module()(inputs))
    assert "could not" not in caplog.text
    other = nn.Linear(3, 4).eval().requires_grad_(False)
    with ws.FeatureCache(url_of(remote), "net", cache_dir=tmp_path / "d") as cache, pytest.raises(StaleCache):
        ws.CachedModule(other, cache)(inputs, cache_ids=list(range(10)))


def test_a_push_that_is_refused_at_close_keeps_the_samples_here(
    tmp_path: Path, remote: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"cache_dir": tmp_path / "here"}
    with ws.FeatureCache(url_of(remote), "net", **options) as cache, caplog.at_level(logging.WARNING):
        cache.put_batch([1], torch.ones(1, 4))
        with ws.FeatureCache(tmp_path / "a", "net") as other:
            other.put_batch([1], torch.ones(1, 7))
            other.push(url_of(remote))
    assert "stay local" in caplog.text


def test_a_close_that_fails_with_nothing_pending_loses_nothing(tmp_path: Path) -> None:
    program = """if True:
        import sys
        import torch
        import warmstore as ws
        cache = ws.FeatureCache(sys.argv[1], "net")
        cache.put_batch([1], torch.ones(1, 4))
        if sys.argv[2] == "flushed":
            cache.flush()
        def close():
            raise OSError("no")
        cache._session.version.close = cache._session.version.flush = close
    """
    for state, code in (("flushed", 0), ("pending", 120)):
        command = [sys.executable, "-c", program, str(tmp_path / state), state]
        done = warm.run(command, capture_output=True, text=True)
        assert "could not be closed" in done.stderr
        assert ("are lost" in done.stderr) == (state == "pending")
        assert done.returncode == code


@pytest.mark.parametrize("sign", [False, True])
def test_a_damaged_list_of_the_chunks_of_a_copy(
    sign: bool, tmp_path: Path, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "hmac:" + "5a" * 32)
    with ws.FeatureCache(tmp_path / "a", "net", sign=sign) as cache:
        for first in (0, 100):
            fill(cache, range(first, first + 100))
            cache.push(remote)

    def opened() -> ws.FeatureCache:
        return ws.FeatureCache(url_of(remote), "net", cache_dir=tmp_path / "copies", sign=sign)

    with opened() as cache:
        assert has(cache, range(50))
    (path,) = (tmp_path / "copies").rglob("chunks.json")
    chunks = read_chunks(path.parent, Files())
    assert len(chunks) == 2
    path.write_bytes(path.read_bytes()[:-9])
    assert read_chunks(path.parent, Files()) == chunks
    with opened() as cache:
        assert has(cache, range(200))
        fill(cache, range(200, 210))
    pushed(tmp_path / "b", remote, range(210, 300))
    with opened() as cache:
        assert has(cache, range(210))
        assert sign or has(cache, range(210, 300))
