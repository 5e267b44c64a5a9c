"""Objects in a folder and over real sockets: right bytes, or one of two errors without secrets in them."""

import asyncio
import contextlib
import http.server
import os
import socket
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

import pytest
from tests.remote.proxy import Proxy
from tests.remote.servers import BUCKET, S3, s3_variables

from warmstore.errors import BadArtifact, RemoteRefused, RemoteUnavailable
from warmstore.remote.limits import RequestLimits
from warmstore.remote.objects import Entry, Objects

HASTY = RequestLimits(connect=0.3, read_timeout=0.3, request=0.3, retries=0, failures=2, cooldown=60)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Objects]:
    with Objects(tmp_path / "remote") as objects:
        yield objects


@pytest.fixture
def mute() -> Iterator[str]:
    """A server that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://somebody:hunter22@127.0.0.1:{server.getsockname()[1]}/cache"


def test_what_was_put_is_there(folder: Objects) -> None:
    assert folder.entries() == []
    assert folder.get("a/b") is None
    assert folder.size("a/b") is None
    assert folder.put("a/b", b"0123456789")
    assert folder.put("a/bc", b"")
    assert folder.get("a/b") == b"0123456789"
    assert folder.get("a/bc") == b""
    assert folder.get("a/b", 2, 5) == b"234"
    assert folder.get("a/b", 7) == b"789"
    assert folder.size("a/b") == 10
    (entry,) = folder.entries("a")[:1]
    assert entry == Entry("a/b", 10, entry.modified)
    folder.delete(["a/b", "never"])
    assert folder.get("a/b") is None


def test_a_file_is_put_whole(folder: Objects, tmp_path: Path) -> None:
    content = bytes(range(256)) * 50_000
    (tmp_path / "file").write_bytes(content)
    folder.put("large", tmp_path / "file")
    assert folder.get("large") == content


def test_creating_never_overwrites(folder: Objects) -> None:
    async def both() -> list[bool]:
        return await folder.each(lambda data: folder.put_async("one", data, create=True), [b"a", b"b", b"c", b"d"])

    assert sorted(folder.run(both())) == [False, False, False, True]
    assert not folder.put("one", b"e", create=True)
    assert folder.get("one") in (b"a", b"b", b"c", b"d")


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "a//b", "./a"])
def test_a_name_that_leads_elsewhere_is_refused(folder: Objects, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").write_bytes(b"secret")
    folder.put("a/b", b"")
    with pytest.raises(ValueError, match="path"):
        folder.get(name)
    with pytest.raises(ValueError, match="path"):
        folder.put(name, b"changed")
    assert (tmp_path / "outside").read_bytes() == b"secret"


def test_more_than_is_wanted_is_not_taken(folder: Objects) -> None:
    folder.put("large", bytes(1000))
    assert folder.get("large", most=1000) == bytes(1000)
    with pytest.raises(BadArtifact, match="the most is 999"):
        folder.get("large", most=999)


def test_a_remote_that_is_not_there_says_so_soon_and_is_then_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with Objects(f"http://127.0.0.1:{port}/", limits=HASTY) as objects:
        for _ in range(2):
            with pytest.raises(RemoteUnavailable, match=r"127\.0\.0\.1"):
                objects.get("a")
        with pytest.raises(RemoteUnavailable, match="tried again later"):
            objects.get("a")


def test_a_remote_that_hangs_is_given_up_in_time_and_no_secret_is_told(mute: str) -> None:
    with Objects(mute, limits=HASTY) as objects:
        assert "hunter22" not in repr(objects)
        assert "hunter22" not in repr(objects.location)
        with pytest.raises(RemoteUnavailable, match=r"in time|timed out|HTTP error") as caught:
            objects.get("a")
        told = "".join(traceback.format_exception(caught.value))
        assert "hunter22" not in told
        assert caught.value.__context__ is None


def test_what_hangs_can_be_given_up_at_once(mute: str) -> None:
    hour = 3600.0  # a test that waited for it would end by its timeout
    objects = Objects(mute, limits=RequestLimits(connect=hour, read_timeout=hour, request=hour))
    future = objects.submit(objects.get_async("a"))
    objects.close()
    assert future.done()
    assert not any(thread.name == "warmstore-remote" for thread in threading.enumerate())


def test_nothing_is_asked_when_offline(mute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMSTORE_OFFLINE", "1")
    with Objects(mute) as objects, pytest.raises(RemoteUnavailable, match="WARMSTORE_OFFLINE"):
        objects.get("a")


def test_the_first_error_ends_all(folder: Objects) -> None:
    ended = []

    async def work(number: int) -> None:
        if number == 3:
            raise RemoteUnavailable("three")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(number)

    with pytest.raises(RemoteUnavailable, match="three"):
        folder.run(folder.each(work, range(6)))
    assert sorted(ended) == [0, 1, 2, 4, 5]


def test_what_is_asked_while_it_closes_ends_too(tmp_path: Path) -> None:
    for _ in range(200):
        objects = Objects(tmp_path)
        ended = threading.Event()

        def ask(objects: Objects, ended: threading.Event) -> None:
            with contextlib.suppress(RemoteUnavailable, CancelledError):
                while True:
                    objects.get("a")
            ended.set()

        thread = threading.Thread(target=ask, args=(objects, ended), daemon=True)
        thread.start()
        objects.close()
        assert ended.wait(120)
        thread.join()


def test_what_was_closed_unused_stays_closed(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    objects.close()
    with pytest.raises(RemoteUnavailable, match="was closed"):
        objects.get("a")


def test_a_slow_line_may_send_and_still_no_answer_is_waited_for_without_end(
    s3_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_variables(s3_proxy.url).items():
        monkeypatch.setenv(name, value)
    s3_proxy.latency = 0.6  # more than may pass in silence
    with Objects(f"s3://{BUCKET}/slow", limits=HASTY) as objects:
        assert objects.put("one", bytes(1000))
        assert objects.put("two", bytes(1000), create=True)
        assert objects.put("large", bytes(12 << 20))  # in parts
        with pytest.raises(RemoteUnavailable):
            objects.get("one")
    hasty = replace(HASTY, sending=0.3)
    with Objects(f"s3://{BUCKET}/slow", limits=hasty) as objects, pytest.raises(RemoteUnavailable):
        objects.put("three", bytes(1000))


def test_a_bucket_that_does_not_exist_is_an_error_and_not_an_object_that_is_there(
    s3_server: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.variables.items():
        monkeypatch.setenv(name, value)
    with Objects("s3://no-such-bucket/x") as objects:
        with pytest.raises(RemoteUnavailable, match="NoSuchBucket, The specified"):
            objects.entries()
        for create in (False, True):
            with pytest.raises(RemoteUnavailable, match="no such bucket"):
                objects.put("a", b"x", create=create)


def test_why_nothing_answers_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    with Objects(url, limits=HASTY) as objects, pytest.raises(RemoteUnavailable, match="Connection refused"):
        objects.get("a")


def test_options_that_webdav_has_not_are_refused() -> None:
    with pytest.raises(ValueError, match="has no option 'endpoint'"):
        Objects("http://host/x", options={"endpoint": "y", "headers": {}})


def test_a_forked_child_is_told_at_once_that_it_cannot_ask(folder: Objects, tmp_path: Path) -> None:
    folder.put("a", b"x")
    child = os.fork()
    if not child:
        try:
            Objects(tmp_path / "remote").get("a")  # its own: obstore's threads are the parent's all the same
        except RemoteUnavailable as error:
            os._exit(0 if "spawn" in str(error) else 1)
        except BaseException:
            os._exit(2)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class _Refusing(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(403)
        body = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_a_listing_that_is_refused_is_told_apart_from_no_answer() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        keys = {"access_key_id": "me", "secret_access_key": "hunter22", "region": "r"}
        options = {"endpoint": f"http://127.0.0.1:{server.server_port}", **keys}
        with Objects("s3://bucket/x", options=options) as objects, pytest.raises(RemoteRefused, match="Access Denied"):
            objects.entries()
        server.shutdown()
        thread.join()


def test_data_that_trickles_in_is_seen_to_flow() -> None:
    came = threading.Semaphore(0)
    pieces: list[int] = []

    def flowed(size: int) -> None:
        pieces.append(size)
        came.release()

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nETag: x\r\nLast-Modified: Sat, 01 Jan 2000 00:00:00 GMT\r\n")
            connection.sendall(b"Content-Length: 160000\r\n\r\n")
            for _ in range(4):
                connection.sendall(bytes(40_000))
                if not came.acquire(timeout=120):  # no more before the other end has noticed
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        with Objects(f"http://127.0.0.1:{server.getsockname()[1]}/x") as objects:
            got = objects.run(objects.get_async("a", flowed=flowed))
        thread.join()
    assert got == bytes(160_000)
    assert sum(pieces) == 160_000
    assert len(pieces) >= 4 + 1


def test_requests_of_a_folder_are_few_at_a_time(tmp_path: Path) -> None:
    """Each has a thread of its own there."""
    running, most = 0, 0

    async def request(number: int) -> int:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0)
        running -= 1
        return number

    for url, expected in ((tmp_path.as_uri(), 8), ("s3://bucket/prefix", 32)):
        most = 0
        with Objects(url) as objects:
            assert objects.run(objects.each(request, range(100))) == list(range(100))
        assert most == expected
