"""A cache at a remote of which parts are damaged, in use by others, or were filled in another way."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.features.test_remote_binding import fill, has
from torch import nn

import warmstore as ws
from warmstore.errors import Damaged, StaleCache

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return tmp_path / "remote"


def url_of(remote: Path) -> str:
    return f"file://{remote}"


def pushed(folder: Path, remote: Path, ids: range) -> None:
    with ws.FeatureCache(folder, "net") as cache:
        fill(cache, ids)
        cache.push(url_of(remote))


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
        processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
        ended = [(process.communicate()[1], process.returncode) for process in processes]
        assert [code for _, code in ended] == [0, 0, 0], ended


def test_a_damaged_part_is_left_out(tmp_path: Path, remote: Path, caplog: pytest.LogCaptureFixture) -> None:
    pushed(tmp_path / "a", remote, range(100))
    (head,) = remote.rglob("heads/*/*.json")
    pushed(tmp_path / "b", remote, range(100, 200))
    head.write_bytes(head.read_bytes()[:-40])
    with ws.FeatureCache(tmp_path / "c", "net") as cache, caplog.at_level(logging.WARNING):
        assert cache.pull(url_of(remote)).records == 100
        assert has(cache, range(100, 200))
        fill(cache, range(200, 300))
        cache.push(url_of(remote))
    assert head.name in caplog.text
    with ws.FeatureCache(url_of(remote), "net", cache_dir=tmp_path / "here") as cache:
        assert has(cache, range(100, 300))
    pushed(tmp_path / "a", remote, range(0))  # its owner's next push heals it
    with ws.FeatureCache(tmp_path / "d", "net") as cache:
        assert cache.pull(url_of(remote)).records == 300


def test_a_remote_with_damaged_parts_only_is_damaged(tmp_path: Path, remote: Path) -> None:
    pushed(tmp_path / "a", remote, range(100))
    (head,) = remote.rglob("heads/*/*.json")
    head.write_bytes(b"{}")
    with ws.FeatureCache(tmp_path / "c", "net") as cache, pytest.raises(Damaged, match="checksum"):
        cache.pull(url_of(remote))


def test_hashes_with_more_bytes_are_a_miss(tmp_path: Path, remote: Path) -> None:
    pushed(tmp_path / "a", remote, range(4000))
    for path in remote.rglob("*.hashes"):
        path.write_bytes(path.read_bytes() + bytes(64))
    with ws.FeatureCache(url_of(remote), "net", cache_dir=tmp_path / "here") as cache:
        assert len(cache.get_batch(list(range(10)))[1]) == 10


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
        cache.session.version.close = cache.session.version.flush = close
    """
    for state, code in (("flushed", 0), ("pending", 120)):
        command = [sys.executable, "-c", program, str(tmp_path / state), state]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ}, check=False)
        assert "could not be closed" in done.stderr
        assert ("are lost" in done.stderr) == (state == "pending")
        assert done.returncode == code
