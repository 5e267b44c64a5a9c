"""What a remote holds, repair, hosts that retire, and garbage collection."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warmstore as ws
from warmstore.errors import Damaged, NotAStore, NotTrusted
from warmstore.records.write import chunk_merging
from warmstore.remote.objects import Objects
from warmstore.remote.signing import KEY
from warmstore.replicate import push as push_module
from warmstore.replicate import upkeep
from warmstore.replicate.remote_copy import Remote
from warmstore.replicate.remote_snapshot import RemoteSnapshot
from warmstore.replicate.staged_part import StagedPart
from warmstore.replicate.upkeep import find_host, gc, repair, retire, verify

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")

DAY = 24 * 3600.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "remote" / "net"


def push(tmp_path: Path, host: str, ids: range) -> ws.PushResult:
    with ws.FeatureCache(tmp_path / host, "net") as cache:
        if len(ids):
            cache.put_batch(list(ids), np.ones((len(ids), 100), np.float32))
        return cache.push(tmp_path / "remote")


def pulled(tmp_path: Path, host: str) -> int:
    with ws.FeatureCache(tmp_path / host, "net") as cache:
        cache.pull(tmp_path / "remote")
        return len(cache)


def age(folder: Path, days: float) -> None:
    then = time.time() - days * DAY
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


@pytest.mark.parametrize("kind", ["chunks", "sidecars", "heads"])
def test_damage_is_found_and_repaired(kind: str, folder: Path, tmp_path: Path) -> None:
    push(tmp_path, "a", range(10))
    push(tmp_path, "b", range(10, 30))
    report = verify(Remote(folder))
    assert report.ok
    assert [host.chunks for host in report.hosts] == [1, 1]
    damaged = sorted(folder.rglob(f"{kind}/*"))[0]
    good = damaged.read_bytes()
    damaged.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert verify(Remote(folder)).ok == (kind == "chunks")
    assert not verify(Remote(folder), deep=True).ok
    repair(Remote(folder), deep=True)
    assert verify(Remote(folder), deep=True).ok
    for host in ("a", "b"):  # the owner of what was damaged sends it again
        push(tmp_path, host, range(0))
    assert verify(Remote(folder), deep=True).ok
    assert pulled(tmp_path, "c") == 30


def test_a_damaged_chunk_that_was_sent_lately_is_sent_again_after_a_repair(folder: Path, tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((1000, 300))  # the remote is asked for chunks of this size
    with ws.FeatureCache(tmp_path / "a", "net") as cache:
        cache.put_batch(range(1000), values)
        cache.push(folder.parent)
        (damaged,) = folder.glob("chunks/*")
        good = damaged.read_bytes()
        damaged.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        repair(Remote(folder), deep=True)
        assert cache.push(folder.parent).chunks == 1
    assert verify(Remote(folder), deep=True).ok
    assert pulled(tmp_path, "c") == 1000


def test_a_host_retires_and_comes_back(folder: Path, tmp_path: Path) -> None:
    push(tmp_path, "a", range(10))
    push(tmp_path, "b", range(10, 30))
    first = next(host for host in verify(Remote(folder)).hosts)
    with pytest.raises(NotAStore, match="no part"):
        retire(Remote(folder), "nobody")
    (gone,) = retire(Remote(folder), first.store[:12])
    assert gone.store == first.store
    assert pulled(tmp_path, "c") < 30
    for host in ("a", "b"):
        push(tmp_path, host, range(0))
    assert pulled(tmp_path, "c") == 30


def test_a_host_is_its_name_or_one_store_by_eight_digits(folder: Path, tmp_path: Path) -> None:
    push(tmp_path, "a", range(10))
    push(tmp_path, "b", range(10, 30))
    first, second = verify(Remote(folder)).hosts
    with pytest.raises(ValueError, match="empty"):
        retire(Remote(folder), "")
    for short in (first.store[:1], first.store[:7]):
        with pytest.raises(NotAStore, match="no part of a host"):
            retire(Remote(folder), short)
    assert [host.chunks for host in verify(Remote(folder)).hosts] == [1, 1]
    assert [host.store for host in find_host(Remote(folder), second.store[:8])] == [second.store]
    assert [host.store for host in retire(Remote(folder), second.store[:8])] == [second.store]
    assert find_host(Remote(folder), first.host) == [first]


def test_garbage_is_collected_by_age(folder: Path, tmp_path: Path) -> None:
    push(tmp_path, "a", range(10))
    with ws.FeatureCache(tmp_path / "a", "net") as cache:
        cache.rebalance()
    push(tmp_path, "a", range(10, 20))
    push(tmp_path, "b", range(20, 30))
    assert gc(Remote(folder), keep=7 * DAY).objects == 0  # all is young
    age(folder, 8)
    found = gc(Remote(folder), keep=7 * DAY, dry_run=True)
    assert found.objects == 2  # the chunk before the rebalance and its sidecar
    assert gc(Remote(folder), keep=7 * DAY) == found
    assert gc(Remote(folder), keep=7 * DAY).objects == 0
    assert verify(Remote(folder), deep=True).ok
    assert pulled(tmp_path, "c") == 30
    with pytest.raises(ValueError, match="a day"):
        gc(Remote(folder), keep=3600)


def test_a_reader_has_the_samples_of_merged_chunks_that_are_collected(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_merging, "FAN_IN", 4)

    def opened(name: str) -> ws.FeatureCache:
        return ws.FeatureCache(folder.parent.as_uri(), "net", cache_dir=tmp_path / name)

    for run in range(6):
        with opened("a") as cache:
            cache.put_batch([run], np.full((1, 20_000), run, np.float32))
        with opened("b") as reader:
            assert len(reader) == run + 1
    age(folder, 8)
    assert gc(Remote(folder), keep=7 * DAY).objects == 8
    with opened("b") as reader:
        assert len(reader) == 6
        values, missing = reader.get_batch(range(6))
    assert not len(missing)
    assert values[:, 0].tolist() == [*range(6)]


@pytest.mark.parametrize("moment", [1, 2])
@pytest.mark.parametrize("kind", ["cache", "store"])
def test_what_is_sent_again_during_a_collection_stays(
    kind: str, moment: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push sends objects again that nothing names, and names them, after the collection has read what is named."""
    store = ws.RecordStore.create(tmp_path / "store", {"x": ws.Array("int64")})

    def send() -> None:
        if kind == "store":
            store.push(folder)
        else:
            for host in ("a", "b"):
                push(tmp_path, host, range(0))

    if kind == "cache":
        push(tmp_path, "a", range(10))
        push(tmp_path, "b", range(10, 20))
        retire(Remote(folder), verify(Remote(folder)).hosts[0].store)
    else:
        store.extend({"x": np.arange(10)})
        send()
        store.extend({"x": np.arange(10)})
        send()
        max(folder.rglob("heads/*/*.json")).unlink()  # as if the push had been interrupted before it
    age(folder, 8)
    name = "_needed" if kind == "cache" else "_named_in_store"
    named, calls = getattr(upkeep, name), []

    def named_and_then_pushed(*arguments: Any) -> Any:
        found = named(*arguments)
        calls.append(1)
        if len(calls) == moment:
            send()
        return found

    monkeypatch.setattr(upkeep, name, named_and_then_pushed)
    gc(Remote(folder), keep=7 * DAY)
    assert len(calls) >= moment
    assert verify(Remote(folder), deep=True).ok
    if kind == "cache":
        assert pulled(tmp_path, "c") == 20
    else:
        assert len(ws.RecordStore.clone(folder, tmp_path / "clone")) == 20


