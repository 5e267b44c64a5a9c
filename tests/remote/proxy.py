"""A proxy before a server that does what networks do: late, cut, failing, truncated and corrupt answers.

It counts the requests it gets, and does to the n-th one what it was told to. Threads in this process; one connection to
the server per request.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

FAULTS = ("cut", "lost", "error", "truncate", "shorten", "corrupt", "corrupt_upload")
"""What can happen to a request, besides being late or hanging.

cut: the connection ends before the server hears of it. lost: the server did it, and the answer never comes. error: 500.
truncate: half of the body, and the connection ends. shorten: half of the body, and the headers say that it is all.
corrupt: one bit of the answer's body is another. corrupt_upload: one bit of the request's.
"""


@dataclass
class Request:
    """What the proxy saw: "GET /bucket/name" and the bytes of both bodies."""

    method: str
    path: str
    range: str = ""
    sent: int = 0
    received: int = 0


@dataclass
class Proxy:
    """A context manager; listens at `url` and asks the server at `target`, both "http://127.0.0.1:PORT".

    Attributes:
        faults: By the number of the request, counted from 0 since `reset`: one of FAULTS, or "hang".
        always: A fault of every request, or None.
        latency: Seconds that each request waits before it goes on.
        requests: What came since `reset`.
        before: Called with the number of each request before anything is done with it.
    """

    target: str
    faults: dict[int, str] = field(default_factory=dict)
    always: str | None = None
    latency: float = 0.0
    requests: list[Request] = field(default_factory=list)
    before: Callable[[int, Request], None] | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ended = threading.Event()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def reset(self, faults: dict[int, str] | None = None) -> None:
        """Count from 0 again, with other faults."""
        with self._lock:
            self.requests = []
            self.faults = faults or {}

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            still_open = list(self._open)
        for connection in still_open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open.add(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), contextlib.closing(connection):
            reader = connection.makefile("rb", buffering=1 << 16)
            while not self._ended.is_set() and self._one(connection, reader):
                pass
        with self._lock:
            self._open.discard(connection)

    def _one(self, client: socket.socket, reader: "socket.SocketIO | object") -> bool:
        """Pass one request on; returns whether the connection goes on."""
        head, headers = _head(reader)
        method, path = head.split()[:2]
        request = Request(method.decode(), path.decode(), headers.get("range", ""))
        with self._lock:
            number = len(self.requests)
            self.requests.append(request)
            fault = self.faults.get(number, self.always)
        if self.before is not None:
            self.before(number, request)
        body = _body(reader, headers)
        request.sent = len(body)
        if self.latency:
            time.sleep(self.latency)
        if fault == "hang":
            self._ended.wait()
        if fault in ("cut", "hang"):
            return False
        if fault == "error":
            client.sendall(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 5\r\n\r\nwrong")
            return True
        if fault == "corrupt_upload" and body:
            body = _flipped(body)
        status, answered, answer, plain = self._ask(head, headers, body, request.method)
        request.received = len(answer)
        if fault == "lost":
            return False
        if fault == "corrupt" and answer:
            answer = _flipped(answer)
        if fault == "shorten":
            answer = answer[: len(answer) // 2]
            plain = False
        lines = [f"{name}: {value}" for name, value in answered.items() if name not in _HOP or (plain and not answer)]
        if not plain:
            lines.append(f"Content-Length: {len(answer)}")
        sent = answer[: len(answer) // 2] if fault == "truncate" else answer
        client.sendall("\r\n".join([status, *lines, "", ""]).encode("latin-1") + sent)
        return fault != "truncate"

    def _ask(
        self, head: bytes, headers: dict[str, str], body: bytes, method: str
    ) -> tuple[str, dict[str, str], bytes, bool]:
        """The status line, headers and body of the server's answer; and whether it never has a body."""
        host, port = self.target.removeprefix("http://").split(":")
        lines = [f"{name}: {value}" for name, value in headers.items() if name not in (*_HOP, "expect")]
        lines += ["Connection: close"] + ([f"Content-Length: {len(body)}"] if body or method in ("PUT", "POST") else [])
        with socket.create_connection((host, int(port)), 60) as server:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.sendall(head + "\r\n".join(["", *lines, "", ""]).encode("latin-1"))
            server.sendall(body)
            reader = server.makefile("rb", buffering=1 << 16)
            status, answered = _head(reader)
            bare = method == "HEAD" or status.split()[1] in (b"204", b"304")
            answer = b"" if bare else _body(reader, answered, to_end=True)
        return status.decode("latin-1"), answered, answer, bare


_HOP = ("connection", "content-length", "transfer-encoding", "keep-alive")


def _head(reader: "socket.SocketIO | object") -> tuple[bytes, dict[str, str]]:
    first = reader.readline().rstrip(b"\r\n")  # type: ignore[union-attr]
    if not first:
        raise EOFError
    headers = {}
    while line := reader.readline().rstrip(b"\r\n").decode("latin-1"):  # type: ignore[union-attr]
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return first, headers


def _body(reader: "socket.SocketIO | object", headers: dict[str, str], *, to_end: bool = False) -> bytes:
    if "chunked" in headers.get("transfer-encoding", ""):
        parts = []
        while size := int(reader.readline().split(b";")[0], 16):  # type: ignore[union-attr]
            parts.append(_exactly(reader, size))
            reader.readline()  # type: ignore[union-attr]
        reader.readline()  # type: ignore[union-attr]
        return b"".join(parts)
    if "content-length" in headers:
        return _exactly(reader, int(headers["content-length"]))
    return reader.read() if to_end else b""  # type: ignore[union-attr]


def _exactly(reader: "socket.SocketIO | object", size: int) -> bytes:
    data: bytes = reader.read(size)  # type: ignore[union-attr]
    if len(data) < size:
        raise EOFError
    return data


def _flipped(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(data) // 2] ^= 0x10
    return bytes(changed)
