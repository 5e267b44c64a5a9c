"""Segment logs: many writers, folds at once, damage, forged names, and the requests of each."""

import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.remote.memory import Count, MemoryObjects
from tests.slow import either, thinned

from warmstore.errors import Damaged, NotTrusted
from warmstore.remote import segment_bundles
from warmstore.remote.mirror import Mirror
from warmstore.remote.segment_bundles import Bundle, Segment, bundle_bytes, segment_bytes
from warmstore.remote.segment_log import LogState, SegmentLog
from warmstore.remote.segment_names import Checksums, LogName, Signatures, hash_of
from warmstore.remote.signing import Keyring, SigningKey

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")


class Host:
    """One host: its own log over the shared store."""

    def __init__(self, objects: MemoryObjects, vouching: Any = None, folder: Path | None = None) -> None:
        self.objects = objects
        self.log = SegmentLog("log", vouching or Checksums(), Mirror(folder))

    def read(self) -> LogState:
        return self.objects.run(self.log.read(self.objects))

    def append(self, payload: bytes, state: LogState | None = None, replaces: Any = ()) -> str:
        state = state or self.read()
        return self.objects.run(self.log.append(self.objects, payload, state, replaces=replaces)).name.hash

    def payloads(self) -> set[bytes]:
        return {segment.payload for segment in self.read().segments}


@pytest.fixture
def objects() -> Iterator[MemoryObjects]:
    with MemoryObjects() as objects:
        yield objects


def test_what_is_appended_is_read(objects: MemoryObjects) -> None:
    host, other = Host(objects), Host(objects)
    assert not host.read().segments
    for number in range(50):
        (host if number % 2 else other).append(b"%d" % number)
    assert host.payloads() == other.payloads() == Host(objects).payloads() == {b"%d" % n for n in range(50)}


def test_requests(objects: MemoryObjects) -> None:
    """The bars: an idle reading, one batch, and the first reading of what a thousand writers have appended."""
    writers = either(110, 1000)
    count: Count = objects.count
    sent = []
    idle = Host(objects)
    for number in range(writers):
        host = Host(objects)
        state = host.read()
        count.reset()
        host.append(b"%d" % number + random.randbytes(200).hex().encode(), state)
        sent.append((len(count), count.sent))
        if number % 100 == 0:
            idle.read()
            count.reset()
            idle.read()
            assert len(count) == 1
            assert count.received < 100_000
    assert max(requests for requests, _ in sent) <= 3  # and its listing
    assert sum(requests for requests, _ in sent) < 1.2 * writers
    count.reset()
    assert len(Host(objects).read().segments) == writers
    assert len(count) <= 4
    idle.read()
    count.reset()
    idle.read()
    assert len(count) == 1
    assert count.received < 100_000


def test_hosts_keep_what_they_fetched(objects: MemoryObjects, tmp_path: Path) -> None:
    for number in range(40):
        Host(objects).append(b"%d" % number)
    Host(objects, folder=tmp_path / "mirror").read()
    objects.count.reset()
    assert len(Host(objects, folder=tmp_path / "mirror").read().segments) == 40  # another process of the host
    assert objects.count.requests == [("list", "log")]


@pytest.mark.parametrize("seed", thinned(6, range(6)))
def test_hosts_that_write_at_once_lose_nothing(objects: MemoryObjects, seed: int, monkeypatch: Any) -> None:
    """Each host appends to a state that is as old as it may be: others have folded and removed meanwhile."""
    monkeypatch.setattr("warmstore.remote.segment_log._GARBAGE", 4)
    monkeypatch.setattr("warmstore.remote.segment_log._PACKED", 300)
    chance = random.Random(seed)
    random.seed(seed)
    hosts = [Host(objects) for _ in range(8)]
    states = {host: host.read() for host in hosts}
    appended: set[bytes] = set()
    for number in range(either(100, 300)):
        host = chance.choice(hosts)
        payload = b"%d" % number
        host.append(payload, states[host])
        appended.add(payload)
        states[host] = host.read()
        assert states[host].segments is not None
        if number % 10 == 0:
            assert Host(objects).payloads() == appended
        if chance.random() < 0.3:
            states[chance.choice(hosts)] = hosts[0].read()
    assert Host(objects).payloads() == appended
    assert len(Host(objects).read().listed) < 60