def test_nothing_is_collected_while_something_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    push(tmp_path, "a", range(10))
    push(tmp_path, "b", range(10, 20))
    segment = sorted(folder.rglob("heads/*"))[0]
    segment.write_bytes(b"damaged")
    age(folder, 8)
    with pytest.raises(Damaged, match="repair"):
        gc(Remote(folder), keep=7 * DAY)
    repair(Remote(folder))
    gc(Remote(folder), keep=7 * DAY)
    for host in ("a", "b"):
        push(tmp_path, host, range(0))
    assert pulled(tmp_path, "c") == 20


def test_chunks_of_a_record_store_are_collected(tmp_path: Path) -> None:
    url = tmp_path / "store"
    with ws.RecordStore.create(tmp_path / "a", {"x": ws.Array("int64")}) as store:
        for number in range(8):
            store.extend({"x": np.arange(10 * number)})
            store.push(url)
            store.rebalance()
        store.push(url)
    assert verify(Remote(url), deep=True).ok
    age(url, 8)
    assert gc(Remote(url), keep=7 * DAY).objects > 0
    assert gc(Remote(url), keep=7 * DAY).objects == 0
    with ws.RecordStore.clone(url, tmp_path / "b") as copy:
        assert len(copy) == sum(10 * number for number in range(8))
    chunk = next(path for path in url.rglob("chunks/*") if not path.suffix)
    chunk.write_bytes(b"")
    assert "damaged" in verify(Remote(url)).problems[0]


