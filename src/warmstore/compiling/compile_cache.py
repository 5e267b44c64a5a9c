"""The compile cache of this process: one call of `init`, before or after frameworks are imported.

`init` points Inductor, AOTAutograd, Triton, Dynamo's profiles and JAX at a private scratch directory. Artifacts of the
store are copied there when a compiler looks them up, and new files are stored. If the cache fails, the program compiles
as without one.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from warmstore.compiling.hooks import compiler_profiles
from warmstore.compiling.hooks.import_hooks import Watcher
from warmstore.compiling.hooks.jax_hooks import VARIABLES as JAX_VARIABLES
from warmstore.compiling.hooks.jax_hooks import JaxHooks
from warmstore.compiling.hooks.torch_hooks import TorchHooks, is_tested
from warmstore.compiling.misses.lookup_log import Lookup
from warmstore.compiling.probes import probe
from warmstore.compiling.remote.remote_settings import RemoteSettings, open_tier
from warmstore.compiling.scratch.scratch_dir import ScratchDir, places, why_not_trusted
from warmstore.compiling.session import CompileSession
from warmstore.compiling.settings import Settings
from warmstore.compiling.single_flight import SingleFlight
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import message_of
from warmstore.storage.interrupts import uninterrupted
from warmstore.storage.lifecycle import Closeable
from warmstore.storage.registry import COMPILED, register

if TYPE_CHECKING:
    from warmstore.compiling.bundles import BundleInfo
    from warmstore.compiling.finding import Finding
    from warmstore.compiling.store.store_stats import StoreStats

_log = logging.getLogger("warmstore")

# No hook reports the lookups of these kinds, so they are restored before the program starts.
_WITHOUT_HOOK = frozenset({"triton.cubin", "triton.ptx", "triton.ttir", "autotune", "pgo"})


class CompileCache(Closeable):
    """The result of `init`. `active`: whether there is a cache; `reason`: why there is none."""

    _has_pending = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.profile = compiler_profiles.choose(settings.profile)
        self.reason = ""
        self.session: CompileSession | None = None
        self._variables: dict[str, str | None] = {}  # the values before
        self._options: dict[str, Any] = {}  # of Inductor, the values before
        self._watcher = Watcher()
        self._torch: TorchHooks | None = None
        self._jax: JaxHooks | None = None
        try:
            self._start()
        except BaseException as error:
            self._end()
            self.session = None
            if not isinstance(error, Exception):
                raise
            self.reason = f"{type(error).__name__}: {error}"
            _log.warning("no compile cache; everything is compiled as without it: %s", message_of(error))
            _log.debug("compile cache", exc_info=True)

    @property
    def active(self) -> bool:
        """Whether artifacts are stored and restored."""
        return self.session is not None

    def _start(self) -> None:
        settings = self.settings
        settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if reason := why_not_trusted(settings.folder):
            raise PermissionError(f"{settings.folder} {reason}")
        register(COMPILED, settings.folder)
        environment = probe()
        with ExitStack() as undo:
            live = ScratchDir.create(places(settings.folder))
            undo.callback(live.remove)
            store = ArtifactStore(settings.folder, settings.max_size, settings.eviction)
            undo.callback(store.close)
            try:
                flights = None if store.read_only else SingleFlight(settings.folder / "flights")
            except OSError:
                flights = None
            remote = None if settings.offline else open_tier(settings.remote, store, environment, settings.job)
            if remote is not None:
                undo.callback(remote.close)
            with uninterrupted():  # or the session's threads would go on without it
                self.session = CompileSession(
                    store,
                    live,
                    environment,
                    job=settings.job,
                    requirements=partial(compiler_profiles.requirements_now, self.profile),
                    flights=flights,
                    wait=settings.wait,
                    remote=remote,
                    moved=self._moved,
                )
                undo.pop_all()
        self.closed = False
        self._register()
        tested = is_tested(environment.torch)
        self.session.restore_job(settings.job, _WITHOUT_HOOK if tested else None)
        self._point(live.path)
        self._torch, self._jax = TorchHooks(self.session), JaxHooks(self.session)
        if tested:
            self._torch.watch(self._watcher)
        self._jax.watch(self._watcher, partial(self._as_before, ("JAX_COMPILATION_CACHE_DIR", *JAX_VARIABLES)))
        variables = partial(self._as_before, self.profile.variables)
        self._watcher.when_imported("torch._inductor.config", self._apply_options, variables)

    def _point(self, live: Path) -> None:
        """Point compilers, imported already or later, at the scratch directory."""
        self._variables = compiler_profiles.set_variables(self.profile)
        for name, value in {**_folders(live), **JAX_VARIABLES}.items():
            self._variables[name] = os.environ.get(name)
            os.environ[name] = value
        if self.settings.job_is_named:
            self._variables["TORCH_COMPILE_JOB_ID"] = os.environ.get("TORCH_COMPILE_JOB_ID")
            os.environ.setdefault("TORCH_COMPILE_JOB_ID", self.settings.job)

    def _apply_options(self, config: ModuleType) -> None:
        self._options = compiler_profiles.apply_options(self.profile, config)

    @contextmanager
    def _as_before(self, names: Iterable[str]) -> Iterator[None]:
        """Within this context environment variables have the values that they had before."""
        now = {name: os.environ.get(name) for name in names if name in self._variables}
        _set({name: self._variables[name] for name in now})
        try:
            yield
        finally:
            _set(now)

    def _moved(self, live: Path) -> None:
        """Point compilers that are running at another scratch directory."""
        os.environ.update(_folders(live))
        if (utils := sys.modules.get("torch._inductor.utils")) is not None:
            utils.clear_caches()  # of modules and libraries by their paths; those in use stay in use
        if self._jax is not None:
            self._jax.set_options()

    def close(self) -> None:
        """Store the remaining files, remove the scratch directory, and restore the compilers. Safe to call twice."""
        if not self.closed:
            self._end()

    def _end(self) -> None:
        self.closed = True
        self._unregister()
        with ExitStack() as stack:
            if self.session is not None:
                stack.callback(self.session.close)
            self.restore_compilers()

    def restore_compilers(self) -> None:
        """Remove the hooks and variables. Safe to call twice."""
        with ExitStack() as stack:  # each is removed even if another one fails
            stack.callback(self._restore_variables)
            stack.callback(self._restore_options)
            for hooks in (self._jax, self._torch):
                if hooks is not None:
                    stack.callback(hooks.remove)
            self._watcher.stop()

    def _restore_variables(self) -> None:
        before, self._variables = self._variables, {}
        _set(before)

    def _restore_options(self) -> None:
        before, self._options = self._options, {}
        compiler_profiles.restore_options(self.profile, before)

    def _after_fork(self) -> None:
        """Stop serving in a forked child. Its variables stay: compile workers write into the parent's scratch
        directory."""
        if self.session is not None:
            self.session.leave()
        self.closed = True


def _set(variables: Mapping[str, str | None]) -> None:
    """Set environment variables; those with None are removed."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _folders(live: Path) -> dict[str, str]:
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(live / "inductor"),
        "TRITON_CACHE_DIR": str(live / "triton"),
        "JAX_COMPILATION_CACHE_DIR": str(live / "jax"),
    }