def test_a_damaged_object_is_left_out(objects: MemoryObjects) -> None:
    for number in range(30):
        Host(objects).append(b"%d" % number)
    whole = Host(objects).payloads()
    names = [entry.name for entry in objects.entries("log")]
    for name in names:
        good = objects.get(name)
        assert good is not None
        objects.put(name, good[:-3] + b"bad")
        state = Host(objects).read()
        assert {segment.payload for segment in state.segments} <= whole
        parsed = LogName.parse(name.removeprefix("log/"))
        assert parsed is not None
        if parsed.depth < 0:
            assert len(state.segments) >= 29
        else:
            assert len(state.segments) >= 20  # an older head is used
        Host(objects).append(b"more", state)  # a fold does not replace what it could not read
        whole.add(b"more")
        objects.put(name, good)
        assert Host(objects).payloads() == whole


def test_an_object_that_is_removed_while_a_reader_reads(objects: MemoryObjects) -> None:
    reader, writer = Host(objects), Host(MemoryObjects(objects.store))
    writer.append(b"first")
    moves = iter([True])

    def change(name: str, data: bytes | None) -> bytes | None:
        if data is not None and "/s-" in name and next(moves, False):
            writer.objects.run(writer.log.fold(writer.objects, writer.read()))
            writer.objects.delete([name])
            return None
        return data

    objects.change = change
    with writer.objects:
        assert reader.payloads() == {b"first"}


def test_replaced_segments_do_not_count(objects: MemoryObjects) -> None:
    host = Host(objects)
    old = [host.append(b"old %d" % number) for number in range(5)]
    host.append(b"new", replaces=old)
    for number in range(20):
        assert b"new" in host.payloads()
        assert not any(payload.startswith(b"old") for payload in Host(objects).payloads())
        host.append(b"%d" % number)


def signatures(key: SigningKey | None = None) -> Signatures:
    return Signatures(Keyring((key or SigningKey.parse("hmac:" + "ab" * 32),)), "test")


@pytest.mark.parametrize("kind", ["hmac", "ed25519"])
def test_signed_names(objects: MemoryObjects, kind: str) -> None:
    if kind == "ed25519":
        pytest.importorskip("cryptography")
    key = SigningKey.new(kind)
    for number in range(9):
        Host(objects, signatures(key)).append(b"%d" % number)
    whole = {b"%d" % number for number in range(9)}
    assert Host(objects, signatures(key.public)).payloads() == whole
    assert Host(objects).payloads() == whole  # who needs no signatures takes signed ones
    with pytest.raises(NotTrusted):
        Host(objects, Signatures(Keyring(), "test"))
    if kind == "ed25519":
        with pytest.raises(NotTrusted, match="sign"):
            Host(objects, signatures(key.public)).append(b"x")


def test_forged_names_cost_nothing_and_hide_nobody(objects: MemoryObjects) -> None:
    """Everything that a peer without a key can write: heads of any depth, segments, copies under other names."""
    for number in range(9):
        Host(objects, signatures()).append(b"%d" % number)
    whole = {b"%d" % number for number in range(9)}
    listed = [entry.name.removeprefix("log/") for entry in objects.entries("log")]
    forger = signatures(SigningKey.new())
    large = bytes(1 << 20)
    for number in range(either(50, 200)):
        objects.put(f"log/h{99999999 - number}-{hash_of(large)}", large)
        objects.put(f"log/{forger.name(f'h{number + 10**7:08d}', large).text}", large)
        objects.put(f"log/{forger.name('s', b'%d' % number).text}", b"%d" % number)
    for text in listed:
        name = LogName.parse(text)
        assert name is not None
        assert name.signature is not None
        for kind in ("s", "h99999998"):
            objects.put(f"log/{kind}-{name.hash}.h.{name.signature[1]}.{name.signature[2]}", b"forged")
        objects.put(f"log/{text[:3]}{'0' * 64}{text[text.index('.') :]}", b"forged")
    Host(objects).append(b"unsigned")
    objects.count.reset()
    state = Host(objects, signatures()).read()
    assert {segment.payload for segment in state.segments} == whole
    assert len(objects.count) <= 8
    assert objects.count.received < 1_000_000
    assert state.problems


