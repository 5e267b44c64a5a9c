"""Stores and their copies at real servers: pushed, pulled, broken off, taken up again, and never mixed up."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import warm
from tests.remote.packages import find_nginx
from tests.remote.proxy import FAULTS, Proxy
from tests.remote.servers import BUCKET, S3, Nginx, s3_variables
from tests.slow import thinned

import warmstore as ws
from warmstore.errors import Damaged, Diverged, NotAStore, RemoteRefused, RemoteUnavailable, StoreExists
from warmstore.records.write import chunk_merging
from warmstore.replicate import push, push_part
from warmstore.replicate.remote_copy import Remote
from warmstore.replicate.remote_snapshot import read_heads

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")

FIELDS: dict[str, Any] = {"n": ws.Array("int64"), "x": ws.Array("uint8", (1000,)), "b": ws.Bytes("zstd")}


def batch(first: int, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(first)
    blobs = [rng.bytes(50) * (number % 7) for number in range(count)]
    return {"n": np.arange(first, first + count), "x": rng.integers(0, 256, (count, 1000), np.uint8), "b": blobs}


def make(path: Path, rows: int = 600, *, chunk_size: str = "100KB") -> ws.RecordStore:
    store = ws.RecordStore.create(path, FIELDS, chunk_size=chunk_size)
    add(store, rows)
    return store


def add(store: ws.RecordStore, rows: int) -> None:
    for first in range(len(store), len(store) + rows, 50):
        store.extend(batch(first, 50))
        store.flush()


def same(one: ws.RecordStore, other: ws.RecordStore) -> bool:
    left, right = one.gather(slice(None)), other.gather(slice(None))
    equal = [bytes(a) == bytes(b) for a, b in zip(left["b"], right["b"], strict=True)]
    return bool((left["n"] == right["n"]).all() and (left["x"] == right["x"]).all() and all(equal))


def check(path: Path, like: Path) -> None:
    with ws.RecordStore.open(path) as copy, ws.RecordStore.open(like) as store:
        assert copy.verify().ok
        assert same(copy, store)


@pytest.fixture
def at_s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A URL of this test's own."""
    for name, value in s3_server.variables.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/mirror/{request.node.name.replace('[', '-').replace(']', '')}"


