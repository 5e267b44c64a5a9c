"""Hosts with folders of their own share what they compiled, and only what is signed and whole comes in."""

import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.compiling.environments import HERE, elsewhere
from tests.compiling.hosts import FILE, KEY, OTHER_KEY, host
from tests.remote.proxy import FAULTS, Proxy
from tests.remote.servers import Nginx, s3_variables
from tests.slow import either, thinned

from warmstore.compiling.remote.remote_memory import RemoteMemory
from warmstore.compiling.remote.remote_prune import prune
from warmstore.compiling.remote.signed_manifests import MANIFESTS, SignedManifest, blob_name, namespace_of, payload_of
from warmstore.remote.limits import RequestLimits
from warmstore.remote.objects import Objects
from warmstore.remote.segment_bundles import segment_bytes
from warmstore.remote.segment_names import SEGMENT, Checksums, Signatures
from warmstore.remote.signing import Keyring, SigningKey

HASTY = RequestLimits(connect=0.5, read_timeout=0.5, request=0.5, retries=0)
NUMBERS = range(4)


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A folder as the remote, with what one host made."""
    with host(tmp_path / "first", tmp_path / "remote") as first:
        first.make(*NUMBERS)
    return tmp_path / "remote"


def manifests(remote: Path) -> list[Path]:
    return sorted(path for path in (remote / MANIFESTS).rglob("*") if path.is_file())


def test_what_one_host_made_another_has(remote: Path, tmp_path: Path) -> None:
    with host(tmp_path / "second", remote) as second:
        assert all(second.has(number) for number in NUMBERS)
        assert not second.has(77)
        found = second.find(0)
        assert second.counters["remote hit"] == len(NUMBERS)
        assert second.counters["remote miss"] == 1
    assert found is not None
    assert (found.environment, found.requirements) == (HERE, {})
    assert len(manifests(remote)) == 1, "what is there already is not published again"


def test_a_host_that_is_closed_while_it_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that ends a moment after it has compiled: the manifest is not left out."""
    with host(tmp_path / "first", tmp_path / "remote") as first:
        sign = first.tier._sign

        def sign_at_the_end(*arguments: Any) -> None:
            while not first.tier._closing:
                time.sleep(0.001)
            sign(*arguments)

        monkeypatch.setattr(first.tier, "_sign", sign_at_the_end)
        first.make(*NUMBERS)
        while first.tier._offered:
            time.sleep(0.001)
    with host(tmp_path / "second", tmp_path / "remote") as second:
        assert all(second.has(number) for number in NUMBERS)


def test_what_is_compiled_to_other_bytes_takes_the_place_of_a_damaged_blob(remote: Path, tmp_path: Path) -> None:
    for blob in (remote / "compiled/2/blobs").rglob("*"):
        if blob.is_file():
            blob.write_bytes(b"damaged")
    with host(tmp_path / "second", remote) as second:
        assert not second.has(0)
        second.tier.offer(second.store.put("k/0", "cpp.so", b"other bytes", environment=HERE, job="job"))
    with host(tmp_path / "third", remote) as third:
        assert third.tier.fetch("k/0")
        found = third.find(0)
        assert found is not None
        assert third.store.read(found) == b"other bytes"
        assert not third.has(1)


def test_a_job_is_fetched_ahead_and_other_things_when_they_are_missed(remote: Path, tmp_path: Path) -> None:
    with host(tmp_path / "other", remote, job="other") as other:
        other.make(8, 9)
    with host(tmp_path / "second", remote, job="other") as second:
        second.tier.fetch_job("other")
        assert {one.key for one in second.store.all("other")} == {"k/8", "k/9"}
        assert second.tier.fetch("k/")
        assert second.find(1) is not None
        assert second.tier.fetch_job("job") == 0
        assert second.tier.fetch_job("nobody") == 0


def test_what_cannot_be_used_here_does_not_come(remote: Path, tmp_path: Path) -> None:
    with host(tmp_path / "second", remote, environment=elsewhere(isa=("avx",))) as second:
        assert not second.has(0)
    with host(tmp_path / "third", remote, environment=elsewhere(torch="2.14.0")) as third:
        assert not third.has(0)
        third.make(0)
    assert len({path.parent for path in manifests(remote)}) == 2