def test_a_head_of_a_holder_of_a_key_does_not_vouch_for_its_segments(objects: MemoryObjects) -> None:
    """A host without keys folded segments that nobody signed; a host with a key folds its heads, and takes nothing."""
    host = Host(objects, signatures())
    host.append(b"signed")
    stranger = Host(objects)
    stranger.append(b"unsigned")
    state = stranger.read()
    assert {segment.payload for segment in state.segments} == {b"signed", b"unsigned"}
    objects.run(host.log.fold(objects, state))
    assert Host(objects, signatures()).payloads() == {b"signed"}


def test_hosts_without_keys_remove_nothing_that_is_signed(objects: MemoryObjects) -> None:
    signed = {Host(objects, signatures()).append(b"signed %d" % number) for number in range(9)}
    for number in range(either(150, 500)):
        Host(objects).append(b"%d" % number, replaces=[*signed][:1])
    assert len(Host(objects, signatures()).payloads()) == 9
    assert len(objects.entries("log")) < either(150, 500)  # their own objects they remove
    Host(objects, signatures()).append(b"new", replaces=signed)
    assert Host(objects, signatures()).payloads() == {b"new"}


def test_packs_stay_few(objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmstore.remote.segment_log._PACKED", 2000)
    host = Host(objects)
    payloads = {random.randbytes(100) for _ in range(600)}
    objects.count.reset()
    for payload in payloads:
        host.append(payload)
    sent = objects.count.sent
    assert Host(objects).payloads() == payloads
    (head,) = (bundle for _, bundle in host.read().heads)
    assert 1 < len(head.packs) < 20
    assert sent < 20 * 600 * 200


def test_a_host_that_cannot_read_a_pack_takes_it_from_nobody(
    objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmstore.remote.segment_log._PACKED", 2000)
    host, other = Host(objects), Host(objects)
    payloads = [random.randbytes(100) for _ in range(240)]
    for payload in payloads[:200]:
        host.append(payload)
    packs = {pack for _, head in host.read().heads for pack, _ in head.packs}
    get = objects.get_async

    async def cut_off(name: str, *arguments: Any, **options: Any) -> Any:
        data = await get(name, *arguments, **options)
        return data[:-1] if name.rpartition("/")[2] in packs else data

    with monkeypatch.context() as patch:
        patch.setattr(objects, "get_async", cut_off)
        assert len(other.payloads()) < 200
        for payload in payloads[200:]:
            other.append(payload)
    assert Host(objects).payloads() == set(payloads)
    objects.run(other.log.fold(objects, other.read(), forget={f"packs/{pack}" for pack in packs}))
    objects.delete([f"packs/{pack}" for pack in packs])  # as a repair does
    assert Host(objects).payloads() == set(payloads)


@pytest.mark.parametrize("packed", [10, 1 << 19])
def test_what_was_replaced_does_not_count_again(
    packed: int, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmstore.remote.segment_log._PACKED", packed)
    host, now = Host(objects), b"value 0"
    last = host.append(now)
    for number in range(1, 60):
        host.append(b"another %d" % number)
        if number % 5 == 0:
            now = b"value %d" % number
            last = host.append(now, replaces=[last])  # but not what that one has replaced
        payloads = Host(objects).payloads()
        assert {payload for payload in payloads if payload.startswith(b"value")} == {now}
        assert len(payloads) == 1 + number


def test_reading_a_bundle_takes_the_memory_of_what_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    segment = segment_bytes(b"x" * 5000)
    data = bundle_bytes([(Segment.parse(Checksums().name("s", segment), segment), 0)])
    tracemalloc.start()
    try:
        assert [segment.payload for segment, _ in Bundle.parse(data, "a head").segments] == [b"x" * 5000]
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    monkeypatch.setattr(segment_bundles, "_MOST_UNPACKED", 5000)
    with pytest.raises(Damaged, match="unpacks to more than 5,000 bytes"):
        Bundle.parse(data, "a head")