def test_parts_of_a_staged_write_are_collected_once_it_sends_no_more(tmp_path: Path) -> None:
    """The tasks of a job end days apart, and no head names the chunks before the commit."""
    folder, url = tmp_path / "store", f"file://{tmp_path}/store"
    fields = {"x": ws.Array("int64")}

    def send(write: ws.StagedWrite, first: int) -> StagedPart:
        with write.part() as part:
            part.extend({"x": np.arange(first, first + 10)})
        return part.finish()

    with ws.StagedWrite(url, fields=fields) as write:
        write.commit([send(write, 0)])
    write, dead = (ws.StagedWrite(url, append=True) for _ in range(2))
    parts, lost = [send(write, 10)], send(dead, 90)
    age(folder, 40)
    parts.append(send(write, 20))
    assert verify(Remote(url)).unused == 0
    assert gc(Remote(url), keep=DAY).objects == 3  # the list of the dead write, its chunk and the hashes
    assert not (folder / "staged" / dead.token / lost.name).exists()
    with pytest.raises(Damaged, match=f"of the part {lost.name} is gone"):
        dead.commit([lost])
    assert write.commit(parts) == 20
    with ws.RecordStore.clone(url, tmp_path / "copy") as copy:
        assert copy.verify().ok
        assert copy["x"][:].tolist() == [*range(30)]
    (folder / "staged" / "0").mkdir(parents=True)
    (folder / "staged" / "0" / "part").write_bytes(b"no list")
    with pytest.raises(Damaged, match="cannot be read"):
        gc(Remote(url), keep=DAY)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("ahead", [-30 * DAY, 0.0, 30 * DAY])