@pytest.fixture
def behind_proxy(at_s3: str, s3_proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, through the proxy."""
    for name, value in s3_variables(s3_proxy.url).items():
        monkeypatch.setenv(name, value)
    return at_s3


@pytest.fixture(params=["s3", "folder", "nginx"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The same at each kind of remote."""
    if request.param == "s3":
        yield request.getfixturevalue("at_s3")
    elif request.param == "folder":
        yield str(tmp_path / "remote")
    else:
        yield f"{request.getfixturevalue('nginx').url}/stores/photos"


def test_there_and_back(url: str, tmp_path: Path) -> None:
    with make(tmp_path / "a") as store:
        first = store.push(url)
        assert first.chunks > 3
        assert first.waiting == 0
        again = store.push(url)
        assert (again.chunks, again.present) == (0, first.chunks)
    with ws.RecordStore.clone(url, tmp_path / "b") as copy:
        assert copy.verify().ok
    check(tmp_path / "b", tmp_path / "a")
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["g0001", "remote.json", "store.json"]
    with ws.RecordStore.open(tmp_path / "a", "a", chunk_size="100KB") as store:
        add(store, 100)
        store.update(3, {"n": -3})
        store.delete([5, 7])
        assert 0 < store.push(url).chunks < first.chunks
    with ws.RecordStore.open(tmp_path / "b") as copy:
        pulled = copy.pull(url)
        assert pulled.chunks > 0
        assert len(copy) == 698
        assert copy.pull(url).chunks == 0
    check(tmp_path / "b", tmp_path / "a")


def test_a_rebalanced_store_is_followed(url: str, tmp_path: Path) -> None:
    with make(tmp_path / "a") as store:
        store.push(url)
        ws.RecordStore.clone(url, tmp_path / "b").close()
        store.delete(range(300))
        store.rebalance()
        store.push(url)
    with ws.RecordStore.open(tmp_path / "b") as copy:
        assert copy.sync(url)[0].chunks > 0
        assert len(copy) == 300
    check(tmp_path / "b", tmp_path / "a")
    assert [path.name for path in (tmp_path / "b").glob("g*")] == ["g0002"]


def test_the_copy_may_go_on(url: str, tmp_path: Path) -> None:
    with make(tmp_path / "a") as store:
        store.push(url)
    with ws.RecordStore.clone(url, tmp_path / "b"), ws.RecordStore.open(tmp_path / "b", "a") as copy:
        add(copy, 50)
        assert copy.sync(url)[1].chunks == 1
    with ws.RecordStore.open(tmp_path / "a", "a") as store:
        assert store.sync(url)[0].records == 50
    check(tmp_path / "a", tmp_path / "b")


def test_diverged_histories_are_refused(url: str, tmp_path: Path) -> None:
    with make(tmp_path / "a") as store:
        store.push(url)
        with ws.RecordStore.clone(url, tmp_path / "b"), ws.RecordStore.open(tmp_path / "b", "a") as copy:
            add(store, 50)
            copy.delete([1])
            store.push(url)
            for refused in (copy.push, copy.pull, copy.sync):
                with pytest.raises(Diverged, match="written to separately"):
                    refused(url)
            copy.rebalance()  # now it cannot be compared any more
            with pytest.raises(Diverged):
                copy.push(url)
        assert store.push(url).chunks == 0
    with ws.RecordStore.clone(url, tmp_path / "c") as fresh:
        assert len(fresh) == 650


@pytest.mark.parametrize("names", [["text", "more"], ["more", "json"]], ids=["order", "names"])
def test_copies_without_records_whose_fields_differ_are_refused(names: list[str], tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "a", {"n": ws.Array("int64")}) as store:
        store.push(tmp_path / "remote")
        ws.RecordStore.clone(tmp_path / "remote", tmp_path / "b").close()
        for name in ("more", "text"):
            store.add_field(name, ws.Text())
        store.push(tmp_path / "remote")
    with ws.RecordStore.open(tmp_path / "b", "a") as copy:
        for name in names:
            copy.add_field(name, ws.Text())
        for refused in (copy.push, copy.pull, copy.sync):
            with pytest.raises(Diverged, match="written to separately"):
                refused(tmp_path / "remote")
    with ws.RecordStore.clone(tmp_path / "remote", tmp_path / "c") as fresh:
        assert [*fresh.fields] == ["n", "more", "text"]


def test_annotations_of_several_copies_are_kept(tmp_path: Path) -> None:
    def at_url() -> dict[str, Any]:
        with ws.RecordStore.open((tmp_path / "remote").as_uri(), cache_dir=tmp_path / "cache") as lazy:
            return lazy.metadata

    with make(tmp_path / "a", 50) as store:
        store.push(tmp_path / "remote")
        ws.RecordStore.clone(tmp_path / "remote", tmp_path / "b").close()
        assert at_url() == {}
        store.annotate("mean", 1)
        store.push(tmp_path / "remote")
        assert at_url() == {"mean": 1}
    with ws.RecordStore.open(tmp_path / "b", "a") as copy:
        copy.annotate("mean", 2)
        copy.annotate("deviation", 3)
        add(copy, 50)
        copy.push(tmp_path / "remote")
        assert at_url() == {"mean": 1, "deviation": 3}
        copy.pull(tmp_path / "remote")
    for name in ("a", "b"):  # one has the records already
        ws.RecordStore.clone(tmp_path / "remote", tmp_path / name).close()
        with ws.RecordStore.open(tmp_path / name) as store:
            assert store.metadata == {"mean": 1, "deviation": 3}


def test_another_store_is_refused(url: str, tmp_path: Path) -> None:
    with make(tmp_path / "a", 50) as one, make(tmp_path / "b", 50) as other:
        one.push(url)
        with pytest.raises(Diverged, match="another store"):
            other.push(url)
        with pytest.raises(Diverged):
            other.pull(url)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(StoreExists):
        ws.RecordStore.clone(url, tmp_path / "full")
    with pytest.raises(NotAStore, match="holds no store"):
        ws.RecordStore.clone(f"{url}/nothing", tmp_path / "c")


def test_of_two_stores_that_are_first_pushed_at_once_one_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(tmp_path / "a", 50) as one, make(tmp_path / "b", 50) as other:
        write_head = push.write_head

        def other_first(*arguments: Any) -> bool:
            monkeypatch.setattr(push, "write_head", write_head)
            other.push(url)
            return write_head(*arguments)

        monkeypatch.setattr(push, "write_head", other_first)
        for _ in range(2):
            with pytest.raises(Diverged, match="another store"):
                one.push(url)
        add(other, 50)
        assert other.push(url).chunks
    ws.RecordStore.clone(url, tmp_path / "c").close()
    check(tmp_path / "c", tmp_path / "b")


@pytest.mark.parametrize("verify", [False, True])
def test_of_two_copies_that_are_first_pushed_at_once_one_is_refused(
    verify: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "a", 50).close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    send = push._send
    with ws.RecordStore.open(tmp_path / "a", "a") as one, ws.RecordStore.open(tmp_path / "b", "a") as other:

        def other_first(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(push, "_send", send)
            other.push(tmp_path / "remote")
            return send(*arguments, **options)

        add(one, 50)
        other.delete([1])
        monkeypatch.setattr(push, "_send", other_first)
        with pytest.raises(Diverged, match="written to separately"):
            one.push(tmp_path / "remote", verify=verify)
    ws.RecordStore.clone(tmp_path / "remote", tmp_path / "c").close()
    check(tmp_path / "c", tmp_path / "b")


def test_chunks_of_live_writers_wait(at_s3: str, tmp_path: Path) -> None:
    with make(tmp_path / "a", 100) as store, ws.RecordStore.open(tmp_path / "a", "a") as writer:
        writer.extend(batch(100, 50))
        writer.flush()
        store.refresh()
        add(store, 50)
        pushed = store.push(at_s3)
        assert pushed.waiting == 1
        with ws.RecordStore.clone(at_s3, tmp_path / "b") as copy:
            assert len(copy) == 100  # not what stands behind the writer's rows: positions must not move later
        writer.close()
        assert store.push(at_s3).waiting == 0
    with ws.RecordStore.open(tmp_path / "b") as copy:
        copy.pull(at_s3)
    check(tmp_path / "b", tmp_path / "a")


def test_chunks_that_were_merged_behind_a_live_writer_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remote got a log that names the chunks of before, without them."""
    monkeypatch.setattr(chunk_merging, "FAN_IN", 3)
    store = make(tmp_path / "a", 50, chunk_size="1GB")
    with store, ws.RecordStore.open(tmp_path / "a", "a") as writer:
        store.push(tmp_path / "remote")
        for _ in range(2):
            add(store, 50)
            store.seal()
            if len(store) == 100:
                writer.refresh()
                add(writer, 50)
                store.refresh()
        assert not (tmp_path / "a" / "g0001" / "000000.arrow").exists()
        assert store.push(tmp_path / "remote").waiting == 1
        with ws.RecordStore.clone(tmp_path / "remote", tmp_path / "b") as copy:
            assert copy.verify().ok
            assert len(copy) == 50
        writer.close()
        assert store.push(tmp_path / "remote").waiting == 0
        with ws.RecordStore.open(tmp_path / "b") as copy:
            copy.pull(tmp_path / "remote")
    check(tmp_path / "b", tmp_path / "a")


def test_two_who_push_at_once(at_s3: str, tmp_path: Path) -> None:
    with make(tmp_path / "a", 100) as store:
        store.push(at_s3)
    program = f"""if True:
        import sys
        import warmstore as ws
        from tests.replicate.test_push_pull import add
        with ws.RecordStore.clone({at_s3!r}, sys.argv[1]), ws.RecordStore.open(sys.argv[1], "a") as store:
            add(store, 50)
            store.append({{"n": int(sys.argv[2])}})
            print("ready", flush=True)
            input()
            try:
                print(store.push({at_s3!r}).chunks)
            except ws.Diverged:
                print("diverged")
    """
    hosts = [
        warm.popen(
            [sys.executable, "-c", program, str(tmp_path / f"host{number}"), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for number in range(2)
    ]
    for host in hosts:
        assert host.stdout is not None
        assert host.stdout.readline() == "ready\n"
    for host in hosts:
        assert host.stdin is not None
        host.stdin.write("\n")
        host.stdin.flush()
    said = sorted(host.communicate()[0].strip() for host in hosts)
    assert said == ["1", "diverged"]
    with ws.RecordStore.clone(at_s3, tmp_path / "c") as copy:
        assert len(copy) == 151
        assert copy.verify().ok


# Servers that die


def test_the_server_dies_in_a_push(nginx: Nginx, tmp_path: Path) -> None:
    store = make(tmp_path / "a")
    with Proxy(nginx.url) as proxy:
        url = f"{proxy.url}/photos"
        proxy.before = lambda number, request: nginx.kill() if any(nginx.root.rglob("*.hashes")) else None
        with pytest.raises(RemoteUnavailable):
            store.push(url)
        assert not list(nginx.root.rglob("heads/*/*"))
        whole = [path for path in nginx.root.rglob("chunks/*") if not path.suffix]
        assert whole
        proxy.before = None
        nginx.start()
        pushed = store.push(url)
        assert pushed.present > 0
        with ws.RecordStore.clone(url, tmp_path / "b") as copy:
            assert same(copy, store)
    store.close()


def test_the_server_dies_in_a_pull(nginx: Nginx, tmp_path: Path) -> None:
    with make(tmp_path / "a") as store, Proxy(nginx.url) as proxy:
        url = f"{proxy.url}/photos"
        store.push(url)
        proxy.reset()
        proxy.before = lambda number, request: nginx.kill() if number == 12 else None
        with pytest.raises(RemoteUnavailable):
            ws.RecordStore.clone(url, tmp_path / "b")
        assert not (tmp_path / "b").exists()
        proxy.before = None
        nginx.start()
        fetched = sum("/chunks/" in request.path and not request.path.endswith(".hashes") for request in proxy.requests)
        proxy.reset()
        with ws.RecordStore.clone(url, tmp_path / "b") as copy:
            assert same(copy, store)
        rest = sum(request.method == "GET" and request.path.endswith(".hashes") for request in proxy.requests)
        assert fetched > 1
        assert rest < store.push(url).present  # what came before the end was not asked for again


PATIENT = """
from dataclasses import replace
from warmstore.records.write import chunk_merging
from warmstore.replicate import push, push_part
from warmstore.replicate.remote_copy import Remote
hasty = Remote.open
Remote.open = lambda remote: hasty(replace(remote, limits=replace(remote.limits, read_timeout=3600, request=3600)))
"""


def cloning(url: str, path: Path, proxy: Proxy, before: str = "") -> subprocess.Popen[str]:
    """A process that runs some code and clones through a proxy."""
    program = before + "import sys, warmstore as ws; ws.RecordStore.clone(*sys.argv[1:])"
    command, variables = [sys.executable, "-c", program, url, str(path)], {**os.environ, **s3_variables(proxy.url)}
    return warm.popen(command, env=variables, stderr=subprocess.PIPE, text=True)


def test_a_killed_pull_goes_on(at_s3: str, s3_server: S3, tmp_path: Path) -> None:
    with make(tmp_path / "a") as store, Proxy(s3_server.url) as proxy:
        store.push(at_s3)
        child = cloning(at_s3, tmp_path / "b", proxy)
        proxy.before = lambda number, request: child.kill() if number == 14 else None
        child.communicate()
        assert child.returncode != 0
        assert not (tmp_path / "b").exists()
        with ws.RecordStore.clone(at_s3, tmp_path / "b") as copy:
            assert same(copy, store)
    assert not list(tmp_path.glob(".b.*.tmp"))


def test_an_interrupted_pull_ends_at_once(at_s3: str, s3_server: S3, tmp_path: Path) -> None:
    """Without waiting for an answer: that would take an hour."""
    with make(tmp_path / "a") as store, Proxy(s3_server.url) as proxy:
        store.push(at_s3)
        child = cloning(at_s3, tmp_path / "b", proxy, PATIENT)
        proxy.faults = dict.fromkeys(range(14, 100), "hang")
        proxy.before = lambda number, request: child.send_signal(signal.SIGINT) if number == 14 else None
        assert "KeyboardInterrupt" in child.communicate(timeout=200)[1]
        with ws.RecordStore.clone(at_s3, tmp_path / "b") as copy:
            assert same(copy, store)


def test_a_push_that_died_behind_its_head_was_a_push(tmp_path: Path) -> None:
    make(tmp_path / "a").close()
    program = """if True:
        import os, sys
        import warmstore as ws
        from warmstore.replicate import push
        written = push.write_head
        def write_head(objects, head):
            written(objects, head)
            os._exit(9)
        push.write_head = write_head
        with ws.RecordStore.open(sys.argv[1], "a") as store:
            store.push(sys.argv[2])
    """
    command = [sys.executable, "-c", program, str(tmp_path / "a"), str(tmp_path / "remote")]
    assert warm.run(command, check=False).returncode == 9
    with ws.RecordStore.open(tmp_path / "a", "a") as store:
        add(store, 50)
        store.delete([1, 2, 3])
        store.rebalance()  # nothing is left of what was pushed, but a note of it
        store.push(tmp_path / "remote")
    ws.RecordStore.clone(tmp_path / "remote", tmp_path / "b").close()
    check(tmp_path / "b", tmp_path / "a")


def test_a_push_that_found_all_there_may_be_followed_by_a_rebalance(tmp_path: Path) -> None:
    make(tmp_path / "a").close()
    with ws.RecordStore.open(tmp_path / "a", "a") as store:
        store.push(tmp_path / "remote")
        (tmp_path / "a" / "remote.json").unlink()
        store.push(tmp_path / "remote")
        store.delete([1, 2, 3])
        store.rebalance()
        store.push(tmp_path / "remote")
    ws.RecordStore.clone(tmp_path / "remote", tmp_path / "b").close()
    check(tmp_path / "b", tmp_path / "a")


def test_who_may_not_remove_may_push(tmp_path: Path) -> None:
    if find_nginx() is None:
        pytest.skip("nginx with its module dav-ext is not there: python -m tests.remote.packages gets it")

    class Keeper(Nginx):
        def command(self) -> Sequence[str]:
            command = super().command()
            config = self.folder / "nginx.conf"
            config.write_text(config.read_text().replace("PUT DELETE", "PUT"))
            return command

    with Keeper(tmp_path / "nginx") as server, make(tmp_path / "a", 50) as store:
        for _ in range(7):
            add(store, 50)
            assert store.push(f"{server.url}/a").chunks
        with Remote(f"{server.url}/a").open() as objects:
            assert read_heads(objects)[0].sequence == 7


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
def test_a_folder_that_can_only_be_read_is_pushed(seen_by_all: Path) -> None:
    make(seen_by_all / "a", 50).close()
    (seen_by_all / "remote").mkdir()
    (seen_by_all / "remote").chmod(0o777)
    program = """if True:
        import os, sys
        import warmstore as ws
        import obstore, obstore.store, tqdm, warmstore.replicate.record_store
        os.setuid(65534)
        with ws.RecordStore.open(sys.argv[1]) as store:
            assert store.push(sys.argv[2]).chunks == 1
            assert store.push(sys.argv[2]).chunks == 0
    """
    command = [sys.executable, "-c", program, str(seen_by_all / "a"), str(seen_by_all / "remote")]
    assert warm.run(command, check=False).returncode == 0


@pytest.mark.slow
def test_s3_dies_with_all_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with S3(tmp_path / "s3") as server, make(tmp_path / "a", 100) as store:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        assert store.push(f"s3://{BUCKET}/a").chunks > 0
        server.kill()
        with pytest.raises(RemoteUnavailable):
            store.push(f"s3://{BUCKET}/a")
        server.start()
        assert store.push(f"s3://{BUCKET}/a").chunks > 0
        with ws.RecordStore.clone(f"s3://{BUCKET}/a", tmp_path / "b") as copy:
            assert same(copy, store)


# Networks that lie


def each_request(proxy: Proxy, fault: str, do: Callable[[int], Any]) -> int:
    """Do something again and again, with the fault at the n-th request, until it has no n-th one; returns n."""
    for number in range(1000):
        proxy.reset({number: fault})
        do(number)
        if len(proxy.requests) <= number:
            return number
    raise AssertionError


@pytest.mark.parametrize("fault", thinned(12, FAULTS))
def test_every_fault_at_every_request_of_a_pull(fault: str, behind_proxy: str, s3_proxy: Proxy, tmp_path: Path) -> None:
    with make(tmp_path / "a", 150) as store:
        store.push(behind_proxy)

        def pull(number: int) -> None:
            target = tmp_path / f"b{number}"
            try:
                ws.RecordStore.clone(behind_proxy, target).close()
            except (Damaged, RemoteUnavailable, NotAStore):  # half a listing may be none
                ws.RecordStore.clone(behind_proxy, target).close()
            with ws.RecordStore.open(target) as copy:
                assert same(copy, store)

        assert each_request(s3_proxy, fault, pull) >= 5


def test_a_first_push_that_arrives_damaged_can_be_repeated(behind_proxy: str, s3_proxy: Proxy, tmp_path: Path) -> None:
    noticed = 0
    with make(tmp_path / "a", 150) as store:

        def push(number: int) -> None:
            nonlocal noticed
            url = f"{behind_proxy}/{number}"
            try:
                store.push(url)
            except Damaged:
                noticed += 1
                with pytest.raises(NotAStore):
                    ws.RecordStore.clone(url, tmp_path / f"b{number}")
                store.push(url)
                ws.RecordStore.clone(url, tmp_path / f"b{number}").close()

        each_request(s3_proxy, "corrupt_upload", push)
    assert noticed >= 2  # the log and the head; chunks are read later


@pytest.mark.parametrize("fault", thinned(12, FAULTS))
def test_every_fault_at_every_request_of_a_push(fault: str, behind_proxy: str, s3_proxy: Proxy, tmp_path: Path) -> None:
    with make(tmp_path / "a", 150) as store:

        def push(number: int) -> None:
            url = f"{behind_proxy}/{number}"
            try:
                store.push(url)
            except (Damaged, RemoteUnavailable, Diverged):
                s3_proxy.faults = {}
                store.push(url)
            asked = list(s3_proxy.requests)
            s3_proxy.faults = {}
            try:
                ws.RecordStore.clone(url, tmp_path / f"b{number}").close()
            except (Damaged, NotAStore):
                assert fault == "corrupt_upload"  # what arrived broken is found when it is read, and can be mended
                store.push(url, verify=True)
                ws.RecordStore.clone(url, tmp_path / f"b{number}").close()
            with ws.RecordStore.open(tmp_path / f"b{number}") as copy:
                assert same(copy, store)
            s3_proxy.requests = asked

        assert each_request(s3_proxy, fault, push) >= 5


# What somebody put there


def test_names_that_lead_elsewhere(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    with make(tmp_path / "a", 100) as store:
        store.push(str(remote))
    (head,) = remote.rglob("heads/*/*.json")
    good = head.read_text()
    outside = tmp_path / "outside"
    outside.write_text("mine")

    def tampered(change: Callable[[dict[str, Any]], None]) -> None:
        from warmstore.storage.checked_json import checksum_of

        content = json.loads(good)
        del content["checksum"]
        change(content)
        content["checksum"] = checksum_of(content)
        head.write_text(json.dumps(content))

    def chunk(content: dict[str, Any]) -> None:
        content["chunks"]["0"][0] = "../../outside"

    def number(content: dict[str, Any]) -> None:
        content["chunks"]["../../outside"] = content["chunks"].pop("0")

    def log(content: dict[str, Any]) -> None:
        content["log"] = "../../../outside"

    def size(content: dict[str, Any]) -> None:
        content["chunks"]["0"][1] = 1 << 50

    def generation(content: dict[str, Any]) -> None:
        content["store"] = content["store"].replace('"generation": 1', '"generation": "../../outside"')

    def far(content: dict[str, Any]) -> None:
        content["chunks"]["1000000"] = content["chunks"]["0"]  # a table of 32 GB

    for change in (chunk, number, log, size, generation, far):
        tampered(change)
        with pytest.raises(Damaged):
            ws.RecordStore.clone(str(remote), tmp_path / "b")
    head.write_text(good)
    for name in ("..", "x/../../y.json", "0" * 32 + "/1.json", "0" * 32 + "/00000001.json.bak"):
        other = remote / "heads" / name.replace("..", "dots")
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_text("not a head")
    ws.RecordStore.clone(str(remote), tmp_path / "b").close()
    check(tmp_path / "b", tmp_path / "a")
    assert outside.read_text() == "mine"


def test_wrong_bytes_at_rest(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    with make(tmp_path / "a", 200) as store:
        store.push(str(remote))
        for path in sorted(remote.rglob("*")):
            if not path.is_file():
                continue
            good = path.read_bytes()
            path.write_bytes(good[: len(good) // 2] + bytes([good[len(good) // 2] ^ 1]) + good[len(good) // 2 + 1 :])
            with pytest.raises(Damaged):
                ws.RecordStore.clone(str(remote), tmp_path / f"without-{path.name}")
            path.write_bytes(good)
        ws.RecordStore.clone(str(remote), tmp_path / "b").close()
        chunk = next(path for path in remote.rglob("chunks/*") if not path.suffix)
        chunk.write_bytes(bytes(chunk.stat().st_size))
        assert store.push(str(remote)).chunks == 0
        assert store.push(str(remote), verify=True).chunks == 1
    ws.RecordStore.clone(str(remote), tmp_path / "c").close()
    check(tmp_path / "c", tmp_path / "a")


def test_secrets_are_not_shown(at_s3: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with make(tmp_path / "a", 50) as store:
        options = {"endpoint": "http://127.0.0.1:1", "secret_access_key": "not-to-be-seen-1"}
        url = "https://name:not-to-be-seen-2@127.0.0.1:1/x"
        said = [repr(Remote(at_s3, options)), repr(Remote(url)), repr(Remote(url.replace("seen-2", "s@en-2")))]
        with pytest.raises(ValueError, match="query") as refused:
            Remote(f"{url}?sig=not-to-be-seen-3")
        said.append(str(refused.value))
        for remote, more in ((at_s3, options), (url, None)):
            with pytest.raises((RemoteUnavailable, RemoteRefused)) as raised:
                store.push(remote, remote_options=more)
            said += [str(raised.value), repr(raised.value), caplog.text]
        said += [path.read_text() for path in (tmp_path / "a").glob("*.json")]
        assert "not-to-be-s" not in " ".join(said)
        assert "en-2" not in " ".join(said)


def test_old_heads_go(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    with make(tmp_path / "a", 50) as store:
        for _ in range(8):
            add(store, 50)
            store.push(str(remote))
        assert len(list(remote.rglob("heads/*/*.json"))) == 5
        with Remote(str(remote)).open() as objects:
            assert read_heads(objects)[0].sequence == 8


@pytest.mark.parametrize("kind", thinned(2, ["store", "cache", "bounded cache"]))
def test_a_push_beside_a_process_that_removes_chunks(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebalance or an eviction removes the chunk that is about to be sent."""
    options = {"max_size": "4MB"} if kind == "bounded cache" else {}
    module = push if kind == "store" else push_part
    mapped, removed = module.mapped, []

    def late(path: Path, *arguments: Any) -> memoryview:
        if not removed:
            removed.append(path)
            remove()
            assert not path.exists()
        return mapped(path, *arguments)

    monkeypatch.setattr(module, "mapped", late)
    url = (tmp_path / "remote").as_uri()
    if kind == "store":
        with make(tmp_path / "s") as store, ws.RecordStore.open(tmp_path / "s", "a") as other:

            def remove() -> None:
                other.delete([3])
                other.rebalance(progress=False)

            store.push(url, progress=False)
            with ws.RecordStore.clone(url, tmp_path / "copy") as copy:
                assert same(copy, other)
    else:
        with (
            ws.FeatureCache(tmp_path / "c", "c", **options) as cache,
            ws.FeatureCache(tmp_path / "c", "c", **options) as other,
        ):

            def put(ids: range) -> None:
                other.put_batch(ids, np.repeat(np.arange(ids.start, ids.stop, dtype=np.float32)[:, None], 500, 1))
                other.flush()

            def remove() -> None:
                if options:
                    for first in range(100, 3000, 100):
                        put(range(first, first + 100))
                else:
                    other.rebalance(progress=False)

            put(range(100))
            other._session.version.settled_store()
            cache.push(url, progress=False)
        with ws.FeatureCache(tmp_path / "copy", "c") as copy:
            copy.pull(url)
            assert len(copy) > 100 if options else len(copy) == 100
            ids = [each for each in range(3000) if each in copy]
            assert copy.get_batch(ids)[0][:, 7].tolist() == ids
    assert removed
