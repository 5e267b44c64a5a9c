"""One process's use of the compile cache: what its compilers look up is brought, and what they make is taken in.

A session stands between the shared store and the private folder that compilers see. Nothing that goes wrong in it ever
reaches a compiler: a store that cannot be read is a miss, one that cannot be written keeps nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmstore.compiling.environment import Environment
from warmstore.compiling.misses import lookup_log
from warmstore.compiling.misses.key_components import KeyComponents
from warmstore.compiling.misses.lookup_log import Lookup
from warmstore.compiling.misses.miss_reasons import NEW, MissReasons
from warmstore.compiling.rules import choose
from warmstore.compiling.scratch.compiler_files import HEADER, belongs, to_use
from warmstore.compiling.scratch.harvester import Harvester
from warmstore.compiling.scratch.scratch_dir import ScratchDir, has_room
from warmstore.compiling.scratch.scratch_quota import ScratchQuota
from warmstore.compiling.single_flight import SingleFlight
from warmstore.compiling.store.artifact import Artifact
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.compiling.warn_once import WarnOnce
from warmstore.errors import BadArtifact, CompilationFailed, TooLarge

if TYPE_CHECKING:
    from warmstore.compiling.remote.remote_tier import RemoteTier

_log = logging.getLogger("warmstore")

_NO_FILES = frozenset({"answer", "details", "package"})  # what no compiler looks for in its folder
_HEADERS_FROM = 1 << 30  # bytes of a limit that leaves room for precompiled headers
_HEADERS_NEED = 512 << 20  # bytes that are free on the disk


class CompileSession:
    """Brings and takes in. `requirements` are what artifacts made here need instead of this very environment.

    Args:
        store: The shared store.
        live: The private folder.
        environment: What artifacts must be right for.
        job: The name under which what is used is remembered.
        flights: Locks between processes; None where there can be none.
        wait: How many seconds to wait at most for another process that compiles the same.
        remote: Where is looked for what the store has not; None for nowhere.
        moved: Is told where compilers work from now on, when the live folder has no room for them any longer.
    """

    def __init__(
        self,
        store: ArtifactStore,
        live: ScratchDir,
        environment: Environment,
        *,
        job: str,
        requirements: dict[str, Any],
        flights: SingleFlight | None,
        wait: float,
        remote: RemoteTier | None = None,
        moved: Callable[[Path], None] | None = None,
    ) -> None:
        self.store = store
        self.workplace = ScratchQuota(store, live, moved)
        self.environment = environment
        self.job = job
        self.lookups: list[Lookup] = []
        self._requirements = requirements
        self._flights = flights
        self._wait = wait
        self._remote = remote
        if remote is not None:
            remote.start()
        self._explanations = MissReasons(store, environment, job, requirements)
        self._seen: set[str] = set()
        self._warned: set[str] = set()
        self._used: dict[str, Artifact] = {}
        self._began: dict[str, float] = {}
        self._flying = threading.local()
        self._lock = threading.RLock()
        self._complain = WarnOnce()
        self._closing = False
        self._harvester = Harvester(store, self.workplace, self._put, self._end_flight, self._complain)
        store.hand_over()  # it must not be closed before this

    @property
    def live(self) -> ScratchDir:
        """The folder that compilers work in now."""
        return self.workplace.live

    @property
    def kept(self) -> int:
        """How many files were taken in."""
        return self._harvester.kept

    @property
    def is_open(self) -> bool:
        """Whether it brings and takes in: not after `close`, and not in a forked child."""
        return not self._closing

    # What compilers look for

    def inside(self, path: str) -> str | None:
        """The path relative to the live folder; None when it is elsewhere."""
        prefix = f"{self.live.path}{os.sep}"
        return path[len(prefix) :] if path.startswith(prefix) else None

    def wanted(self, path: str, *, alone: bool) -> bool:
        """Bring what the store has below a relative path, so that a compiler that looks there now finds it.

        Args:
            path: A file, or a folder with a slash at its end.
            alone: What is missing will be compiled next, so only one process should; the others wait for it.
        """
        with self._lock:
            if self._closing or path in self._seen:
                return False
            self._seen.add(path)
        try:
            return self._look_up(path, alone=alone)
        except Exception as error:
            self._complain("looking up %s failed, it is compiled anew", path, error)
            return False

    def _look_up(self, path: str, *, alone: bool) -> bool:
        self._prepare(path, compiling=False)
        found, reasons = self._bring(path)
        if not found and self._fetched(path):
            found, reasons = self._bring(path)
        waited = 0.0
        if not found and alone and self._flights is not None:
            self.landed()  # one flight at a time, so that no two processes wait for each other
            began = time.monotonic()
            mine = self._flights.begin(path) or self._flights.wait(path, self._wait)
            waited = time.monotonic() - began
            found, reasons = self._bring(path)  # also when nobody was waited for: they may just have finished
            if not mine:
                _log.warning(
                    "%s: another process has been compiling it for %.0f s; not waiting any longer", path, waited
                )
            elif found:
                self._flights.end(path)
            else:
                self._flying.path = path
        if not found and self._prepare(path, compiling=alone):
            found, reasons = self._bring(path)  # which a full disk may have kept from coming
            if found:
                self.landed()
        changed: tuple[str, ...] = ()
        if found:
            self._explanations.forget(path)
        else:
            changed = self.why(path)
            self._began[path] = time.monotonic()
        self.note(Lookup(path, bool(found), tuple(reasons), changed, waited))
        return bool(found)

    def _fetched(self, path: str) -> bool:
        """Whether the remote had something below a path, which the store has now."""
        return self._remote is not None and self._remote.fetch(path)

    def _has(self, path: str) -> bool:
        return any(artifact is not None for artifact, _ in self.store.below(path, self.environment))

    def _prepare(self, path: str, *, compiling: bool) -> bool:
        moved = self.workplace.prepare(compiling=compiling)
        if moved:
            self._forget_brought(path)
        return moved

    def _forget_brought(self, *but: str) -> None:
        """Compilers have been sent to a folder where nothing is."""
        with self._lock:
            self._seen &= {*self._began, *but}

    def may_go_on(self, error: Exception) -> bool:
        """Whether what failed should be tried again, for it failed where compilers work, and they were sent elsewhere.

        Raises:
            CompilationFailed: it failed there, and there is no other place.
        """
        if self._closing or not self.workplace.is_to_blame(error):
            return False
        here = self.live.path.parent
        if not self.workplace.move():
            raise CompilationFailed(
                f"nothing can be compiled: {here} has no room, and neither has the temporary folder; free some or set "
                f"TMPDIR. It was: {error}"
            ) from error
        self._forget_brought()
        return True

    @property
    def has_room_for_headers(self) -> bool:
        """Whether headers may be precompiled: two of them take 150 MB."""
        return not self._closing and self.store.limit >= _HEADERS_FROM and has_room(self.live.path, _HEADERS_NEED)

    def want_header(self, path: str) -> None:
        """Bring a precompiled header, if the store has it."""
        if not self._closing:
            _, reasons = self._bring(path)
            if reasons:
                _log.info("%s is compiled: %s", path, "; ".join(reasons))

    def made_header(self, path: str) -> None:
        """A precompiled header is whole: keep it, for whoever compiles on this machine."""
        if self._closing or self.store.read_only or path in self._used:
            return
        try:
            file = self.live.path / path
            self._used[path] = self.store.put(path, HEADER, file, environment=self.environment)
            self._harvester.knows(str(file), file.stat())
        except (OSError, ValueError) as error:
            self._complain("%s is not kept", path, error)

    def why(self, path: str) -> tuple[str, ...]:
        """What is different from the nearest that there is; for what was described."""
        try:
            return self._explanations.why(path)
        except Exception as error:
            self._complain("why %s is missing cannot be said", path, error)
            return ()

    def describe(self, path: str, make: Callable[[], KeyComponents | None]) -> None:
        """Say what a key is made of, just before what lies below its path is looked up."""
        if not self._closing and path not in self._seen:
            self._explanations.describe(path, make)

    def found(self, path: str) -> bool:
        """Whether a path that was wanted was there."""
        return any(one.hit for one in self.lookups if one.key == path)

    def refused(self, path: str, reason: str) -> None:
        """A compiler does not take what it found below a path, or does not look for it; for which reason."""
        self.lookups[:] = [one for one in self.lookups if one.key != path]
        self.note(Lookup(path, False, (reason,)))

    def note(self, lookup: Lookup) -> None:
        """Remember what came of a lookup. Why something is missing is a warning, where it was not said before; but not
        of what is compiled for the first time."""
        self.lookups.append(lookup)
        self.store.count(
            "hit" if lookup.hit else "left" if lookup.left else "incompatible" if lookup.reasons else "miss"
        )
        if not lookup.hit:
            is_new = not lookup.reasons and lookup.changed in ((), (NEW,))
            level = logging.INFO if is_new or lookup.why in self._warned else logging.WARNING
            self._warned.add(lookup.why)
            _log.log(
                level, "%s is %s: %s", lookup.key, "left to torch.compile" if lookup.left else "compiled", lookup.why
            )

    def _bring(self, path: str) -> tuple[int, list[str]]:
        """Copy every usable artifact below a path into the live folder. Returns how many, and why others were not."""
        found, reasons = 0, []
        for artifact, why in self.store.below(path, self.environment):
            if artifact is None:
                reasons += why
                continue
            try:
                self._place(artifact)
                found += 1
            except (OSError, LookupError, ValueError) as error:
                reasons.append(str(error))
        return found, reasons

    def bring_job(self, name: str, kinds: frozenset[str] | None = None) -> int:
        """Bring what a job used, of these kinds or of all. Returns how many artifacts."""
        brought = 0
        if self._remote is not None and not self.store.job(name):
            self._remote.fetch_job(name, kinds)
        for _, group in groupby(self.store.all(name), key=lambda artifact: artifact.key):
            artifact, _ = choose((one for one in group if kinds is None or one.kind in kinds), self.environment)
            if artifact is None or artifact.kind in _NO_FILES:
                continue
            try:
                self._place(artifact)
                brought += 1
            except (OSError, LookupError, ValueError) as error:
                _log.info("%s of job %s cannot be brought: %s", artifact.key, name, error)
        return brought

    def _place(self, artifact: Artifact) -> None:
        """Put one artifact where compilers look, whole or not at all, its hash checked on the way."""
        if not belongs(artifact.key, artifact.kind):
            raise BadArtifact(f"{artifact.key!r} is no place for an artifact of kind {artifact.kind!r}")
        target = self.live.path / artifact.key
        data = to_use(artifact.key, self.store.read(artifact), str(self.live.path))
        if not self.workplace.book(len(data)):
            raise TooLarge(
                f"{artifact.key} is there, but the limit of {self.store.limit:,} bytes has no room to use it"
            )
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole = target.with_name(f".{os.getpid()}.{threading.get_ident()}.tmp")
        whole.write_bytes(data)
        with self._lock:
            self._harvester.knows(str(target), whole.stat())
            whole.rename(target)
            self._used[artifact.key] = artifact

    def warm(self, name: str) -> int:
        """Bring everything that a job used, from the remote too. Returns how many artifacts."""
        if self._remote is not None:
            self._remote.fetch_job(name)
        return self.bring_job(name)

    @contextmanager
    def alone(self, path: str) -> Iterator[None]:
        """While the block runs no other process is in a block of the same path; at most `wait` seconds are waited."""
        mine = self._flights is None or self._flights.begin(path) or self._flights.wait(path, self._wait)
        try:
            yield
        finally:
            if mine and self._flights is not None:
                self._flights.end(path)

    def read(self, path: str) -> tuple[list[bytes], list[str]]:
        """The bytes of every usable artifact below a path, and why others are not usable.

        Nothing is counted: whoever reads says what comes of it.
        """
        if not self._has(path):
            self._fetched(path)
        found, reasons = [], []
        for artifact, why in self.store.below(path, self.environment):
            reasons += why
            if artifact is not None:
                try:
                    found.append(self.store.read(artifact))
                    self._used[artifact.key] = artifact
                except (OSError, LookupError, ValueError) as error:
                    reasons.append(str(error))
        return found, reasons

    def keep(self, path: str, kind: str, data: bytes, seconds: float) -> None:
        """Store an artifact that is no file of a compiler's."""
        self._used[path] = self.store.put(
            path, kind, data, environment=self.environment, requirements=self._requirements, seconds=seconds
        )
        self._offer(self._used[path])
        self._explanations.keep(path)

    def _offer(self, artifact: Artifact) -> None:
        if self._remote is not None:
            self._remote.offer(artifact)

    # What compilers make

    def made(self, path: str) -> None:
        """A compiler has saved what it looked for below a path: take it in soon, and let others go on then."""
        flying = getattr(self._flying, "path", None) == path
        if flying:
            self._flying.path = None
        self._harvester.made(path if flying else None)

    def landed(self) -> None:
        """This thread is through with compiling: let others go on, whatever came of it."""
        path = getattr(self._flying, "path", None)
        if path is not None and self._flights is not None:
            self._flying.path = None
            self._flights.end(path)

    def harvest(self) -> None:
        """Store every file of the live folder that is new and whole, if the store can be written."""
        self._harvester.harvest()

    def _put(self, path: str, kind: str, data: bytes) -> Artifact:
        began = next((at for prefix, at in self._began.items() if path.startswith(prefix)), None)
        artifact = self.store.put(
            path,
            kind,
            data,
            environment=self.environment,
            requirements=self._requirements,
            seconds=0.0 if began is None else time.monotonic() - began,
        )
        self._used[path] = artifact
        self._offer(artifact)
        self._explanations.keep(path)
        return artifact

    def _end_flight(self, path: str) -> None:
        if self._flights is not None:
            self._flights.end(path)

    def remember(self, question: str, ask: Callable[[], bool]) -> bool:
        """The answer to a yes-or-no question about this machine and its compiler, asked until it was yes once.

        A no may be that of a machine too busy for the question.
        """
        key = f"answer/{hashlib.blake2b(question.encode(), digest_size=16).hexdigest()}"
        if self._closing:
            return ask()
        try:
            if not self._has(key):
                self._fetched(key)
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
                self._complain("%s cannot be kept", key, error)
        return answer

    # The end

    def close(self) -> None:
        """Take in what is left, remember what was used, and remove the live folder. Closing twice is fine."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._harvester.close()
        try:
            self._remember_run()
        except Exception as error:
            self._complain("what job %s used cannot be remembered", self.job, error)
        if self._remote is not None:
            self._remote.close(self._of_job().values())
        if self._flights is not None:
            self._flights.close()
        try:
            self.workplace.close()
        finally:
            self.store.close()

    def leave(self) -> None:
        """In a forked child: touch nothing. What compilers make in the live folder, the parent takes in."""
        self._closing = True
        self._lock = threading.RLock()
        self.store._after_fork()
        if self._remote is not None:
            self._remote.leave()
        if self._flights is not None:
            self._flights.leave()
        self.workplace.leave()

    def remember_job(self) -> None:
        """Have the store know what this job used so far."""
        used = self._of_job()
        if used and not self.store.read_only:
            self.store.record_job(self.job, list(used))

    def _of_job(self) -> dict[str, Artifact]:
        return {key: artifact for key, artifact in self._used.items() if artifact.kind != HEADER}

    def _remember_run(self) -> None:
        if self.store.read_only:
            return
        self.store.used(list(self._used.values()))
        self.remember_job()
        if self.lookups:
            lookup_log.write(self.store.folder, self.job, self.lookups, self.kept)