_current: CompileCache | None = None


def init(
    local_dir: str | os.PathLike[str] | None = None,
    *,
    max_size: int | str | None = None,
    eviction: str = "lru",
    profile: str = "auto",
    job: str | None = None,
    offline: bool | None = None,
    wait: float = 300.0,
    remote: str | os.PathLike[str] | None = None,
    remote_options: Mapping[str, Any] | None = None,
    remote_wait: float = 2.0,
) -> CompileCache:
    """Let this process use what other processes compiled, and store what it compiles.

    Call it once, before or after `import torch` or `import jax`, and before anything is compiled. Another call with the
    same arguments does nothing; a call with other arguments replaces the cache.

    Args:
        local_dir: The store's folder, which no other user may write. Default: WARMSTORE_CACHE_DIR, else the user's
            cache folder.
        max_size: The most bytes of the folder, or a text such as "100GB". Default: WARMSTORE_MAX_SIZE_GB, else 100 GB.
        eviction: What is evicted first: "lru", "lfu", "size" or "age"; see `ArtifactStore`.
        profile: "fast" compiles for this machine, "portable" for every x86-64 CPU with AVX2; "auto" is
            WARMSTORE_PROFILE, else "fast".
        job: The name under which the store records the artifacts that this program uses. Default: WARMSTORE_JOB, else
            the script's name.
        offline: Use no network. Default: WARMSTORE_OFFLINE.
        wait: The most seconds to wait for another process that compiles the same. After that this process compiles too.
        remote: A shared store: s3://bucket/prefix, gs://, az://, https:// (WebDAV) or a folder. Default:
            WARMSTORE_REMOTE_URL. It is used only if a key is configured, since its artifacts are executed.
        remote_options: Options of the object store, such as {"endpoint": "https://minio.example.org"}; see
            `warmstore.remote.objects.Objects`.
        remote_wait: The seconds in total that this process waits for the remote while no data flows.

    Returns:
        The cache. If there can be no cache here, its `active` is False, its `reason` says why, and programs compile as
        without one.

    Raises:
        ValueError: An argument or variable is invalid.
    """
    global _current
    shared = RemoteSettings.of(remote, remote_options, remote_wait)
    settings = Settings.of(local_dir, max_size, eviction, profile, job, offline, wait, shared)
    _set_level()
    if _current is not None:
        if not _current.closed and _current.settings == settings:
            return _current
        _current.close()
        _current.restore_compilers()  # in a forked child, which has those of its parent
    _current = CompileCache(settings)
    return _current


