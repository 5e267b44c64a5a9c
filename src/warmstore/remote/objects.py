"""Objects in a remote, by name: one way to speak with S3, Google, Azure, WebDAV and folders, built on obstore.

Requests run in a thread of their own, many at a time, and can be given up at any moment. Whatever goes wrong is one of
two errors without secrets in them; what is not there is None.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from warmstore.errors import BadArtifact, RemoteRefused, RemoteUnavailable, WarmstoreError
from warmstore.remote.limits import CircuitBreaker, RequestLimits
from warmstore.remote.location import Location, Redacted
from warmstore.remote.obstore_stores import obstore_package, store_of
from warmstore.remote.offline import OFFLINE, is_offline
from warmstore.remote.requests import Requests

T = TypeVar("T")

_PIECE = 256 << 10
_WATCHED = 32 << 10  # bytes of a piece where somebody asks whether data flows: many transfers share one line
_LIST = 1000
_SLOWEST = 16 << 10  # bytes a second that a piece makes when it flows, and an object that is sent
_SAID = 600  # letters of a message
_REFUSED = re.compile(r"status code: 40[13]\b|ExpiredToken")
_CAUSE = re.compile(r'(?:error|message): "([^"]+)"|(InvalidCertificate|TimedOut)')


@dataclass(frozen=True)
class Entry:
    """An object in a listing. `modified` is in seconds since 1970, by the clock of the remote."""

    name: str
    size: int
    modified: float


class Objects:
    """The objects below one URL. Threads may share it; forked children may not use it.

    Args:
        url: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, http(s)://host/path (WebDAV),
            file:///folder, or a folder. A name and password before the host are for HTTP.
        options: What obstore's store of that kind takes (S3Config, GCSConfig, AzureConfig), such as
            {"endpoint": "https://minio.example.org", "region": "us-east-1"}; for HTTP {"headers": {...}}.
        anonymous: Sign no requests.
        limits: What a request may take.
        parallel: How many requests go on at once.
        at_exit: Have it closed at exit, or when it is collected; else whoever made it does, and calls `leave` in forked
            children.

    Without options, credentials are found where the cloud's own tools find them. Nothing is asked before the first use.

    Raises:
        ValueError: the URL makes no sense.
        NotInstalled: obstore is not installed.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
        limits: RequestLimits | None = None,
        parallel: int = 32,
        at_exit: bool = True,
    ) -> None:
        self.location = Location.parse(url)
        self.limits = limits or RequestLimits()
        self.parallel = parallel
        self.breaker = CircuitBreaker(self.limits.failures, self.limits.cooldown)
        self._options = dict(options or {})
        unknown = sorted(set(self._options) - {"headers"})
        if unknown and self.location.kind == "http":
            raise ValueError(f"{self.location.url} takes no option {', '.join(unknown)}; for WebDAV there are headers")
        self._anonymous = anonymous
        self._redacted = Redacted(self.location, self._options)
        self._stores: dict[bool, Any] = {}
        self._requests = Requests(self.location.url, at_exit=at_exit)
        obstore_package()

    def __repr__(self) -> str:
        return f"Objects({self.location.url!r})"

    @property
    def is_conditional(self) -> bool:
        """Whether `put` with `create` never overwrites, whoever else writes at that moment."""
        return self.location.kind != "http"

    # One at a time. All of these raise RemoteUnavailable, RemoteRefused, and ValueError for a name that is none.

    def get(self, name: str, start: int = 0, stop: int | None = None, *, most: int | None = None) -> bytes | None:
        """The bytes of an object, or those from `start` to before `stop`. None where there is no such object.

        `most` refuses larger objects with a BadArtifact, before anything was taken.
        """
        return self.run(self.get_async(name, start, stop, most=most))

    def put(self, name: str, data: bytes | memoryview | Path, *, create: bool = False) -> bool:
        """Store an object whole. With `create`, False and nothing changed where there is one of that name."""
        return self.run(self.put_async(name, data, create=create))

    def size(self, name: str) -> int | None:
        """Bytes in an object. None where there is none."""
        return self.run(self.size_async(name))

    def entries(self, prefix: str = "") -> list[Entry]:
        """The objects whose names begin with the parts of `prefix` ("a/b" has "a/b/c" and not "a/bc"), by name."""
        return self.run(self.entries_async(prefix))

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects. Those that are not there are no error."""
        self.run(self.delete_async(names))

    # Many at a time: coroutines, for `submit` and `run`

    async def get_async(
        self,
        name: str,
        start: int = 0,
        stop: int | None = None,
        *,
        most: int | None = None,
        flowed: Callable[[int], None] | None = None,
        take: Callable[[Any], Awaitable[None]] | None = None,
    ) -> bytes | None:
        """As `get`. `flowed` is called with the size of each piece that came, and with 0 when it was the last.

        With `take` b"" is returned, and each piece is given to it as it comes.
        """
        obstore = obstore_package()

        async def get() -> bytes | None:
            store = self._opened(write=False)
            if store is None:
                return None
            if stop is not None and stop <= start:
                return b""
            wanted = None if not start and stop is None else {"range": (start, stop) if stop else {"offset": start}}
            found = await self._in_time(obstore.get_async(store, self._below(name), options=wanted))
            size = found.range[1] - found.range[0]
            if most is not None and size > most:
                raise BadArtifact(f"{name!r} has {size:,} bytes, and {most:,} at most are taken")
            pieces: list[Any] = []
            came = 0
            least = _WATCHED if flowed is not None else _PIECE if take is None else 4 * _PIECE
            stream: AsyncIterator[Any] = found.stream(min_chunk_size=least).__aiter__()
            slow = self.limits.read_timeout + least / _SLOWEST
            while (piece := await _next(stream, slow)) is not None:
                came += len(piece)
                if take is None:
                    pieces.append(piece)
                else:
                    await take(piece)
                if flowed is not None:
                    flowed(len(piece))
            if came != size:
                raise RemoteUnavailable(f"{name!r} was cut off: it has {size:,} bytes, and {came:,} came")
            if flowed is not None:
                flowed(0)
            return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

        return await self._asked(get, f"{name!r} cannot be read", missing=None)

    async def put_async(self, name: str, data: bytes | memoryview | Path, *, create: bool = False) -> bool:
        """As `put`. Unless `is_conditional`, two who create the same at one moment may both be told they did."""
        obstore = obstore_package()
        if create and not self.is_conditional and await self.size_async(name) is not None:
            return False

        async def put() -> bool:
            mode = "create" if create and self.is_conditional else "overwrite"
            large = data.stat().st_size if isinstance(data, Path) else len(data)
            parts = False if self.location.kind == "http" else None  # WebDAV has no uploads in parts
            store = self._opened(write=True)
            sending = obstore.put_async(store, self._below(name), data, mode=mode, use_multipart=parts)
            try:
                await asyncio.wait_for(sending, self.limits.sending + large / _SLOWEST)
            except obstore.exceptions.AlreadyExistsError:
                return False
            except FileNotFoundError as error:  # of an object that is to be made this means its bucket
                raise ConnectionError(f"there is no such bucket, container or folder: {error}") from None
            return True

        return await self._asked(put, f"{name!r} cannot be written", missing=False)

    async def size_async(self, name: str) -> int | None:
        """As `size`."""
        obstore = obstore_package()

        async def head() -> int | None:
            store = self._opened(write=False)
            if store is None:
                return None
            found = await self._in_time(obstore.head_async(store, self._below(name)))
            return int(found["size"])

        return await self._asked(head, f"{name!r} cannot be looked at", missing=None)

    async def entries_async(self, prefix: str = "", *, flowed: Callable[[int], None] | None = None) -> list[Entry]:
        """As `entries`. `flowed` is called with 0 for each page that came."""
        obstore = obstore_package()

        async def look() -> list[Entry]:
            store = self._opened(write=False)
            if store is None:
                return []
            if self.location.kind == "http":
                return sorted(await self._walk(store, self._below(prefix), flowed), key=lambda one: one.name)
            found: list[Entry] = []
            stream = obstore.list(store, prefix or None, chunk_size=_LIST).__aiter__()
            while (page := await _next(stream, self.limits.request)) is not None:
                found += map(_entry, page)
                if flowed is not None:
                    flowed(0)
            return sorted(found, key=lambda one: one.name)

        return await self._asked(look, f"what is below {prefix!r} cannot be listed", missing=[])

    async def _walk(self, store: Any, prefix: str, flowed: Callable[[int], None] | None) -> list[Entry]:
        """WebDAV folder by folder: many servers refuse to list a tree at once (RFC 4918, section 9.1)."""
        try:
            page = await self._in_time(obstore_package().list_with_delimiter_async(store, prefix or None))
        except FileNotFoundError:
            return []
        if flowed is not None:
            flowed(0)
        below = await asyncio.gather(*(self._walk(store, one, flowed) for one in page["common_prefixes"]))
        above = len(self.location.path) + 1 if self.location.path else 0
        here = [replace(one, name=one.name[above:]) for one in map(_entry, page["objects"])]
        return [*here, *(entry for entries in below for entry in entries)]

    def _below(self, name: str) -> str:
        """obstore lists WebDAV by names from the root of the server, so its store stands there, and names do."""
        above = self.location.path
        return f"{above}/{name}".rstrip("/") if above else name

    async def delete_async(self, names: Iterable[str]) -> None:
        """As `delete`."""
        obstore = obstore_package()

        async def remove(name: str) -> None:
            async def delete() -> None:
                store = self._opened(write=False)
                if store is not None:
                    await self._in_time(obstore.delete_async(store, self._below(name)))

            await self._asked(delete, f"{name!r} cannot be removed", missing=None)

        await self.each(remove, names)

    async def each(self, do: Callable[[Any], Coroutine[Any, Any, T]], over: Iterable[Any]) -> list[T]:
        """Do something with each, `parallel` at a time; results in the same order. The first error ends all of them."""
        room = asyncio.Semaphore(self.parallel)

        async def one(what: Any) -> T:
            async with room:
                return await do(what)

        tasks = [asyncio.ensure_future(one(what)) for what in over]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    # Running

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the thread of requests. Cancelling the future gives the requests up.

        Raises:
            RemoteUnavailable: it was closed, or this is a forked child; see `check_process`.
        """
        return self._requests.submit(coroutine)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Start a coroutine in the thread of requests, and wait for it."""
        return self._requests.run(coroutine)

    def check_process(self) -> None:
        """Raise RemoteUnavailable in a forked child, where nothing can be asked."""
        self._requests.check_process()

    def close(self) -> None:
        """Give up what goes on, and end the thread. Closing twice is fine."""
        self._requests.close()

    def leave(self) -> None:
        """In a forked child: be of no use."""
        self._requests.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _opened(self, *, write: bool) -> Any:
        """obstore's store; None for a folder that is not there, unless it is to be written."""
        if write not in self._stores:
            if self.location.kind == "file":
                folder = Path(self.location.address)
                if not write and not folder.is_dir():
                    return None
            self._stores[write] = store_of(
                self.location, self._options, self._anonymous, self.limits, self._redacted, write=write
            )
        return self._stores[write]

    async def _asked(self, ask: Callable[[], Awaitable[T]], failed: str, *, missing: T) -> T:
        """What `ask` answers, or `missing`; any trouble as one of the two errors, which keeps no trace of the cause,
        for that may show secrets."""
        if self.location.kind != "file" and is_offline():
            raise RemoteUnavailable(f"{self.location.url}: {failed}: {OFFLINE} is set")
        if not self.breaker.may_ask():
            raise RemoteUnavailable(f"{self.location.url}: {failed}: it did not answer before, and now rests a while")
        trouble: Exception | None = None
        try:
            answer = await ask()
        except FileNotFoundError:
            answer = missing
        except (WarmstoreError, ValueError):
            raise
        except Exception as error:
            trouble = self._told(error, failed)
        if trouble is not None:
            self.breaker.failed()
            raise trouble
        self.breaker.went_well()
        return answer

    def _told(self, error: Exception, failed: str) -> WarmstoreError:
        exceptions = obstore_package().exceptions
        if isinstance(error, TimeoutError):
            return RemoteUnavailable(f"{self.location.url}: {failed}: no answer in time")
        said = _in_one_line(self._redacted(str(error))) or type(error).__name__
        refused = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
        if refused or _REFUSED.search(said):  # of listings obstore does not tell it by the class
            return RemoteRefused(
                errno.EACCES, f"{failed}: the credentials are missing or wrong: {said}", self.location.url
            )
        return RemoteUnavailable(f"{self.location.url}: {failed}: {said}")

    async def _in_time(self, asking: Awaitable[T]) -> T:
        return await asyncio.wait_for(asking, self.limits.request)


async def _next(stream: AsyncIterator[T], seconds: float) -> T | None:
    try:
        return await asyncio.wait_for(anext(stream), seconds)
    except StopAsyncIteration:
        return None


def _entry(found: Mapping[str, Any]) -> Entry:
    return Entry(found["path"], int(found["size"]), found["last_modified"].timestamp())


def _in_one_line(text: str) -> str:
    """The first of what obstore says, without pages that are meant for browsers, and then what was behind it."""
    said, _, behind = text.partition("\n\nDebug source")
    said = re.sub(r"\s*<(html|!doctype).*", "", said, flags=re.DOTALL | re.IGNORECASE)
    said = re.sub(r"<\?xml.*<Code>(.*?)</Code>.*<Message>(.*?)</Message>.*", r"\1, \2", said, flags=re.DOTALL)
    cause = _CAUSE.search(behind) if said.endswith("error sending request") else None
    if cause is not None:
        said += f": {cause[1] or cause[2]}"
    return " ".join(said.split())[:_SAID]
