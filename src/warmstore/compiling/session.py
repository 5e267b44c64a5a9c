"""One process's use of the compile cache: it restores what compilers look up, and stores what they make.

A session stands between the shared store and the private scratch directory of the compilers. No error of the store
reaches a compiler: a store that cannot be read is a miss, and a store that cannot be written keeps nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.environment import Environment
from warmstore.compiling.misses import lookup_log
from warmstore.compiling.misses.compile_recorder import CompileRecorder
from warmstore.compiling.misses.key_descriptions import KeyDescription
from warmstore.compiling.misses.lookup_log import Lookup
from warmstore.compiling.misses.miss_reasons import NEW, MissReasons
from warmstore.compiling.scratch.compiler_files import HEADER
from warmstore.compiling.scratch.harvester import Harvester
from warmstore.compiling.scratch.restorer import Restorer
from warmstore.compiling.scratch.scratch_dir import ScratchDir, has_room
from warmstore.compiling.scratch.scratch_quota import ScratchQuota
from warmstore.compiling.single_flight import SingleFlight
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.compiling.warn_once import WarnOnce
from warmstore.errors import CompilationFailed
from warmstore.storage.interrupts import uninterrupted

if TYPE_CHECKING:
    from warmstore.compiling.remote.remote_artifacts import RemoteArtifacts

_log = logging.getLogger("warmstore")

_HEADERS_FROM = 1 << 30  # least limit of a store, in bytes, for precompiled headers; two headers take 150 MB
_HEADERS_NEED = 512 << 20  # least free bytes on the disk for them


class CompileSession:
    """Serves the lookups and saves of the compilers in this process. `Listener` describes the methods for hooks.

    Args:
        store: The shared store. The session closes it.
        live: The first scratch directory.
        job: The name under which the store records the artifacts that this process uses.
        requirements: Returns the `Artifact.requirements` of what Inductor compiles at the time, in the same thread.
        flights: Locks between processes; None without locks.
        wait: The most seconds to wait for another process that compiles the same.
        moved: Called with each later scratch directory.
    """

    def __init__(
        self,
        store: ArtifactStore,
        live: ScratchDir,
        environment: Environment,
        *,
        job: str,
        requirements: Callable[[], Mapping[str, Any]],
        flights: SingleFlight | None,
        wait: float,
        remote: RemoteArtifacts | None = None,
        moved: Callable[[Path], None] | None = None,
    ) -> None:
        self.store = store
        self.scratch = ScratchQuota(store, live, moved)
        self.environment = environment
        self.job = job
        self.lookups: list[Lookup] = []
        self._used: dict[str, Artifact] = {}
        self._requirements = requirements
        self._flights = flights
        self._wait = wait
        self._remote = remote
        if remote is not None:
            remote.start()
        self._recorder = CompileRecorder(store, job, self._used)
        self._explanations = MissReasons(store, environment, job)
        self._seen: set[str] = set()
        self._warned: set[str] = set()
        self._began: dict[str, float] = {}  # by path that is compiled
        self._required: dict[str, Mapping[str, Any]] = {}  # requirements, by the same path
        self._flying = threading.local()
        self._lock = threading.RLock()
        self._complain = WarnOnce()
        self._closing = False
        self._harvester = Harvester(
            store, self.scratch, self._keep_file, self._end_flight, self._complain, self._recorder.record_if_due
        )
        self._restorer = Restorer(store, self.scratch, environment, self._harvester, self._used, remote)
        store._hand_over()  # the session closes the store

    @property
    def live(self) -> ScratchDir:
        """The current scratch directory."""
        return self.scratch.live

    @property
    def kept(self) -> int:
        """The number of files that were stored."""
        return self._harvester.kept

    @property
    def is_open(self) -> bool:
        """Whether the session serves lookups: not after `close`, and not in a forked child."""
        return not self._closing

    # Lookups.

    def inside(self, path: str) -> str | None:
        prefix = f"{self.live.path}{os.sep}"
        return path[len(prefix) :] if path.startswith(prefix) else None

    def wanted(self, path: str, *, alone: bool) -> bool:
        with self._lock:
            if self._closing or path in self._seen:
                return False
            self._seen.add(path)
        try:
            return self._look_up(path, alone=alone)
        except BaseException as error:
            if getattr(self._flying, "path", None) == path:
                self.landed()
            if not isinstance(error, Exception):
                raise
            self._complain("looking up %s failed; it is compiled", path, error)
            return False

    def _look_up(self, path: str, *, alone: bool) -> bool:
        self._prepare(path, compiling=False)
        count, reasons = self._restorer.restore(path)
        if not count and self._restorer.fetch(path):
            count, reasons = self._restorer.restore(path)
        waited = 0.0
        if not count and alone and self._flights is not None:
            self.landed()  # a thread has one flight at a time, so that no two processes wait for each other
            began = time.monotonic()
            self._flying.path = path  # before it is taken: whatever is raised from now on, it ends
            has_flight = self._flights.wait(path, self._wait)
            waited = time.monotonic() - began
            if not has_flight:
                self._flying.path = None
                _log.warning(
                    "%s: another process has been compiling it for %.0f s; not waiting any longer", path, waited
                )
            count, reasons = self._restorer.restore(path)  # another process may have finished just now
            if count:
                self.landed()
        if not count and self._prepare(path, compiling=alone):
            count, reasons = self._restorer.restore(path)  # the disk may have been full before
            if count:
                self.landed()
        changed: tuple[str, ...] = ()
        if count:
            self._explanations.forget(path)
        else:
            changed = self.why(path)
            self._began[path], self._required[path] = time.monotonic(), self._requirements()
        self.note(Lookup(path, bool(count), tuple(reasons), changed, waited))
        return bool(count)

    def _prepare(self, path: str, *, compiling: bool) -> bool:
        moved = self.scratch.prepare(compiling=compiling)
        if moved:
            self._forget_restored(path)
        return moved

    def _forget_restored(self, *kept: str) -> None:
        """Forget which paths were restored, except for some: the new scratch directory is empty."""
        with self._lock:
            self._seen &= {*self._began, *kept}

    def may_go_on(self, error: Exception) -> bool:
        """Move to another scratch directory after an error of a full one. Raises CompilationFailed if no folder has
        room."""
        if self._closing or not self.scratch.is_to_blame(error):
            return False
        here = self.live.path.parent
        if not self.scratch.move():
            raise CompilationFailed(
                f"the disks of {here} and of the temporary folder are full; free some space or set TMPDIR. The error "
                f"was: {error}"
            ) from error
        self._forget_restored()
        return True

    @property
    def has_room_for_headers(self) -> bool:
        return not self._closing and self.store.limit >= _HEADERS_FROM and has_room(self.live.path, _HEADERS_NEED)

    def want_header(self, path: str) -> None:
        if not self._closing:
            _, reasons = self._restorer.restore(path)
            if reasons:
                _log.info("%s is compiled: %s", path, "; ".join(reasons))

    def made_header(self, path: str) -> None:
        """Store a precompiled header that is complete, for other processes on this machine."""
        if self._closing or self.store.read_only or path in self._used:
            return
        try:
            file = self.live.path / path
            self._used[path] = self.store.put(path, HEADER, file, environment=self.environment)
            self._harvester.knows(str(file), file.stat())
        except (OSError, ValueError) as error:
            self._complain("%s is not stored", path, error)

    def why(self, path: str) -> tuple[str, ...]:
        """The differences between the key of a path, if it was described, and the nearest key in the store."""
        try:
            return self._explanations.why(path)
        except Exception as error:
            self._complain("finding the reason for the miss of %s failed", path, error)
            return ()

    def describe(self, path: str, make: Callable[[], KeyDescription | None]) -> None:
        if not self._closing and path not in self._seen:
            self._explanations.describe(path, make)

    def found(self, path: str) -> bool:
        return any(lookup.hit for lookup in self.lookups if lookup.key == path)

    def refused(self, path: str, reason: str) -> None:
        for lookup in [lookup for lookup in self.lookups if lookup.key == path]:
            self.lookups.remove(lookup)
            self._recorder.withdrawn(lookup)
        self.note(Lookup(path, False, (reason,)))

    def note(self, lookup: Lookup) -> None:
        """Record the result of a lookup. Each reason for a miss is logged as a warning once. A first compilation, of
        which nothing similar is stored, is logged as information."""
        self.lookups.append(lookup)
        self._recorder.looked_up(lookup)
        if lookup.hit:
            self.store.count("hit")
            return
        self.store.count("left" if lookup.left else "incompatible" if lookup.reasons else "miss")
        is_new = not lookup.reasons and lookup.changed in ((), (NEW,))
        level = logging.INFO if is_new or lookup.why in self._warned else logging.WARNING
        self._warned.add(lookup.why)
        action = "left to torch.compile" if lookup.left else "compiled"
        _log.log(level, "%s is %s: %s", lookup.key, action, lookup.why)

    def warm(self, name: str) -> int:
        """Restore everything that a job used, from the remote too. Returns the number of artifacts."""
        if self._remote is not None:
            self._remote.fetch_job(name)
        return self.restore_job(name)

    def restore_job(self, name: str, kinds: frozenset[str] | None = None) -> int:
        """Restore what a job used, of these kinds or of all. Returns the number of artifacts."""
        return self._restorer.restore_job(name, kinds)

    def read(self, path: str) -> tuple[list[bytes], list[str]]:
        """The bytes of every usable artifact below a path, and why others are not usable.

        The caller records the lookup with `note`.
        """
        return self._restorer.read(path)

    @contextmanager
    def alone(self, path: str) -> Iterator[None]:
        """A context that only one process at a time is in for the same path, unless it waited `wait` seconds."""
        has_flight = True  # before it is taken: whatever is raised from now on, it ends
        try:
            if self._flights is not None:
                has_flight = self._flights.wait(path, self._wait)
            yield
        finally:
            if has_flight:
                self._end_flight(path)

    def keep(
        self, path: str, kind: str, data: bytes, seconds: float, requirements: Mapping[str, Any] | None = None
    ) -> None:
        """Store an artifact that took `seconds` to make, and offer it to the remote. Without `requirements`
        it has those of what Inductor compiles now."""
        if requirements is None:
            requirements = self._requirements()
        if kind == "jax":
            requirements = {}  # XLA compiles for this CPU
        artifact = self._used[path] = self.store.put(
            path, kind, data, environment=self.environment, requirements=requirements, seconds=seconds
        )
        self._recorder.made(artifact)
        if self._remote is not None:
            self._remote.offer(artifact)
        self._explanations.keep(path)

    # Saves.

    def made(self, path: str) -> None:
        if self._closing:  # also in a forked child, where nobody would release the lock of the harvester's thread
            return
        is_flying = getattr(self._flying, "path", None) == path
        if is_flying:
            self._flying.path = None
        self._harvester.made(path if is_flying else None)

    def landed(self) -> None:
        """End the flight of this thread, so that other processes continue, whether or not it has compiled."""
        path = getattr(self._flying, "path", None)
        if path is not None:
            self._flying.path = None
            self._end_flight(path)

    def harvest(self) -> None:
        """Store every new and complete file of the scratch directory, if the store can be written."""
        self._harvester.harvest()

    def _keep_file(self, path: str, kind: str, data: bytes, age: float) -> None:
        """Store a file of a compiler that is `age` seconds old. Making it took the time from its lookup until then."""
        began = list(self._began)  # a copy: other threads look up meanwhile
        looked_up = next((prefix for prefix in began if path.startswith(prefix)), None)
        seconds = 0.0 if looked_up is None else max(time.monotonic() - self._began[looked_up] - age, 0.0)
        self.keep(path, kind, data, seconds, self._required.get(looked_up or ""))

    def _end_flight(self, path: str) -> None:
        if self._flights is not None:
            self._flights.end(path)

    def remember(self, question: str, ask: Callable[[], bool]) -> bool:
        """The answer to a yes-or-no question about this machine and its compiler.

        The store keeps a yes. A no is asked again in the next process: on a busy machine the test may time out.
        """
        key = f"answer/{hashlib.blake2b(question.encode(), digest_size=16).hexdigest()}"
        if self._closing:
            return ask()
        try:
            self._restorer.ensure(key)
            known = self.store.find(key, "answer", self.environment)
            if known is not None:
                self._used[key] = known
                return True
        except (OSError, LookupError, ValueError) as error:
            self._complain("%s cannot be read", key, error)
        answer = ask()
        if answer and not self.store.read_only:
            try:
                self._used[key] = self.store.put(key, "answer", b"yes", environment=self.environment)
            except (OSError, ValueError) as error:
                self._complain("%s cannot be stored", key, error)
        return answer

    # The end.

    def close(self) -> None:
        """Store the remaining files, record the job, and remove the scratch directory. Safe to call twice."""
        with ExitStack() as ends:  # all of them end, also where another one fails or is interrupted
            with uninterrupted(), self._lock:
                if self._closing:
                    return
                self._closing = True
                ends.callback(self.store.close)
                ends.callback(self.scratch.close)
                if self._flights is not None:
                    ends.callback(self._flights.close)
                if self._remote is not None:
                    ends.callback(self._remote.close)
            self._harvester.close()
            try:
                self._remember_run()
            except Exception as error:
                self._complain("the artifacts of job %s cannot be recorded", self.job, error)
            if self._remote is not None:
                self._remote.close(self._of_job().values())

    def leave(self) -> None:
        """In a forked child: stop serving. The parent stores what compilers make in the scratch directory."""
        self._closing = True
        self._lock = threading.RLock()
        self._restorer.leave()
        self._recorder.leave()
        self.store._after_fork()
        if self._remote is not None:
            self._remote.leave()
        if self._flights is not None:
            self._flights.leave()
        self.scratch.leave()

    def remember_job(self) -> None:
        """Record in the store which artifacts this job has used so far."""
        used = self._of_job()
        if used and not self.store.read_only:
            self.store.record_job(self.job, list(used))

    def _of_job(self) -> dict[str, Artifact]:
        return {key: artifact for key, artifact in list(self._used.items()) if artifact.kind != HEADER}

    def _remember_run(self) -> None:
        if self.store.read_only:
            return
        self.store.used(list(self._used.values()))
        self.remember_job()
        self._recorder.record()
        if self.lookups:
            lookup_log.write(self.store.folder, self.store.files, self.job, self.lookups, self.kept)