def warmup(names: Iterable[str]) -> dict[str, int]:
    """Restore all artifacts of these jobs, before they are looked up. Returns the number for each job.

    Raises:
        ValueError: `init` was not called, or there is no cache here.
    """
    return {name: _session().warm(name) for name in names}


def stats() -> StoreStats:
    """The statistics of the store. Raises ValueError as `warmup`, like the functions below."""
    return _session().store.stats()


def lookups() -> list[Lookup]:
    """The lookups of this process's compilers so far: hits, and misses with their reasons."""
    return list(_session().lookups)


def clear(*, job: str | None = None) -> int:
    """Remove all artifacts from the store, or those of a job. Returns how many."""
    return _session().store.clear(job=job)


def export(path: str | os.PathLike[str], jobs: Sequence[str] | None = None) -> BundleInfo:
    """Write all artifacts, or those of some jobs, into one file, signed if a key is configured.

    Raises:
        TargetExists, NoArtifact, NotTrusted, OSError: As `bundles.export`.
    """
    from warmstore.compiling import bundles

    session = _session()
    session.harvest()
    session.remember_job()
    return bundles.export(session.store, path, jobs=jobs)


def import_(path: str | os.PathLike[str]) -> BundleInfo:
    """Add all artifacts of a bundle to the store, or none. They are executed here: import only what you trust.

    Raises:
        FileNotFoundError, BadBundle, NotTrusted, NewerFormat, TooLarge, WriteFailed, ReadOnly: As `bundles.import_`.
    """
    from warmstore.compiling import bundles

    return bundles.import_(_session().store, path)


def doctor(local_dir: str | os.PathLike[str] | None = None, job: str | None = None) -> list[Finding]:
    """Check whether the cache can work here, and show the reasons for misses of the last runs; see `Finding`.

    Args:
        local_dir: As for `init`; without it, the folder of this process's cache.
        job: Only the last run of this job.
    """
    from warmstore.compiling.doctor import doctor as examine

    if local_dir is None and _current is not None:
        local_dir = _current.settings.folder
    return examine(Settings.of(local_dir, None, "lru", "auto", None, None, 0.0).folder, job)


def current() -> CompileCache | None:
    """The result of the last `init`; None before the first."""
    return _current


def _session() -> CompileSession:
    if _current is None or _current.closed:
        raise ValueError("there is no compile cache in this process yet; call compile_cache.init first")
    if _current.session is None:
        raise ValueError(f"there is no compile cache in this process: {_current.reason}")
    return _current.session


def _set_level() -> None:
    """Set the lowest level of shown messages from WARMSTORE_LOG."""
    if name := os.environ.get("WARMSTORE_LOG"):
        level = logging.getLevelNamesMapping().get(name.upper())
        if level is None:
            raise ValueError(f"WARMSTORE_LOG={name!r} is not known; set it to debug, info, warning or error")
        _log.setLevel(level)
        if not _log.handlers and not logging.getLogger().handlers:
            _log.addHandler(logging.StreamHandler())