def test_hosts_in_processes_of_their_own_fill_one_remote(tmp_path: Path) -> None:
    sets = ["0,1,2", "2,3,4", "4,5,6"]
    running = [
        warm.popen(
            [sys.executable, FILE, tmp_path / f"host{place}", tmp_path / "remote", numbers],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(FILE.parents[2]), os.environ.get("PYTHONPATH", "")])},
        )
        for place, numbers in enumerate(sets)
    ]
    assert [process.wait(300) for process in running] == [0, 0, 0]
    assert len(manifests(tmp_path / "remote")) == 3
    with host(tmp_path / "reader", tmp_path / "remote") as reader:
        assert all(reader.has(number) for number in range(7))


def test_processes_of_one_host_never_overwrite_each_other(tmp_path: Path) -> None:
    hosts = [host(tmp_path / "shared", tmp_path / "remote") for _ in range(3)]
    opened = [one.__enter__() for one in hosts]
    for place, one in enumerate(opened):
        one.make(place, 10 + place)
    for one in hosts:
        one.__exit__(None, None, None)
    with host(tmp_path / "reader", tmp_path / "remote") as reader:
        assert all(reader.has(number) for number in (0, 1, 2, 10, 11, 12))


def test_many_hosts_cost_a_reader_few_requests(tmp_path: Path, on_s3: str, s3_proxy: Proxy) -> None:
    hosts = either(6, 12)
    for place in range(hosts):
        with host(tmp_path / f"host{place}", on_s3, job=f"job{place}") as one:
            one.make(place)
            assert one.tier.keys("nothing") == 0  # after the manifests were read
    s3_proxy.reset()
    with host(tmp_path / "reader", on_s3, job="none") as reader:
        assert all(reader.tier.keys(f"job{place}") == 1 for place in range(hosts))
        assert len(s3_proxy.requests) <= 4


# Trust


def signed(
    remote: Path, data: bytes, key: SigningKey = KEY, purpose: str = "remote manifest", kind: str = SEGMENT
) -> None:
    """Put a segment or head of these bytes into a remote, with a right name."""
    namespace = namespace_of(HERE)
    name = Signatures(Keyring((key,)), f"{purpose} {namespace}").name(kind, data).text
    (remote / MANIFESTS / namespace).mkdir(parents=True, exist_ok=True)
    (remote / MANIFESTS / namespace / name).write_bytes(data)


def forged(remote: Path, path: Path, **options: Any) -> None:
    data = path.read_bytes()
    path.unlink()
    signed(remote, data, **options)


def renamed(path: Path, name: str) -> None:
    path.rename(path.with_name(name))


UNTRUSTED: dict[str, Callable[[Path, Path], object]] = {
    "no signature": lambda remote, path: renamed(path, Checksums().name(SEGMENT, path.read_bytes()).text),
    "another key": lambda remote, path: forged(remote, path, key=OTHER_KEY),
    "signed for something else": lambda remote, path: forged(remote, path, purpose="bundle"),
    "signed as a head": lambda remote, path: renamed(path, f"h00000001{path.name[1:]}"),
    "another signature": lambda remote, path: renamed(path, f"{path.name[:-4]}0000"),
    "changed": lambda remote, path: path.write_bytes(path.read_bytes()[:-5] + b"wrong"),
    "cut off": lambda remote, path: path.write_bytes(path.read_bytes()[:-5]),
    "empty": lambda remote, path: path.write_bytes(b""),
    "deep": lambda remote, path: (path.unlink(), signed(remote, b"[" * 4000 + b"\n")),
    "no manifest": lambda remote, path: (path.unlink(), signed(remote, segment_bytes(b"nothing"))),
}


