"""The requests and bytes of hosts that fill one cache, counted at a remote in memory; and what their logs say."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.remote.memory import Count, MemoryObjects

import warmstore as ws
from warmstore.errors import Diverged, RemoteUnavailable, StoreExists
from warmstore.replicate import attach, remote_diff
from warmstore.replicate.parts import FORMAT, PartLog
from warmstore.replicate.remote_copy import Remote

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MemoryObjects]:
    """The remote of every URL."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with MemoryObjects() as objects:
        monkeypatch.setattr(Remote, "open", lambda self: MemoryObjects(objects.store, objects.count))
        yield objects


def put(cache: ws.FeatureCache, ids: range) -> None:
    cache.put_batch(list(ids), np.ones((len(ids), 16), np.float32))


def add_hosts(objects: MemoryObjects, about: str, count: int, rows: int = 1) -> int:
    """Segments of `count` hosts with `rows` chunks each. Returns their bytes."""
    log, size = PartLog(None).log, 0
    for _ in range(count):
        chunks = {
            str(number): [
                random.randbytes(16).hex(),
                70_000,
                random.randbytes(32).hex(),
                random.randbytes(8).hex(),
                None,
            ]
            for number in range(rows)
        }
        content = {"format": FORMAT, "store": random.randbytes(16).hex(), "generation": 1, "written": 4, "gone": []}
        content |= {"about": about, "host": f"host-{random.random()}", "once": "", "chunks": chunks}
        payload = json.dumps(content).encode()
        objects.run(log.append(objects, payload, objects.run(log.read(objects))))
        size += len(payload)
    return size


@pytest.mark.slow
def test_requests_among_many_hosts(objects: MemoryObjects, tmp_path: Path) -> None:
    count: Count = objects.count
    hosts = 1000
    with ws.FeatureCache(tmp_path / "a", "net") as cache:
        put(cache, range(10))
        cache.push("place")
        about = next(entry.name for entry in objects.entries("about")).rpartition("/")[2]
        add_hosts(objects, about, hosts - 1)
        cache.push("place")  # reads what the others have added
        count.reset()
        cache.push("place")
        assert len(count) <= 3
        assert count.received + count.sent < 100_000
        count.reset()
        cache.push("place")
        assert len(count) == 1
        requests = []
        for first in range(10, 200, 10):
            put(cache, range(first, first + 10))
            cache.flush()
            count.reset()
            assert cache.push("place").chunks == 1
            requests.append(len(count))
        assert max(requests) <= 5
    assert len(PartLog(None).read(objects).parts) == hosts


