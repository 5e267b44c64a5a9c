"""FeatureCache: outputs of a frozen module, kept per sample on disk and found by the sample's id.

A cache consists of a record store with a key column, a key index, and a queue of outputs that are not written yet.
Every process may write. A miss makes a process look for rows that others committed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from warmstore.display.html import html_method
from warmstore.errors import ReadOnly, StaleCache
from warmstore.features.cache_html import cache_html
from warmstore.features.cache_merging import MergeResult, merge_caches
from warmstore.features.cache_stats import CacheStats, stats_of, usage_of
from warmstore.features.keyed.cache_options import CacheOptions
from warmstore.features.keyed.cache_session import CacheSession, rest_unused
from warmstore.features.keyed.cache_versions import Fingerprint, difference, digest
from warmstore.features.keyed.cached_ids import CachedIds
from warmstore.features.keyed.open_version import OpenVersion
from warmstore.features.keyed.usage_counters import Usage
from warmstore.features.keyed.version_binding import bind
from warmstore.features.remote_binding import RemoteBinding, pull, push
from warmstore.features.sample_mapping import SampleMapping
from warmstore.features.write_queue import Block, WriteBehindQueue
from warmstore.loading.fill_result import FillResult
from warmstore.records.index.sample_keys import as_keys
from warmstore.records.maintenance.rewrite import Utilisation
from warmstore.remote.location import is_remote
from warmstore.replicate.pull import PullResult
from warmstore.replicate.push import PushResult
from warmstore.replicate.remote_copy import Remote
from warmstore.storage.array_types import Int64
from warmstore.storage.files import Files
from warmstore.storage.humanize import parse_size
from warmstore.storage.lifecycle import Closeable
from warmstore.storage.user_paths import user_path

if TYPE_CHECKING:
    import torch
    from torch import nn

    from warmstore.features.filling import Call
    from warmstore.features.module_changes import ModuleChangeDetector


class FeatureCache(SampleMapping, Closeable):
    """The cache with one id in a folder. Safe to use from several threads and processes.

    If the folder is a URL, samples of other hosts are found at once and downloaded when they are read. New samples are
    written to a local folder and pushed by `close` or `push`. Where the remote fails, samples count as missing.

    Args:
        folder: the folder of any number of caches, or a URL, such as "s3://bucket/caches".
        id: the name of the cache: the module and its version, such as "resnet50_v1".
        flush_every: number of pending samples that starts a commit to the disk.
        async_write: commit in a background thread; False commits in the call that reaches `flush_every`.
        max_pending: the most bytes of pending outputs; `put_batch` waits if there are more.
        read_only: store nothing, and compute misses each time. A cache at a URL still writes its local copy.
        variable: store outputs whose shapes vary between samples or batches. Noticed if the first commit shows it.
        pad_value: pads samples of different shapes in one batch to the largest of each dimension. None raises instead.
        lists: the meaning of a list of n items for n samples: "per_sample", one item each; "structure", part of the
            structure, such as one tensor per layer; "auto" infers it, and raises if it is ambiguous.
        versions: what to do if the fingerprint differs from that of the cache: "raise" StaleCache; "new" keeps one
            version of the cache for each fingerprint; "ignore" returns the outputs of another module.
        writer_ranks: the ranks of a distributed job that write; others compute misses without storing them. None: all.
        hot_size: bytes of rows that this process keeps in its own memory, decompressed, such as "2GB"; "all" for the
            whole cache, loaded at the first lookup, if it fits. None relies on the page cache.
        hot_device: the device of those rows: "cpu", or one such as "cuda".
        max_size: the most bytes that the files of this id, of all versions, take on disk, such as "50GB". The oldest
            samples are evicted for new ones, a 32nd of it at a time. Give all writing processes the same value.
        allow_pickle: pickle items of per-sample lists that are no tensors, containers or JSON values, and unpickle them
            when they are read. Unpickling runs code chosen by whoever wrote the cache.
        codec: of each value of a new cache: "raw", "zstd", "lz4" or "deflate", optionally with ":level".
        threads: number of threads that compress; None for one per core.
        cache_dir: for a cache at a URL: the folder for blocks of its chunks; see `RecordStore.open`.
        cache_size: for a cache at a URL; see `RecordStore.open`.
        remote_options: for a cache at a URL; see `RecordStore.push`.
        anonymous: for a cache at a URL; see `RecordStore.push`.
        sign: sign what is pushed, and use only what one of the user's keys has signed. Always on with `allow_pickle`.

    Raises:
        ValueError: an id that cannot name a folder, or an option that is not possible.
        StoreExists: the folder of the id is a record store. ReadOnly: it cannot be written; pass `read_only`.
        NotTrusted: with `sign` or `allow_pickle`: there is no key, or the folder has samples that nobody signed.
        StaleCache, SchemaMismatch: the cache at the URL does not fit the samples in `cache_dir`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        id: str,
        *,
        flush_every: int = 2048,
        async_write: bool = True,
        max_pending: int | str = "256MB",
        read_only: bool = False,
        variable: bool = False,
        pad_value: float | None = None,
        lists: str = "auto",
        versions: str = "raise",
        writer_ranks: Collection[int] | None = None,
        max_size: int | str | None = None,
        allow_pickle: bool = False,
        codec: str = "raw",
        threads: int | None = None,
        hot_size: int | str | None = None,
        hot_device: str | torch.device = "cpu",
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = "20GB",
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
        sign: bool = False,
        files: Files | None = None,
    ) -> None:
        self._options = CacheOptions(
            flush_every=flush_every,
            async_write=async_write,
            max_pending=max_pending,
            read_only=read_only,
            variable=variable,
            pad_value=pad_value,
            lists=lists,
            versions=versions,
            writer_ranks=writer_ranks,
            max_size=max_size,
            allow_pickle=allow_pickle,
            codec=codec,
            threads=threads,
            hot_size=hot_size,
            hot_device=hot_device,
            cache_dir=cache_dir,
            cache_size=cache_size,
            remote_options=remote_options,
            anonymous=anonymous,
            sign=sign,
        )
        self.id = id
        self.read_only = read_only
        self._location = os.fspath(folder)
        self._remote_binding: RemoteBinding | None = None
        if is_remote(self._location):
            remote = Remote(self._location, remote_options, anonymous, sign=self._options.is_signed)
            self._remote_binding = RemoteBinding(remote, self._options)
        local = user_path(folder) if self._remote_binding is None else self._remote_binding.folder
        blocks = WriteBehindQueue(self._commit, flush_every, parse_size(max_pending), async_write)
        self._session = CacheSession(OpenVersion(id, local, self._options, blocks, self._remote_binding, files))
        self._ids = CachedIds(self._session.version)
        self._others: dict[str, FeatureCache] = {}  # versions opened beside this one, by digest
        self._detectors: WeakSet[ModuleChangeDetector] = WeakSet()  # of the modules that use this cache
        self.closed = False
        self._register()

    def __repr__(self) -> str:
        binding = self._remote_binding
        location = str(self._session.version.folder) if binding is None else binding.remote.shown
        return f"FeatureCache({location!r}, {self.id!r}, {sum(each.entries for each in self._versions()):,} entries)"

    _repr_html_ = html_method(cache_html)

    @property
    def path(self) -> Path:
        """The folder of this version of the cache."""
        return self._session.version.path

    @property
    def writes(self) -> bool:
        """Whether this process stores what it computes: it is not read-only, and `writer_ranks` includes it."""
        return self._session.version.writes

    @property
    def _flushes_at_sigterm(self) -> bool:
        return not self.read_only

    @property
    def _has_pending(self) -> bool:
        return not self.closed and any(len(version.blocks) for version in self._versions())

    @property
    def fingerprint(self) -> Fingerprint | None:
        """The fingerprint of the stored outputs, or else of the bound module; None without either."""
        return self._session.version.fingerprint

    def stats(self) -> CacheStats:
        """Figures of the cache and of its use by this process, summed over the open versions."""
        return stats_of(self._sessions(), max((each.window for each in list(self._detectors)), default=None))

    def _usage_now(self) -> tuple[Usage, float, int]:
        """The use by this process, the seconds that hits saved, and the bytes that they read."""
        return usage_of(self._sessions())

    def get_batch(self, ids: Any, device: torch.device | str | None = None) -> tuple[Any, Int64]:
        """Look up a batch of samples.

        Args:
            ids: a list, array or tensor of n ids: str, int, bytes, paths, UUIDs or tuples of these.
            device: of the returned tensors; the CPU if None.

        Returns:
            The outputs of the samples that were found, in order and in their original structure, or None if none was
            found; and the positions of the others, int64 [misses], in order.

        Raises:
            BadIds, BadIdType: invalid ids. Closed: the cache is closed.
            WriteFailed: an earlier write in the background failed; its samples are still pending.
        """
        values, missing = self._session.fetch(as_keys(ids))
        if values is None:
            return None, missing
        if device is not None:
            import torch

            device = torch.device(device)
        return self._session.assemble(values, device), missing

    def put_batch(self, ids: Any, outputs: Any) -> None:
        """Store the outputs of a batch of samples. Lookups find them at once; the next flush commits them.

        Args:
            ids: n ids, as for `get_batch`. Of equal ids the last counts.
            outputs: arrays or tensors [n, ...], in dicts, lists, tuples, namedtuples or dataclasses, in any nesting.

        Raises:
            BadIds, BadIdType: invalid ids, or not one per output.
            SchemaMismatch: outputs that do not fit the cache; nothing of the batch is stored.
            ReadOnly: the cache was opened with read_only=True. Closed: it is closed; nothing of the batch is stored.
            WriteFailed: an earlier write in the background failed; its samples are still pending.
        """
        keys = as_keys(ids)
        if self.read_only:
            raise ReadOnly(f"the cache {self.path} was opened with read_only=True; open it without to put samples")
        if len(keys):
            self._session.put(keys, outputs)

    def flush(self) -> None:
        """Commit all pending samples to the disk, where other processes see them.

        Raises:
            WriteFailed: a write failed; nothing is lost, and the next flush retries. Closed: the cache is closed.
        """
        self._session.version.flush()
        for other in list(self._others.values()):
            other.flush()

    def fill(
        self, module: nn.Module, loader: Iterable[Any], *, call: Call | None = None, progress: bool | None = None
    ) -> FillResult:
        """Compute and store every sample of a loader that is not cached yet. Fully cached batches are skipped.

        A fill that was killed resumes when it is called again. In a distributed job give each rank its own part of the
        samples; ranks that do not write return at once.

        Args:
            module: a CachedModule with this cache, or a frozen module, which is wrapped in one.
            loader: any iterable of batches. A dict is passed to the module, with its ids under "cache_ids" (or
                where the CachedModule's `key_from_batch` finds them). The last entry of a tuple or list holds the ids,
                the others are the module's positional arguments. A DataLoader's batches are on the CPU: move them to
                the module's device in `call`.
            call: turns a batch of any other kind into (args, kwargs) of a call of the CachedModule.
            progress: show a bar; None shows one on a terminal or in a notebook.

        Returns:
            How many samples were computed and found. All are on the disk.

        Raises:
            BadIds: a batch without ids.
            ReadOnly: the cache was opened with read_only=True.
            ValueError: a CachedModule with another cache, or one that is not enabled.
        """
        from warmstore.features.filling import fill  # needs torch

        return fill(self, module, loader, call, progress)

    def merge(self, other: FeatureCache | str | os.PathLike[str], *, progress: bool | None = None) -> MergeResult:
        """Copy the samples that another cache of the same module has and this one lacks.

        Copies blocks of about 30 MB. A merge that was killed resumes when it is called again.

        Args:
            other: a cache, or the folder of one (of one version where there are several).
            progress: show a bar; None shows one on a terminal or in a notebook.

        Raises:
            SchemaMismatch: the other cache holds outputs of another structure, dtype or shape.
            StaleCache: the other cache was filled under another fingerprint, and versions="raise" (with "new", the rows
                go to their version); or by put_batch alone while this one was not.
            StoreExists: the other folder is a record store and no cache. NotAStore: it is no store.
            NotTrusted: the other cache has samples that nobody signed, and this one has `sign` or `allow_pickle`.
            ReadOnly: this cache is not written by this process. Closed: it is closed.
        """
        return merge_caches(self, other, progress)

    def rebalance(self, *, progress: bool | None = None) -> Utilisation:
        """Rewrite the store with one row per id and without damaged rows, and free the other bytes.

        Other processes may read and write meanwhile. A copy must fit on the disk: if a cache with `max_size` is more
        than half full, the oldest samples are evicted to make room for the copy.

        Args:
            progress: show a bar; None shows one on a terminal or in a notebook.

        Returns:
            Records now, rows and bytes before, bytes now.

        Raises:
            ReadOnly: this cache is not written by this process.
        """
        if not self.writes:
            raise ReadOnly(f"the cache {self.path} is only read by this process; open it for writing to rebalance it")
        self.flush()
        return self._session.version.rebalance(progress)

    # Remotes

    def push(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        verify: bool = False,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> PushResult:
        """Add this host's samples to a cache at a remote, which any number of hosts fill; see `RecordStore.push`.

        Args:
            url: of the folder of caches; this one is stored in it under its id. None for the URL it was opened with.

        Raises:
            StaleCache, SchemaMismatch: the remote cache was filled with another module, or holds other outputs.
            NotTrusted: signatures are needed, and no key can make them.
            RemoteUnavailable, RemoteRefused: the cache was not pushed.
        """
        remote = self._remote(url, remote_options, anonymous)
        self.flush()
        return push(self._session.version, remote, verify, progress)

    def pull(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> PullResult:
        """Copy the samples that other hosts pushed to a remote. Their chunks become chunks of this cache.

        Samples that this folder has put itself stay, and are stored twice until `rebalance`. Arguments: see `push`.

        Raises:
            StaleCache, SchemaMismatch: the remote cache was filled with another module, or holds other outputs.
            NotTrusted: signatures are needed, and there is no key to check them. ReadOnly: this cache is only read.
            RemoteUnavailable, RemoteRefused: chunks copied so far are kept; the next pull resumes. Damaged chunks are
                left out, and counted in the result.
        """
        remote = self._remote(url, remote_options, anonymous)
        self.flush()
        return pull(self._session.version, remote, progress)

    def sync(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> tuple[PullResult, PushResult]:
        """`pull` and then `push`."""
        options: dict[str, Any] = {"progress": progress, "remote_options": remote_options, "anonymous": anonymous}
        return self.pull(url, **options), self.push(url, **options)

    def _remote(self, url: str | os.PathLike[str] | None, options: Mapping[str, Any] | None, anonymous: bool) -> Remote:
        if url is not None:
            remote = Remote(url, options, anonymous, sign=self._options.is_signed)
            return remote.below(self.path.name)
        if self._remote_binding is None:
            raise ValueError(f"push and pull need a URL: {self.path} was opened as a folder")
        return self._remote_binding.remote.below(self.path.name)

    # Versions

    def _bind(self, fingerprint: Fingerprint) -> FeatureCache:
        """The version of this cache for a fingerprint: this cache, or another one in the same folder.

        Raises:
            StaleCache: the cache was filled under another fingerprint, and versions="raise".
        """
        version = self._session.version
        try:
            is_bound = bind(version, fingerprint)
        except StaleCache:
            known = version.fingerprint or {}
            version.recorder.stale(version, digest(fingerprint), difference(known, fingerprint))
            raise
        if is_bound:
            return self
        with version.lock:
            key = digest(fingerprint)
            if key in self._others:
                return self._others[key]
            files = version.files if self._remote_binding is None else None
            other = FeatureCache(self._location, self.id, **vars(self._options), files=files)
            found = self._others[key] = other._bind(fingerprint)
            for hot in [each.hot for each in self._versions() if each.hot is not None]:
                hot.share(1 + len(self._others))
        rest_unused(self._sessions())
        return found

    def _sessions(self) -> list[CacheSession]:
        return [self._session, *(other._session for other in self._others.values())]

    def _versions(self) -> list[OpenVersion]:
        return [session.version for session in self._sessions()]

    # Committing and closing

    def _commit(self, blocks: Sequence[Block]) -> None:
        # A method of the cache: the background thread then holds a reference to it, so it is not closed meanwhile.
        self._session.version.commit(blocks)

    def close(self) -> None:
        """Commit pending samples and close the files. Closing twice is fine; lookups and writes then raise `Closed`.

        Raises:
            WriteFailed: a write failed; the cache stays open.
        """
        if self.closed:
            return
        with self._session.blocks.closing():
            self._session.blocks.stop()
            self.flush()
            for other in list(self._others.values()):
                other.close()
            self._session.version.close()
        self.closed = True
        self._unregister()

    def _after_fork(self) -> None:
        self._session.after_fork()

    def __reduce__(self) -> Any:
        return partial(FeatureCache, **vars(self._options)), (self._location, self.id)

    def __deepcopy__(self, memo: Any) -> Self:
        return self
