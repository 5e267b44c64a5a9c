"""What is collected in a remote, and that nothing which others still name goes with it."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.compiling.environments import elsewhere
from tests.compiling.hosts import KEY, OTHER_KEY, content, host
from tests.compiling.remote.test_remote_artifacts import manifests

from warmstore.compiling.remote.remote_memory import RemoteMemory
from warmstore.compiling.remote.remote_prune import Pruned, prune
from warmstore.errors import NotTrusted
from warmstore.remote.objects import Objects
from warmstore.remote.signing import Keyring, SigningKey

HALF_AN_HOUR = 1800


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[Objects]:
    with Objects(tmp_path / "remote") as one:
        yield one


@pytest.fixture
def memory(tmp_path: Path, objects: Objects) -> RemoteMemory:
    return RemoteMemory(tmp_path / "collector", objects.identity)


def blobs(folder: Path) -> int:
    return sum(path.is_file() for path in (folder / "remote/compiled/2/blobs").rglob("*"))


@contextmanager
def an_hour_ago() -> Iterator[None]:
    now = time.time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now() - 3600)
        yield


def fill(folder: Path) -> None:
    """Two hosts: one made 0 and 1 an hour ago, the other 2 and 3 just now."""
    with an_hour_ago(), host(folder / "a", folder / "remote") as one:
        one.make(0, 1)
    with host(folder / "b", folder / "remote", job="later") as two:
        two.make(2, 3)


def test_what_is_old_goes(tmp_path: Path, objects: Objects, memory: RemoteMemory) -> None:
    fill(tmp_path)
    sizes = sum(len(content(number)) for number in (0, 1)), sum(len(content(number)) for number in (2, 3))
    dry = prune(objects, Keyring((KEY,)), memory, older_than=HALF_AN_HOUR, dry_run=True)
    assert dry == Pruned(2, 2, sizes[0], 2, sizes[1])
    assert blobs(tmp_path) == 4
    assert prune(objects, Keyring((KEY,)), memory, older_than=HALF_AN_HOUR) == dry
    assert blobs(tmp_path) == 2
    assert len(manifests(tmp_path / "remote")) == 1
    with host(tmp_path / "reader", tmp_path / "remote") as reader:
        assert [reader.has(number) for number in range(4)] == [False, False, True, True]
        assert reader.tier.keys("later") == 2
        assert reader.tier.keys("job") == 0
        assert "remote failed" not in reader.counters


def test_the_oldest_go_until_the_rest_fits(tmp_path: Path, objects: Objects, memory: RemoteMemory) -> None:
    fill(tmp_path)
    pruned = prune(objects, Keyring((KEY,)), memory, max_size=len(content(2)) + len(content(3)) + 10)
    assert (pruned.artifacts, pruned.kept) == (2, 2)
    with host(tmp_path / "reader", tmp_path / "remote") as reader:
        assert [reader.has(number) for number in range(4)] == [False, False, True, True]


def test_writers_go_on_after_it(tmp_path: Path, objects: Objects, memory: RemoteMemory) -> None:
    fill(tmp_path)
    prune(objects, Keyring((KEY,)), memory, max_size=0)
    assert blobs(tmp_path) == 0
    with host(tmp_path / "a", tmp_path / "remote") as one:
        one.make(0, 5)
    with host(tmp_path / "b", tmp_path / "remote") as two:
        assert two.has(5)
        assert two.has(0)
        assert "remote failed" not in two.counters
        assert "remote refused" not in two.counters


def test_each_namespace_keeps_its_own(tmp_path: Path, objects: Objects, memory: RemoteMemory) -> None:
    other = elsewhere(torch="2.14.0")
    with an_hour_ago(), host(tmp_path / "other", tmp_path / "remote", environment=other) as one:
        one.make(0)
    fill(tmp_path)
    prune(objects, Keyring((KEY,)), memory, older_than=HALF_AN_HOUR)
    with host(tmp_path / "late other", tmp_path / "remote", environment=other) as reader:
        assert not reader.has(0)
    with host(tmp_path / "reader", tmp_path / "remote") as reader:
        assert reader.has(2)


def test_bytes_that_belong_to_nothing_go_when_they_are_old(
    tmp_path: Path, objects: Objects, memory: RemoteMemory
) -> None:
    fill(tmp_path)
    for name, age in (("a" * 64, 7200), ("b" * 64, 60)):
        path = tmp_path / "remote/compiled/2/blobs" / name[:2] / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"left by a killed writer")
        os.utime(path, (time.time() - age, time.time() - age))
    (tmp_path / "remote" / "notes.txt").write_text("not ours")
    assert prune(objects, Keyring((KEY,)), memory).blobs == 1
    assert blobs(tmp_path) == 5
    assert (tmp_path / "remote" / "notes.txt").exists()


def test_a_collector_whose_clock_is_ahead_leaves_what_was_just_put(
    tmp_path: Path, objects: Objects, memory: RemoteMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer is about to publish a manifest. The age is by the clock of the remote."""
    fill(tmp_path)
    path = tmp_path / "remote/compiled/2/blobs/aa" / ("a" * 64)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"just put")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 10 * 86400)
    assert prune(objects, Keyring((KEY,)), memory).blobs == 0
    assert path.exists()


def test_what_others_signed_is_not_touched(tmp_path: Path, objects: Objects, memory: RemoteMemory) -> None:
    fill(tmp_path)
    theirs = Keyring((OTHER_KEY,))
    with host(tmp_path / "foreign", tmp_path / "remote", keyring=theirs) as foreign:
        foreign.make(9)
    for path in (tmp_path / "remote").rglob("*"):
        if path.is_file():
            os.utime(path, (1, 1))
    prune(objects, Keyring((KEY,)), memory, max_size=0)
    with host(tmp_path / "their reader", tmp_path / "remote", keyring=theirs) as reader:
        assert reader.has(9)


def test_who_cannot_sign_cannot_collect(objects: Objects, memory: RemoteMemory) -> None:
    pytest.importorskip("cryptography")
    for keys, why in (((), "no key"), ((SigningKey.new("ed25519").public,), "none of the keys")):
        with pytest.raises(NotTrusted, match=rf"{why}.* can sign.*set WARMSTORE_SIGNING_KEY "):
            prune(objects, Keyring(keys), memory, max_size=0)
