"""The remote of a local store: missing artifacts are fetched from it, and new artifacts are published to it later.

While the program starts, a thread reads the manifests and fetches the artifacts of the job in parallel. Lookups that
find nothing in the local store wait for this thread, within one budget. Any failure is a counted miss and a log line.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from itertools import compress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from blake3 import blake3

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.environment import Environment
from warmstore.compiling.remote.remote_index import RemoteIndex
from warmstore.compiling.remote.remote_memory import RemoteMemory
from warmstore.compiling.remote.signed_manifests import (
    Loaded,
    SignedManifest,
    blob_name,
    load,
    log_of,
    namespace_of,
    publish,
)
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import BadArtifact, Damaged, NoArtifact, RemoteUnavailable, TooLarge, WarmstoreError
from warmstore.remote.limits import StallBudget
from warmstore.remote.objects import Objects
from warmstore.remote.signing import Keyring
from warmstore.storage.conditions import Condition
from warmstore.storage.interrupts import uninterrupted
from warmstore.storage.threads import Thread

T = TypeVar("T")

_log = logging.getLogger("warmstore")

_FRESH = 60.0  # seconds until manifests are read again after a lookup that found nothing
_QUIET = 2.0  # seconds without a new artifact before those that wait are published
_AT_ONCE = 32  # artifacts taken into the store in one change
_SENT = 1 << 20  # least bytes a second of a transfer that `close` waits for

_LAST = 10.0  # seconds that `close` waits for the thread to leave the local store

_Arrived = tuple[Artifact, bytes | WarmstoreError]


class RemoteArtifacts:
    """The remote of one process's store, from `start` to `close`. No method raises in between.

    Args:
        objects: The remote, made with `at_exit=False`: this class closes it.
        keyring: Keys that check manifests. If one of them can sign, new artifacts are published.
        store: The local store; writable.
        environment: Fetched artifacts are usable in it.
        job: Its artifacts are fetched at the start, and used artifacts are published under its name.
        budget: Limits the seconds of waiting in total.
    """

    def __init__(
        self,
        objects: Objects,
        keyring: Keyring,
        store: ArtifactStore,
        environment: Environment,
        *,
        job: str,
        budget: StallBudget,
    ) -> None:
        self.objects = objects
        self.budget = budget
        self._store = store
        self._environment = environment
        self._job = job
        self._namespace = namespace_of(environment)
        self._memory = RemoteMemory(store.folder, objects.identity, store.files)
        self._log = log_of(self._namespace, keyring, self._memory.mirror / self._namespace)
        self._reading = asyncio.Lock()  # the log is not read by two lookups at once
        self._can_sign = self._log.vouching.can_write
        self._index: RemoteIndex | None = None
        self._looked = -_FRESH  # when the index was read, or reading it failed
        self._ready = threading.Event()
        self._fetching: set[str] = set()
        self._bad: set[str] = set()
        self._lock = threading.Lock()
        self._offered: dict[str, Artifact] = {}
        self._publishing: dict[str, Artifact] = {}  # of those, what the thread publishes now
        self._changed = Condition()
        self._closing = False
        self._ended = threading.Event()
        self._complained: set[str] = set()
        self._thread = Thread(target=self._work, name="warmstore-remote-tier", daemon=True)

    def start(self) -> None:
        """Read the manifests and fetch what the job used, in a thread."""
        self._thread.start()

    # Reading

    def fetch(self, path: str) -> bool:
        """Fetch the usable artifacts below a path. False if the remote has none, or did not answer in time."""
        return self._quietly(lambda: self._fetch(path)) or False

    def fetch_job(self, name: str, kinds: frozenset[str] | None = None) -> int:
        """Fetch the artifacts of a job, of these kinds or of all. Returns how many were fetched."""
        return self._quietly(lambda: self._fetch_job(name, kinds)) or 0

    def keys(self, job: str) -> int:
        """The number of keys that manifests name for a job; 0 if the remote does not answer."""
        return self._quietly(lambda: len(self._known().jobs.get(job, ()))) or 0

    def _quietly(self, look: Callable[[], T]) -> T | None:
        if self._closing:
            return None
        try:
            return look()
        except Exception as error:
            self._store.count("remote failed")
            self._complain("what is missing is compiled", error)
            return None

    def _fetch(self, path: str) -> bool:
        wanted = self._known().below(path, self._environment)
        if not wanted and time.monotonic() - self._looked > _FRESH:
            self._look_again()
            wanted = self._known().below(path, self._environment)
        if not wanted:
            self._store.count("remote miss")
            return False
        missing = self._missing(wanted)
        return self._get(missing, self.budget) > 0 or len(missing) < len(wanted)

    def _fetch_job(self, name: str, kinds: frozenset[str] | None) -> int:
        found = self._known().job(name, self._environment)
        wanted = [artifact for artifact in found if kinds is None or artifact.kind in kinds]
        return self._get(self._missing(wanted), self.budget, job=name)

    def _missing(self, wanted: Sequence[Artifact]) -> list[Artifact]:
        """The artifacts that the store does not have, after waiting for those that are being fetched."""
        self.budget.wait(lambda: self._fetching.isdisjoint(artifact.digest for artifact in wanted))
        return [artifact for artifact in wanted if not self._is_stored(artifact)]

    def _known(self) -> RemoteIndex:
        """The index of the remote, once the manifests were read. Raises RemoteUnavailable if that fails or takes too
        long."""
        if not self.budget.wait(self._ready.is_set):
            raise RemoteUnavailable("it does not answer in time")
        if self._index is None:
            raise RemoteUnavailable("its manifests could not be read")
        return self._index

    def _look_again(self) -> None:
        self._looked = time.monotonic()
        finished: SimpleQueue[object] = SimpleQueue()  # what a future asks its own lock for is not interrupted

        def ended(future: object) -> None:
            finished.put(future)
            self.budget.notify()

        with uninterrupted():
            future = self.objects.submit(self._load())
            future.add_done_callback(ended)
        if self.budget.wait(lambda: not finished.empty()):
            with suppress(WarmstoreError, ValueError, CancelledError):
                self._learn(future.result())
        else:
            with uninterrupted():
                future.cancel()

    async def _load(self) -> Loaded:
        async with self._reading:
            return await load(self.objects, self._log, self._namespace, self._memory.replaced, self.budget.flowed)

    def _learn(self, found: Loaded) -> None:
        for why in found.refused:
            self._store.count("remote refused")
            self._complain("a manifest is not trusted or invalid", why)
        try:
            self._memory.saw(found.state.replaced)
        except OSError as error:
            self._complain("its replaced manifests cannot be remembered", error)
        self._index = RemoteIndex(found.manifests)

    def _is_stored(self, artifact: Artifact) -> bool:
        return any(best is not None for best, _ in self._store.below(artifact.key, self._environment))

    def _get(self, wanted: Sequence[Artifact], budget: StallBudget | None, job: str | None = None) -> int:
        """Fetch artifacts in parallel into the local store. Returns how many. `budget`: limits the waiting."""
        if not wanted:
            return 0
        arrived: SimpleQueue[_Arrived | None] = SimpleQueue()
        by_digest: dict[str, list[Artifact]] = {}
        for artifact in wanted:
            by_digest.setdefault(artifact.digest, []).append(artifact)

        async def fetch(same: list[Artifact]) -> None:
            content = await self._content(same[0])
            for artifact in same:
                arrived.put((artifact, content))
            self.budget.notify()

        def ended(_: object) -> None:
            arrived.put(None)
            self.budget.notify()

        with uninterrupted():
            future: Future[Any] = self.objects.submit(self.objects.each(fetch, by_digest.values()))
            with self._lock:
                self._fetching.update(by_digest)
            future.add_done_callback(ended)
        taken, over = 0, False
        try:
            while not over:
                if budget is not None and not budget.wait(lambda: not arrived.empty()):
                    self._complain("it does not answer in time; missing artifacts are compiled", "the budget is spent")
                    self._store.count("remote failed")
                    break
                batch = _batch(arrived)
                over = None in batch
                taken += self._take([arrival for arrival in batch if arrival is not None], job)
            if over and not future.cancelled() and (error := future.exception()) is not None:
                self._complain("artifacts cannot be fetched", error)
        finally:
            with uninterrupted():
                future.cancel()
                with self._lock:
                    self._fetching.difference_update(by_digest)
            self.budget.notify()
        return taken

    async def _content(self, artifact: Artifact) -> bytes | WarmstoreError:
        """The bytes of an artifact, if they match the signed manifest; else the error."""
        name = blob_name(artifact.digest)
        try:
            data = await self.objects.get_async(name, most=artifact.size, flowed=self.budget.flowed)
        except BadArtifact as error:
            self._bad.add(artifact.digest)
            return error
        except WarmstoreError as error:
            return error
        if data is None:
            self._bad.add(artifact.digest)
            return NoArtifact(f"{name} is in a manifest, but not in the remote")
        if len(data) != artifact.size or blake3(data).hexdigest() != artifact.digest:
            self._bad.add(artifact.digest)
            return BadArtifact(f"{name} differs from its signed manifest")
        return data

    def _take(self, arrived: Sequence[_Arrived], job: str | None) -> int:
        whole = [(artifact, content) for artifact, content in arrived if isinstance(content, bytes)]
        for _, error in arrived:
            if not isinstance(error, bytes):
                self._store.count("remote failed")
                self._complain("an artifact cannot be fetched and is compiled", error)
        if whole:
            try:
                self._store.take(whole, job)
            except (OSError, ValueError) as failure:
                if isinstance(failure, TooLarge) and len(whole) > 1:
                    return sum(self._take([arrival], job) for arrival in whole)
                self._complain("its artifacts cannot be stored here", failure)
                return 0
            self._store.count("remote hit", len(whole))
        with self._lock:
            self._fetching.difference_update(artifact.digest for artifact, _ in arrived)
        self.budget.notify()
        return len(whole)

    # Writing

    def offer(self, artifact: Artifact) -> None:
        """Have the thread publish an artifact of the local store, unless it is published already."""
        if self._can_sign and not self._closing:
            with self._changed.lock:
                self._offered[artifact.key] = artifact
                self._changed.notify_all()

    def close(self, used: Iterable[Artifact] = ()) -> None:
        """Publish the remaining artifacts, within the budget, and end the thread, also after an interrupt. Safe to call
        twice."""
        try:
            if not self._closing:
                self._publish_rest(list(used))
        finally:
            with uninterrupted():
                self._stop()
                self.objects.close()
            if self._thread.ident is not None:
                self._thread.join(_LAST)

    def _publish_rest(self, used: Sequence[Artifact]) -> None:
        for artifact in used:
            self.offer(artifact)
        with self._changed.lock:
            waiting = [*self._offered.values(), *self._publishing.values()]
            size = sum(artifact.size for artifact in waiting if self._is_new(artifact))
            self._stop()
        if size and not self.objects.breaker.is_open:
            self.budget.allow(size / _SENT)
            self.budget.wait(self._ended.is_set)

    def _stop(self) -> None:
        with self._changed.lock:
            self._closing = True
            self._changed.notify_all()

    def leave(self) -> None:
        """In a forked child: stop, and leave the remote to the parent."""
        self._closing = True
        self._changed = Condition()  # a thread of the parent's may hold the lock
        self.objects.leave()

    def _is_new(self, artifact: Artifact) -> bool:
        index = self._index
        if index is None:
            return True
        return not index.has(artifact, self._bad) or artifact.key not in index.jobs[self._job]

    # The thread

    def _work(self) -> None:
        try:
            self._begin()
            while self._wait_for_more():
                self._publish()
            if self._offered:
                self._publish()
        except (WarmstoreError, CancelledError) as error:
            if not self._closing:
                self._complain("it cannot be used", error)
        except Exception as error:
            self._complain("it cannot be used", error)
        finally:
            self._ready.set()
            self._ended.set()
            self.budget.notify()

    def _begin(self) -> None:
        """Read the manifests, and fetch artifacts of the job that the local store does not have."""
        try:
            self._learn(self.objects.run(self._load()))
            assert self._index is not None
            found = self._index.job(self._job, self._environment)
            wanted = [artifact for artifact in found if not self._is_stored(artifact)]
            with self._lock:
                self._fetching.update(artifact.digest for artifact in wanted)
        except (WarmstoreError, ValueError) as error:
            self._complain("it cannot be read; missing artifacts are compiled", error)
            return
        finally:
            self._looked = time.monotonic()
            self._ready.set()
            self.budget.notify()
        began = time.monotonic()
        if count := self._get(wanted, None, job=self._job):
            seconds = time.monotonic() - began
            _log.info("%d artifacts of job %s came from the remote in %.1f s", count, self._job, seconds)

    def _wait_for_more(self) -> bool:
        """Wait until artifacts were offered and no other followed for a while. False when closing."""
        with self._changed.lock:
            while not self._closing:
                before = len(self._offered)
                self._changed.wait(_QUIET if before else None)
                if before and len(self._offered) == before:
                    return True
        return False

    def _publish(self) -> None:
        """Publish the offered artifacts: first their blobs, then a manifest that names them."""
        with self._changed.lock:
            self._publishing, self._offered = self._offered, {}
        try:
            if self._index is not None and self._can_sign:
                new = [artifact for artifact in self._publishing.values() if self._is_new(artifact)]
                sent = self.objects.run(self.objects.each(self._send, new)) if new else []
                if any(sent):
                    self._sign(list(compress(new, sent)), self._index)
        except (OSError, ValueError) as error:
            self._complain("new artifacts are not published; the next run tries again", error)
            self._store.count("remote failed")
        finally:
            self._publishing = {}

    async def _send(self, artifact: Artifact) -> bool:
        """Send the blob of an artifact. Returns whether the remote has it now."""
        try:
            data = self._store.read(artifact)
        except (Damaged, NoArtifact):
            return False
        fresh = artifact.digest not in self._bad
        if self._index is None or not self._index.has(artifact, self._bad):
            if await self.objects.put_async(blob_name(artifact.digest), data, create=fresh):
                self._store.count("remote put")
            self.budget.flowed(0)
        return True

    def _sign(self, new: list[Artifact], known: RemoteIndex) -> None:
        """Publish a manifest that adds these artifacts, and lists them under the job."""
        added = [artifact for artifact in new if not known.has(artifact, self._bad)]
        jobs = {self._job: sorted({artifact.key for artifact in new})}
        manifest = SignedManifest(self._namespace, added, jobs)
        found = self.objects.run(self._load())
        published = self.objects.run(publish(self.objects, self._log, manifest, found.state))
        self._index = RemoteIndex([*found.manifests, published])
        self._looked = time.monotonic()

    def _complain(self, message: str, reason: object) -> None:
        """Log a failure: each kind of message once as a warning, then at level DEBUG."""
        level = logging.DEBUG if message in self._complained else logging.WARNING
        self._complained.add(message)
        _log.log(level, "remote cache %s: %s: %s", self.objects.location.url, message, reason)


def _batch(arrived: SimpleQueue[_Arrived | None]) -> list[_Arrived | None]:
    """The arrived artifacts, at least one. Waits for the first."""
    batch = [arrived.get()]
    with suppress(Empty):
        while len(batch) < _AT_ONCE and batch[-1] is not None:
            batch.append(arrived.get_nowait())
    return batch