def test_a_push_trusts_chunks_by_the_clock_of_the_remote(
    ahead: float, verify: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push that was interrupted has left a chunk. An old one is sent again, since `gc` may be about to remove it."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + ahead)
    with ws.FeatureCache(tmp_path / "a", "net") as cache:
        cache.put_batch([1, 2, 3], np.ones((3, 200_000), np.float32))
        cache.push(tmp_path / "remote")
        (chunk,) = (folder / "chunks").iterdir()
        for sent in (0, 1):
            for path in folder.glob("heads/*"):  # the segment that names it
                path.unlink()
            cache._session.version.logs.clear()
            if sent:
                os.utime(chunk, (now - DAY, now - DAY))
            assert cache.push(tmp_path / "remote", verify=verify).chunks == sent


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("aged", ["", ".hashes"])
def test_a_push_that_goes_on_after_days_beside_a_garbage_collection(
    aged: str, verify: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier push has sent is taken for present while it is young: nothing names it."""
    url, write_head = tmp_path / "remote", push_module.write_head

    def interrupted(objects: Objects, head: RemoteSnapshot) -> bool:
        raise KeyboardInterrupt

    def collected(objects: Objects, head: RemoteSnapshot) -> bool:
        gc(Remote(url), keep=DAY)
        return write_head(objects, head)

    with ws.RecordStore.create(tmp_path / "a", {"x": ws.Array("int64")}) as store:
        store.extend({"x": np.arange(10)})
        store.push(url)
        for days in (0, 2):
            store.extend({"x": np.arange(100 + days)})
            monkeypatch.setattr(push_module, "write_head", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.push(url)
            then = time.time() - days * DAY
            for path in url.glob("chunks/*"):
                if path.suffix == aged:
                    os.utime(path, (then, then))
            monkeypatch.setattr(push_module, "write_head", collected)
            assert store.push(url, verify=verify).chunks == (days > 0)
    with ws.RecordStore.clone(url, tmp_path / "b") as copy:
        assert len(copy) == 212
        assert copy.verify().ok


@pytest.mark.parametrize("kind", ["records", "samples"])
def test_a_push_that_goes_on_asks_for_the_time_once(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, asked = Objects.clock_async, list[None]()

    async def counted(objects: Objects) -> float:
        asked.append(None)
        return await ask(objects)

    monkeypatch.setattr(Objects, "clock_async", counted)
    values = np.ones((3, 200_000), np.float32)
    store: Any = ws.FeatureCache(tmp_path / "a", "net")
    url = tmp_path / "remote"
    if kind == "records":
        store = ws.RecordStore.create(tmp_path / "a", {"x": ws.Array("float32", (200_000,))}, chunk_size="1MB")
        url = folder
    with store:
        for first in (0, 3, 6):
            if kind == "records":
                store.extend({"x": values})
            else:
                store.put_batch([*range(first, first + 3)], values)
            store.push(url)
        assert not asked
        for path in folder.glob("heads/**/*"):  # as if the push had been interrupted before it
            if path.is_file():
                path.unlink()
        if kind == "samples":
            store._session.version.logs.clear()
        result = store.push(url)
        assert (result.chunks, result.present) == (0, 3)
        assert len(asked) == 1


@pytest.fixture
def shared(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with the part of a host that signs, and that of one that does not."""
    monkeypatch.setenv(KEY, "hmac:" + "b" * 64)
    with ws.FeatureCache(tmp_path / "signer", "net", sign=True) as cache:
        cache.put_batch([*range(10)], np.ones((10, 100), np.float32))
        cache.push(tmp_path / "remote")
    push(tmp_path, "a", range(10, 20))
    return folder


def pulled_signed(tmp_path: Path, host: str) -> int:
    with ws.FeatureCache(tmp_path / host, "net", sign=True) as cache:
        cache.pull(tmp_path / "remote")
        return len(cache)


def test_signed_parts_are_forgotten_with_a_signature(shared: Path, tmp_path: Path) -> None:
    (signed,) = verify(Remote(shared, sign=True)).hosts
    for forget in (find_host, retire):
        with pytest.raises(NotTrusted, match=r"signed.*sign=True"):
            forget(Remote(shared), signed.store)
    assert pulled(tmp_path, "all") == 20
    assert [host.store for host in retire(Remote(shared, sign=True), signed.store)] == [signed.store]
    assert (pulled(tmp_path, "b"), pulled_signed(tmp_path, "c")) == (10, 0)
    (left,) = (host for host in verify(Remote(shared)).hosts if host.chunks)
    retire(Remote(shared), left.store)
    assert pulled(tmp_path, "d") == 0


def test_damaged_chunks_of_signed_parts_are_forgotten_with_a_signature(shared: Path, tmp_path: Path) -> None:
    chunks = {path.name for path in shared.glob("chunks/*")}
    push(tmp_path, "b", range(20, 30))
    (unsigned,) = (path for path in shared.glob("chunks/*") if path.name not in chunks)
    unsigned.unlink()
    assert not repair(Remote(shared)).ok  # what nobody signed is forgotten as before
    assert verify(Remote(shared)).ok
    for path in shared.glob("chunks/*"):
        path.unlink()
    before = sorted(shared.glob("heads/*"))
    with pytest.raises(NotTrusted, match=r"signed.*sign=True"):
        repair(Remote(shared))
    assert sorted(shared.glob("heads/*")) == before
    repair(Remote(shared, sign=True))
    repair(Remote(shared))
    assert verify(Remote(shared)).ok
    with ws.FeatureCache(tmp_path / "signer", "net", sign=True) as cache:
        cache.push(tmp_path / "remote")
    assert pulled_signed(tmp_path, "c") == 10


def test_what_signed_segments_name_is_not_garbage(shared: Path, tmp_path: Path) -> None:
    """A host that has signed its part replaces it without a signature: those who need signatures go on with the old."""
    with ws.FeatureCache(tmp_path / "signer", "net") as cache:
        cache.put_batch([*range(30, 40)], np.ones((10, 100), np.float32))
        cache.rebalance()
        cache.push(tmp_path / "remote")
    age(shared, 8)
    gc(Remote(shared), keep=7 * DAY)
    assert (pulled_signed(tmp_path, "b"), pulled(tmp_path, "c")) == (10, 30)
    with ws.FeatureCache(tmp_path / "signer", "net", sign=True) as cache:
        cache.push(tmp_path / "remote")
    age(shared, 8)
    assert gc(Remote(shared), keep=7 * DAY).objects == 2  # now nobody reads the old chunk and its sidecar
    assert (pulled_signed(tmp_path, "d"), pulled(tmp_path, "e")) == (20, 30)
