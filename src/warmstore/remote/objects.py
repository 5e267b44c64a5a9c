"""Objects in a remote, by name: one interface to S3, Google, Azure, WebDAV and folders, built on obstore.

Requests run concurrently in a thread of their own, and can be cancelled at any moment. Failures are one of two errors,
whose messages contain no secrets. A missing object is None.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Self, TypeVar

from warmstore.errors import BadArtifact, RemoteRefused, RemoteUnavailable, WarmstoreError
from warmstore.remote.credentials import identity_of
from warmstore.remote.limits import CircuitBreaker, RequestLimits
from warmstore.remote.location import Location, Redacted
from warmstore.remote.obstore_stores import knows_option, obstore_package, store_of
from warmstore.remote.offline import OFFLINE, is_offline
from warmstore.remote.remote_options import check_options
from warmstore.remote.requests import Requests

T = TypeVar("T")

CLOCK = "gc/last"
"""An empty object that is stored to learn the time at the remote."""

_PIECE = 256 << 10
_AT_ONCE = 1 << 20  # bytes of a range that are taken as one piece
_WATCHED = 32 << 10  # bytes of a piece if the flow of data is observed: many transfers share one connection
_LIST = 1000
_OF_A_FOLDER = 8  # concurrent requests of a folder
_SLOWEST = 16 << 10  # least bytes a second of a transfer in either direction
_LONGEST = 600  # characters of a message
_REFUSED = re.compile(r"status code: 40[13]\b|ExpiredToken")
_CAUSE = re.compile(r'(?:error|message): "([^"]+)"|(InvalidCertificate|TimedOut)')


@dataclass(frozen=True)
class Entry:
    """An object in a listing. `modified`: seconds since 1970, by the clock of the remote."""

    name: str
    size: int
    modified: float


class Objects:
    """The objects below one URL. Threads may share it. Forked children cannot use it.

    Without options, credentials are found as the cloud's own tools find them. No request is sent before the first use.

    Args:
        url: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, http(s)://host/path (WebDAV),
            file:///folder, or a folder. A name and password before the host are for HTTP.
        options: Options of obstore's store of that kind (S3Config, GCSConfig, AzureConfig), such as
            {"endpoint": "https://minio.example.org", "region": "us-east-1"}; for HTTP {"headers": {...}}.
        anonymous: Sign no requests.
        limits: The limits of a request.
        parallel: The most concurrent requests of `each`; fewer for a folder, where each takes a thread.
        at_exit: Close it at exit, or when it is collected. Otherwise the caller does, and calls `leave` in forked
            children.

    Raises:
        ValueError: The URL or an option is invalid.
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
        self.parallel = min(parallel, _OF_A_FOLDER) if self.location.kind == "file" else parallel
        self.breaker = CircuitBreaker(self.limits.failures, self.limits.cooldown)
        self._options = dict(options or {})
        obstore_package()
        check_options(self.location, self._options, partial(knows_option, self.location))
        self._anonymous = anonymous
        self._redacted = Redacted(self.location, self._options)
        self._stores: dict[bool, Any] = {}
        self._requests = Requests(self.location.url, at_exit=at_exit)

    def __repr__(self) -> str:
        return f"Objects({self.location.url!r})"

    @property
    def identity(self) -> str:
        """What names this remote in local files: see `credentials.identity_of`."""
        return identity_of(self.location, self._options, anonymous=self._anonymous)

    @property
    def is_conditional(self) -> bool:
        """Whether `put` with `create` is atomic, so that it never overwrites an object."""
        return self.location.kind != "http"

    # One request at a time. All of these raise RemoteUnavailable, RemoteRefused, and ValueError for an invalid name.

    def get(self, name: str, start: int = 0, stop: int | None = None, *, most: int | None = None) -> bytes | None:
        """The bytes of an object, or those from `start` to before `stop`. None for a missing object.

        Raises BadArtifact for an object of more than `most` bytes, before it is read.
        """
        return self.run(self.get_async(name, start, stop, most=most))

    def put(self, name: str, data: bytes | memoryview | Path, *, create: bool = False) -> bool:
        """Store an object atomically. With `create`, returns False and changes nothing if the object exists."""
        return self.run(self.put_async(name, data, create=create))

    def size(self, name: str) -> int | None:
        """Bytes of an object; None for a missing one."""
        return self.run(self.size_async(name))

    def entries(self, prefix: str = "") -> list[Entry]:
        """The objects whose names begin with the parts of `prefix` ("a/b" has "a/b/c" and not "a/bc"), by name."""
        return self.run(self.entries_async(prefix))

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects. Missing objects are no error."""
        self.run(self.delete_async(names))

    # Many requests at a time: coroutines for `submit` and `run`

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
        """As `get`. `flowed` is called with the size of each arrived piece, and with 0 after the last.

        With `take`, each piece is passed to it instead, and b"" is returned.
        """
        obstore = obstore_package()

        async def get() -> bytes | None:
            store = self._opened(write=False)
            if store is None:
                return None
            if stop is not None and stop <= start:
                return b""
            if take is not None and stop is not None and stop - start <= _AT_ONCE:
                seconds = self.limits.request + (stop - start) / _SLOWEST
                async with asyncio.timeout(seconds):
                    part = await obstore.get_range_async(store, self._below(name), start=start, end=stop)
                await take(part)
                return b""
            wanted = None if not start and stop is None else {"range": (start, stop) if stop else {"offset": start}}
            found = await self._in_time(obstore.get_async(store, self._below(name), options=wanted))
            size = found.range[1] - found.range[0]
            if most is not None and size > most:
                raise BadArtifact(f"{name!r} has {size:,} bytes; the most is {most:,}")
            pieces: list[Any] = []
            received = 0
            least = _WATCHED if flowed is not None else _PIECE if take is None else 4 * _PIECE
            stream: AsyncIterator[Any] = found.stream(min_chunk_size=least).__aiter__()
            slow = self.limits.read_timeout + least / _SLOWEST
            while (piece := await _next(stream, slow)) is not None:
                received += len(piece)
                if take is None:
                    pieces.append(piece)
                else:
                    await take(piece)
                if flowed is not None:
                    flowed(len(piece))
            if received != size:
                raise RemoteUnavailable(f"{name!r} was cut off: {received:,} of {size:,} bytes arrived")
            if flowed is not None:
                flowed(0)
            return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

        return await self._checked(get, f"{name!r} cannot be read", missing=None)

    async def put_async(self, name: str, data: bytes | memoryview | Path, *, create: bool = False) -> bool:
        """As `put`. Unless the remote `is_conditional`, it may return True to two concurrent creators of one object."""
        obstore = obstore_package()
        if create and not self.is_conditional and await self.size_async(name) is not None:
            return False

        async def put() -> bool:
            mode = "create" if create and self.is_conditional else "overwrite"
            size = data.stat().st_size if isinstance(data, Path) else len(data)
            parts = False if self.location.kind == "http" else None  # WebDAV has no uploads in parts
            store = self._opened(write=True)
            sending = obstore.put_async(store, self._below(name), data, mode=mode, use_multipart=parts)
            try:
                await asyncio.wait_for(sending, self.limits.sending + size / _SLOWEST)
            except obstore.exceptions.AlreadyExistsError:
                return False
            except FileNotFoundError as error:
                raise ConnectionError(f"there is no such bucket, container or folder: {error}") from None
            return True

        return await self._checked(put, f"{name!r} cannot be written", missing=False)

    async def size_async(self, name: str) -> int | None:
        """As `size`."""
        entry = await self.entry_async(name)
        return None if entry is None else entry.size

    async def entry_async(self, name: str) -> Entry | None:
        """What a listing says of an object; None for a missing one."""
        obstore = obstore_package()

        async def head() -> Entry | None:
            store = self._opened(write=False)
            if store is None:
                return None
            found = await self._in_time(obstore.head_async(store, self._below(name)))
            return Entry(name, int(found["size"]), found["last_modified"].timestamp())

        return await self._checked(head, f"the size of {name!r} cannot be read", missing=None)

    async def clock_async(self) -> float:
        """Seconds since 1970 by the clock of the remote, as `Entry.modified` has them. The clock here may be wrong."""
        await self.put_async(CLOCK, b"")
        entry = await self.entry_async(CLOCK)
        if entry is None:
            raise RemoteUnavailable(f"{self.location.url}: {CLOCK!r} was removed meanwhile")
        return entry.modified

    async def entries_async(self, prefix: str = "", *, flowed: Callable[[int], None] | None = None) -> list[Entry]:
        """As `entries`. `flowed` is called with 0 for each arrived page."""
        obstore = obstore_package()

        async def list_entries() -> list[Entry]:
            store = self._opened(write=False)
            if store is None:
                return []
            if self.location.kind == "http":
                return sorted(await self._walk(store, self._below(prefix), flowed), key=attrgetter("name"))
            found: list[Entry] = []
            stream = obstore.list(store, prefix or None, chunk_size=_LIST).__aiter__()
            while (page := await _next(stream, self.limits.request)) is not None:
                found += map(_entry, page)
                if flowed is not None:
                    flowed(0)
            return sorted(found, key=attrgetter("name"))

        return await self._checked(list_entries, f"the objects below {prefix!r} cannot be listed", missing=[])

    async def _walk(self, store: Any, prefix: str, flowed: Callable[[int], None] | None) -> list[Entry]:
        """List WebDAV folder by folder: many servers refuse to list a tree at once (RFC 4918, section 9.1)."""
        try:
            page = await self._in_time(obstore_package().list_with_delimiter_async(store, prefix or None))
        except FileNotFoundError:
            return []
        if flowed is not None:
            flowed(0)
        below = await asyncio.gather(*(self._walk(store, folder, flowed) for folder in page["common_prefixes"]))
        start = len(self.location.path) + 1 if self.location.path else 0
        entries = [replace(entry, name=entry.name[start:]) for entry in map(_entry, page["objects"])]
        return [*entries, *chain.from_iterable(below)]

    def _below(self, name: str) -> str:
        """The name for obstore. Names of WebDAV begin at the root of the server, since obstore lists them so."""
        folder = self.location.path
        return f"{folder}/{name}".rstrip("/") if folder else name

    async def delete_async(self, names: Iterable[str]) -> None:
        """As `delete`. S3 removes up to a thousand objects in one request."""
        obstore = obstore_package()
        names = list(names)
        if self.location.kind == "s3" and len(names) > 1:

            async def delete_all() -> None:
                below = [self._below(name) for name in names]
                await self._in_time(obstore.delete_async(self._opened(write=False), below))

            with contextlib.suppress(RemoteUnavailable):  # some compatible servers do not have that request
                await self._checked(delete_all, "objects cannot be removed", missing=None)
                return

        async def remove(name: str) -> None:
            async def delete() -> None:
                store = self._opened(write=False)
                if store is not None:
                    await self._in_time(obstore.delete_async(store, self._below(name)))

            await self._checked(delete, f"{name!r} cannot be removed", missing=None)

        await self.each(remove, names)

    async def each(self, function: Callable[[Any], Coroutine[Any, Any, T]], items: Iterable[Any]) -> list[T]:
        """Call a function for each item, `parallel` at a time. Returns the results in order. The first error cancels
        all calls."""
        limit = asyncio.Semaphore(self.parallel)

        async def call(item: Any) -> T:
            async with limit:
                return await function(item)

        tasks = [asyncio.ensure_future(call(item)) for item in items]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            await _cancelled(tasks)
            raise
        finally:
            del tasks  # else the error of one would keep this frame, and those of the callers

    # Running

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the thread of requests; see `Requests` for this and the next methods."""
        return self._requests.submit(coroutine)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._requests.run(coroutine)

    @property
    def works_here(self) -> bool:
        return self._requests.works_here

    def check_process(self) -> None:
        self._requests.check_process()

    def close(self) -> None:
        self._requests.close()

    def leave(self) -> None:
        self._requests.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _opened(self, *, write: bool) -> Any:
        """obstore's store; None for reading from a missing folder."""
        if write not in self._stores:
            if self.location.kind == "file":
                folder = Path(self.location.address)
                if not write and not folder.is_dir():
                    return None
            self._stores[write] = store_of(
                self.location, self._options, self._anonymous, self.limits, self._redacted, write=write
            )
        return self._stores[write]

    async def _checked(self, request: Callable[[], Awaitable[T]], failed: str, *, missing: T) -> T:
        """The result of a request, or `missing`. Failures are raised as one of the two errors, without their cause,
        which may contain secrets."""
        if self.location.kind != "file" and is_offline():
            raise RemoteUnavailable(f"{self.location.url}: {failed}: {OFFLINE} is set")
        if not self.breaker.allows():
            raise RemoteUnavailable(f"{self.location.url}: {failed}: it did not answer before; it is tried again later")
        failure: Exception | None = None
        try:
            result = await request()
        except FileNotFoundError:
            result = missing
        except (WarmstoreError, ValueError):
            raise
        except Exception as error:
            failure = self._without_secrets(error, failed)
        try:
            if failure is not None:
                self.breaker.failed()
                raise failure
        finally:
            del failure  # else it would keep this frame, and those of the callers
        self.breaker.succeeded()
        return result

    def _without_secrets(self, error: Exception, failed: str) -> WarmstoreError:
        exceptions = obstore_package().exceptions
        if isinstance(error, TimeoutError):
            return RemoteUnavailable(f"{self.location.url}: {failed}: no answer in time")
        message = _in_one_line(self._redacted(str(error))) or type(error).__name__
        refused = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
        if refused or _REFUSED.search(message):  # obstore raises no such class for listings
            reason = f"{failed}: the credentials are missing or wrong: {message}"
            return RemoteRefused(errno.EACCES, reason, self.location.url)
        return RemoteUnavailable(f"{self.location.url}: {failed}: {message}")

    async def _in_time(self, request: Awaitable[T]) -> T:
        async with asyncio.timeout(self.limits.request):
            return await request


async def _cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _next(stream: AsyncIterator[T], seconds: float) -> T | None:
    try:
        async with asyncio.timeout(seconds):
            return await anext(stream)
    except StopAsyncIteration:
        return None


def _entry(found: Mapping[str, Any]) -> Entry:
    return Entry(found["path"], int(found["size"]), found["last_modified"].timestamp())


def _in_one_line(text: str) -> str:
    """The message of an error of obstore without HTML, and the cause of a request that could not be sent."""
    message, _, details = text.partition("\n\nDebug source")
    message = re.sub(r"\s*<(html|!doctype).*", "", message, flags=re.DOTALL | re.IGNORECASE)
    message = re.sub(r"<\?xml.*<Code>(.*?)</Code>.*<Message>(.*?)</Message>.*", r"\1, \2", message, flags=re.DOTALL)
    cause = _CAUSE.search(details) if message.endswith("error sending request") else None
    if cause is not None:
        message += f": {cause[1] or cause[2]}"
    return " ".join(message.split())[:_LONGEST]