@pytest.mark.parametrize("what", UNTRUSTED)
def test_nothing_of_an_untrusted_manifest_comes_in(
    remote: Path, tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = manifests(remote)
    UNTRUSTED[what](remote, path)
    with host(tmp_path / "second", remote) as second:
        assert not any(second.has(number) for number in NUMBERS)
        assert second.counters["remote refused"] == 1
    lines = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert len(lines) == 1
    assert "not trusted" in lines[0].getMessage()


def test_a_public_key_is_enough_to_read_and_not_to_publish(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    private = SigningKey.new("ed25519")
    with host(tmp_path / "first", tmp_path / "remote", keyring=Keyring((private,))) as first:
        first.make(1)
    with host(tmp_path / "second", tmp_path / "remote", keyring=Keyring((private.public,))) as second:
        assert second.has(1)
        second.make(2)
    assert len(manifests(tmp_path / "remote")) == 1
    with host(tmp_path / "third", tmp_path / "remote", keyring=Keyring((SigningKey.new("ed25519").public,))) as third:
        assert not third.has(1)


def test_a_manifest_in_anothers_place_is_noticed(
    remote: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = manifests(remote)
    other = elsewhere(torch="2.14.0")
    (remote / MANIFESTS / namespace_of(other)).mkdir()
    path.rename(remote / MANIFESTS / namespace_of(other) / path.name)
    with host(tmp_path / "second", remote, environment=other) as second:
        assert second.tier.keys("job") == 0
        assert second.counters["remote refused"] == 1
    assert "is wrong" in caplog.text


def test_replaced_manifests_that_are_put_back_are_noticed(
    remote: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (old,) = manifests(remote)
    kept = old.read_bytes()
    with Objects(remote) as objects:
        prune(objects, Keyring((KEY,)), RemoteMemory(tmp_path / "collector", objects.identity), max_size=0)
    with host(tmp_path / "second", remote) as second:
        assert not second.has(0)
    assert not caplog.records
    for path in manifests(remote):
        path.unlink()
    old.write_bytes(kept)
    with host(tmp_path / "second", remote) as second:
        assert not second.tier.fetch("k/")
        assert second.counters["remote refused"] == 1
    assert "restored an old state" in caplog.text.replace("\n", " ")


@pytest.mark.parametrize("damage", ["missing", "changed", "longer", "empty"])
def test_bytes_that_are_not_what_was_signed_are_a_miss_and_are_published_anew(
    remote: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with host(tmp_path / "first", remote) as first:
        artifact = first.find(0)
    assert artifact is not None
    path = remote / blob_name(artifact.digest)
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"changed": whole[:-1] + b"x", "longer": whole + b"x", "empty": b""}[damage])
    with host(tmp_path / "second", remote) as second:
        assert not second.has(0)
        assert second.has(1)
        assert second.counters["remote failed"] >= 1
        second.make(0)
    assert path.read_bytes() == whole
    assert sum(one.levelno == logging.WARNING for one in caplog.records) == 1


@pytest.mark.parametrize("key", ["../../outside", "/etc/outside", "a/../../outside", "..", "a\\..\\b"])
def test_a_signed_key_that_leads_elsewhere_is_refused(remote: Path, tmp_path: Path, key: str) -> None:
    with host(tmp_path / "first", remote) as first:
        artifact = first.find(0)
    assert artifact is not None
    (path,) = manifests(remote)
    path.unlink()
    bad = SignedManifest(namespace_of(HERE), [replace(artifact, key=key)], {"job": [key]})
    signed(remote, segment_bytes(payload_of(bad)))
    with host(tmp_path / "second", remote) as second:
        assert second.tier.fetch_job("job") == 0
        assert not second.store.all()
        assert second.counters["remote refused"] == 1


@pytest.mark.parametrize("digest", ["../" * 20 + "etc/passwd", "0" * 63, "Z" * 64])
def test_a_signed_digest_that_is_none_is_refused(remote: Path, tmp_path: Path, digest: str) -> None:
    with host(tmp_path / "first", remote) as first:
        artifact = first.find(0)
    assert artifact is not None
    (path,) = manifests(remote)
    path.unlink()
    signed(remote, segment_bytes(payload_of(SignedManifest(namespace_of(HERE), [replace(artifact, digest=digest)]))))
    with host(tmp_path / "second", remote) as second:
        assert not second.tier.fetch("k/")
        assert second.counters["remote refused"] == 1


def test_names_in_a_listing_that_are_no_manifests_are_left_alone(remote: Path, tmp_path: Path) -> None:
    folder = remote / MANIFESTS / namespace_of(HERE)
    for name in ("notes.txt", "0" * 32 + ".1", "f" * 32 + f".{1:012}.old", "deeper/" + "0" * 32 + f".{1:012}"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"whatever")
    with host(tmp_path / "second", remote) as second:
        assert second.has(0)
        assert "remote refused" not in second.counters


# Never in the way


@pytest.fixture
def mute() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"http://me:hunter22@127.0.0.1:{server.getsockname()[1]}/cache"


@pytest.mark.parametrize("state", ["hanging", "dead"])
def test_a_remote_that_does_not_answer_costs_its_budget_once(
    mute: str, state: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = mute if state == "hanging" else "http://me:hunter22@127.0.0.1:9/cache"
    with host(tmp_path / "one", url, wait=0.5) as one:  # 500 s, if each key cost it
        one.make(1, 2)
        assert not any(one.has(number) for number in range(50, 1050))
        assert one.has(1)
        assert one.counters["remote failed"] == 1000
    assert len([line for line in caplog.records if line.levelno == logging.WARNING]) in (1, 2)
    assert "hunter22" not in caplog.text


def test_whatever_goes_wrong_is_a_miss(remote: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with host(tmp_path / "second", remote, job="another") as second:
        assert second.has(0)
        second.tier.objects.close()
        assert not second.has(1)
        assert second.tier.fetch_job("job") == 0
        assert second.counters["remote failed"] == 2
        second.make(60)
    assert "was closed" in caplog.text


@pytest.fixture
def on_s3(s3_proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for name, value in s3_variables(s3_proxy.url).items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/{re.sub(r'[^a-z0-9]', '-', tmp_path.name.lower())}"


def test_s3_is_a_remote_and_its_secrets_are_told_nowhere(
    on_s3: str, s3_proxy: Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with host(tmp_path / "first", on_s3) as first:
        first.make(*NUMBERS)
    with host(tmp_path / "second", on_s3) as second:
        assert all(second.has(number) for number in NUMBERS)
        assert "remote failed" not in second.counters
    s3_proxy.always = "error"
    with host(tmp_path / "third", on_s3, limits=HASTY) as third:
        assert not third.has(0)
    assert "a-secret-key-nobody-may-see" not in caplog.text
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert b"a-secret-key-nobody-may-see" not in path.read_bytes()


def test_nginx_is_a_remote(nginx: Nginx, tmp_path: Path) -> None:
    with host(tmp_path / "first", nginx.url + "/cache") as first:
        first.make(*NUMBERS)
        assert "remote failed" not in first.counters
    with host(tmp_path / "second", nginx.url + "/cache") as second:
        assert all(second.has(number) for number in NUMBERS)


@pytest.mark.parametrize("fault", thinned(6, FAULTS))
def test_any_fault_of_any_request_is_right_bytes_or_a_miss(
    on_s3: str, s3_proxy: Proxy, tmp_path: Path, fault: str
) -> None:
    limits = replace(HASTY, request=2.0, failures=100)
    with host(tmp_path / "first", on_s3) as first:
        first.make(1, 2)
    s3_proxy.reset()
    with host(tmp_path / "whole", on_s3) as second:
        assert second.has(1)
    requests = len(s3_proxy.requests)
    assert requests >= 3
    for number in range(requests):
        s3_proxy.reset({number: fault})
        with host(tmp_path / f"reader{number}", on_s3, limits=limits) as reader:
            reader.has(1)
            reader.has(2)
    s3_proxy.reset()
    with host(tmp_path / "writer", on_s3 + "/more") as writer:
        writer.make(1, 2)
    requests = len(s3_proxy.requests)
    for number in range(requests):
        s3_proxy.reset({number: fault})
        with host(tmp_path / f"writer{number}", f"{on_s3}/more{number}", limits=limits) as writer:
            writer.make(1, 2)
        s3_proxy.reset()
        with host(tmp_path / f"reader of {number}", f"{on_s3}/more{number}", limits=limits) as reader:
            reader.has(1)
            reader.has(2)
        with host(tmp_path / f"writer{number}", f"{on_s3}/more{number}") as writer:
            for artifact in writer.store.all():
                writer.tier.offer(artifact)
        with host(tmp_path / f"late reader of {number}", f"{on_s3}/more{number}") as reader:
            whole = reader.has(1) and reader.has(2)
            assert whole or fault == "corrupt_upload"


def test_a_miss_costs_no_request_once_it_is_known(on_s3: str, s3_proxy: Proxy, tmp_path: Path) -> None:
    with host(tmp_path / "first", on_s3) as first:
        first.make(1)
    s3_proxy.reset()
    with host(tmp_path / "second", on_s3) as second:
        assert second.has(1)
        before = len(s3_proxy.requests)
        assert not any(second.has(number) for number in range(50, 90))
        assert len(s3_proxy.requests) == before
    assert before == 3, "a listing, a manifest, the bytes"


def test_a_forked_child_leaves_the_remote_alone(remote: Path, tmp_path: Path) -> None:
    with host(tmp_path / "second", remote) as second:
        assert second.has(0)
        if (child := os.fork()) == 0:
            second.tier.leave()
            os._exit(second.tier.fetch("k/99"))
        assert os.waitpid(child, 0)[1] == 0
        second.make(40)
    with Objects(remote) as objects:
        assert objects.entries()
    with host(tmp_path / "third", remote) as third:
        assert third.has(40)