@pytest.mark.parametrize("hosts", [4, 40, pytest.param(400, marks=pytest.mark.slow)])
def test_logs_grow_with_what_is_pushed_and_not_with_hosts(objects: MemoryObjects, hosts: int) -> None:
    written = add_hosts(objects, "0" * 64, hosts, rows=400 // hosts)
    objects.count.reset()
    PartLog(None).read(objects)
    assert objects.count.received < written + 40_000  # a listing, and everything once


def test_a_host_pushes_nothing_of_others(objects: MemoryObjects, tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path / "a", "net") as one, ws.FeatureCache(tmp_path / "b", "net") as other:
        put(one, range(10))
        one.push("place")
        put(other, range(10, 20))
        other.sync("place")
        parts = PartLog(None).read(objects).parts
        assert [len(part.chunks) for part in parts] == [1, 1]
        other.sync("place")
        assert len(PartLog(None).read(objects).state.segments) == 2


def test_a_pull_whose_remote_fails_leaves_no_empty_chunk(
    objects: MemoryObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RemoteUnavailable("it does not answer")

    with ws.FeatureCache(tmp_path / "a", "net") as cache, ws.FeatureCache(tmp_path / "b", "net") as other:
        put(cache, range(3))
        cache.push("s3://team")
        with monkeypatch.context() as patch:
            patch.setattr(attach, "fetch_chunks", fail)
            with pytest.raises(RemoteUnavailable):
                other.pull("s3://team")
        assert not list((tmp_path / "b").rglob("*.arrow"))
        assert other.pull("s3://team").records == 3
        assert [path.name for path in (tmp_path / "b").rglob("*.arrow")] == ["000000.arrow"]


def test_a_rebalanced_host_replaces_its_segments(objects: MemoryObjects, tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path / "a", "net") as cache:
        for first in range(0, 50, 10):
            put(cache, range(first, first + 10))
            cache.push("place")
        assert len(PartLog(None).read(objects).state.segments) == 5
        cache.rebalance()
        cache.push("place")
    read = PartLog(None).read(objects)
    assert len(read.state.segments) == 1
    assert read.parts[0].manifest.generation == 2
    with ws.FeatureCache(tmp_path / "b", "net") as cache:
        assert cache.pull("place").records == 50


def test_copies_of_one_folder_are_told_apart(objects: MemoryObjects, tmp_path: Path) -> None:

    with ws.FeatureCache(tmp_path / "a", "net") as cache:
        put(cache, range(10))
        cache.push("place")
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    for host, first in (("a", 10), ("copy", 20)):
        with ws.FeatureCache(tmp_path / host, "net") as cache:
            put(cache, range(first, first + 10))
            if host == "a":
                cache.push("place")
            else:
                with pytest.raises(Diverged, match="copy of the other"):
                    cache.push("place")


def test_a_copy_that_has_pulled_takes_nothing_away(objects: MemoryObjects, tmp_path: Path) -> None:
    for host in ("a", "b"):
        with ws.FeatureCache(tmp_path / host, "net") as cache:
            put(cache, range(10) if host == "a" else range(10, 20))
            cache.push("place")
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    with ws.FeatureCache(tmp_path / "a", "net") as cache:
        put(cache, range(20, 30))
        cache.push("place")
    with ws.FeatureCache(tmp_path / "copy", "net") as cache:
        assert cache.pull("place").chunks == 1  # under the number of the chunk that it lacks
        cache.push("place")
        put(cache, range(30, 40))
        with pytest.raises(Diverged, match="copy of the other"):
            cache.push("place")
    with ws.FeatureCache(tmp_path / "c", "net") as cache:
        assert cache.pull("place").records == 30


def test_a_writer_that_ends_while_another_process_pushes(
    objects: MemoryObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ws.FeatureCache(tmp_path / "a", "net") as cache, ws.FeatureCache(tmp_path / "a", "net") as other:
        put(other, range(10))
        other.flush()
        opened = remote_diff.open_numbers

        def open_numbers(*arguments: Any) -> Any:  # after the log was read, and before the locks of chunks are
            put(other, range(10, 20))
            other.close()
            monkeypatch.setattr(remote_diff, "open_numbers", opened)
            return opened(*arguments)

        monkeypatch.setattr(remote_diff, "open_numbers", open_numbers)
        assert cache.push("place").chunks == 1
        put(cache, range(20, 30))
        assert cache.push("place").chunks == 1
    with ws.FeatureCache(tmp_path / "b", "net") as cache:
        assert cache.pull("place").records == 30


def test_a_store_and_a_cache_do_not_share_a_place(objects: MemoryObjects, tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")}) as store:
        store.extend({"x": np.arange(3)})
        store.push("place")
        with ws.FeatureCache(tmp_path / "a", "net") as cache:
            put(cache, range(10))
            with pytest.raises(StoreExists, match="record store"):
                cache.push("place")
            objects.delete(entry.name for entry in objects.entries())
            cache.push("place")
        with pytest.raises(StoreExists, match="feature cache"):
            store.push("place")
        with pytest.raises(StoreExists, match="feature cache"):
            ws.RecordStore.clone("place", tmp_path / "c")


def test_numbered_heads_of_an_earlier_warmstore_are_left_out(
    objects: MemoryObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from warmstore.replicate import push as pushing

    real = pushing.RemoteSnapshot

    def shared(*given: Any) -> Any:
        return real(*given[:2], True, *given[3:])

    with ws.FeatureCache(tmp_path / "old", "net") as cache:
        put(cache, range(10))
    with monkeypatch.context() as patched, ws.RecordStore.open(tmp_path / "old" / "net") as store:
        patched.setattr(pushing, "RemoteSnapshot", shared)
        store.push("place")
    with ws.FeatureCache(tmp_path / "new", "net") as cache:
        assert cache.pull("place").records == 0
        put(cache, range(10, 20))
        cache.push("place")
    assert "earlier warmstore" in caplog.text
    with ws.FeatureCache(tmp_path / "other", "net") as cache:
        assert cache.pull("place").records == 10
