"""FeatureCache: outputs of a frozen module, kept per sample on disk and found by the sample's id.

A cache is a record store with a key column, a key index beside it, and a queue of outputs on their way there. Every
process may write, and sees what the others committed as soon as it misses something.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import numpy as np

from warmstore.errors import ReadOnly
from warmstore.features.cache_merging import MergeResult, merge_caches
from warmstore.features.cache_stats import CacheStats
from warmstore.features.keyed.cache_options import CacheOptions
from warmstore.features.keyed.cache_session import CacheSession
from warmstore.features.keyed.cache_versions import Fingerprint, digest, read_versions
from warmstore.features.keyed.open_version import OpenVersion
from warmstore.features.keyed.version_binding import bind
from warmstore.features.remote_binding import RemoteBinding, pull, push
from warmstore.features.write_queue import Block, WriteBehindQueue
from warmstore.loading.fill_result import FillResult
from warmstore.records.index.sample_keys import as_keys
from warmstore.records.maintenance.rewrite import Utilisation
from warmstore.remote.location import is_remote
from warmstore.replicate.pull import PullResult
from warmstore.replicate.push import PushResult
from warmstore.replicate.remote_copy import Remote
from warmstore.storage.files import Files
from warmstore.storage.humanize import parse_size
from warmstore.storage.lifecycle import Closeable

if TYPE_CHECKING:
    import torch
    from torch import nn

    from warmstore.features.filling import Call
    from warmstore.features.module_changes import ModuleChangeDetector

Int64 = np.ndarray[Any, np.dtype[np.int64]]


class FeatureCache(Closeable):
    """The cache with one id in a folder. Safe to use from several threads and processes.

    At a remote, others' samples are found at once and come when they are read; new ones are written here, and pushed at
    close, or by `push`. A remote that fails is a miss.

    Args:
        folder: where caches lie; any number share it. Or a URL, such as "s3://bucket/caches".
        id: which cache: name the module and its version, such as "resnet50_v1".
        flush_every: samples after which what was accepted is committed to the disk.
        async_write: commit in a background thread; False commits in the call that makes a commit due.
        max_pending: bytes of outputs that may wait for the disk; beyond it `put_batch` waits.
        read_only: never write: misses are computed and not kept.
        variable: store outputs whose shapes vary from sample to sample or batch to batch. Found out by itself where it
            shows before the first commit.
        pad_value: where samples of different shapes meet in one batch, pad them to the largest with this value. None
            raises instead.
        lists: what a list of n things for n samples is: "per_sample" one thing each, "structure" a part of the output's
            structure such as one tensor per layer; "auto" tells them apart where it can and raises where not.
        versions: what to do where what decides outputs is not what it was when the cache was filled: "raise"
            StaleCache; "new" keep one version of the cache for each, side by side; "ignore" use the cache as it is,
            whoever filled it, and get another module's outputs.
        writer_ranks: the ranks of a distributed job that write. The others read, compute what they miss and keep
            nothing of it. None lets all write, which is safe and faster.
        hot_size: bytes of rows that this process keeps in memory of its own, such as "2GB"; "all" for the whole cache,
            loaded at once, where it fits. It pays for compressed rows, which it keeps decompressed. None leaves all
            to the system's page cache.
        hot_device: where those rows lie: "cpu" or a device such as "cuda", from which they need no copying.
        max_size: bytes that all files of this id, of all its versions, may take on the disk, such as "50GB". Where
            more would be written, the oldest samples go, a 32nd at a time. Give every process that writes the same.
        allow_pickle: keep what is no tensor, container or JSON value, in lists of one per sample, as pickled objects;
            and unpickle what the cache holds, which runs code that whoever wrote the cache has chosen.
        codec: how a new cache compresses each value: "raw", "zstd", "lz4" or "deflate", with ":level" at will. One that
            is there keeps the codec it was made with.
        threads: that compress what this process writes; None for one per core.
        cache_dir, cache_size, remote_options, anonymous: of a cache at a remote; see `RecordStore.open` and `push`.
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
        )
        self.id = id
        self.read_only = read_only
        self._given = os.fspath(folder)
        self._joined = self._join_remote(self._given)
        here = Path(folder) if self._joined is None else self._joined.folder
        blocks = WriteBehindQueue(self._commit, flush_every, parse_size(max_pending), async_write)
        self.session = CacheSession(id, here, self._options, blocks, self._joined, files)
        self._others: dict[str, FeatureCache] = {}  # versions opened beside this one, by digest
        self.detectors: WeakSet[ModuleChangeDetector] = WeakSet()  # of the modules that use it
        self.closed = False
        self.register()

    def __repr__(self) -> str:
        where = str(self.session.version.folder) if self._joined is None else self._joined.remote.shown
        return f"FeatureCache({where!r}, {self.id!r}, {len(self):,} entries)"

    def __len__(self) -> int:
        """Rows on the disk, those of an id cached again included, and samples that wait to be written."""
        versions = self._versions()
        stored = sum(version.reader.store.snapshot.length for version in versions if version.reader is not None)
        return stored + sum(len(version.blocks) for version in versions)

    @property
    def path(self) -> Path:
        """The folder of this version of the cache."""
        return self.session.version.path

    @property
    def writes(self) -> bool:
        """Whether this process keeps what it computes: neither read-only nor kept from it by `writer_ranks`."""
        return self.session.version.writes

    @property
    def fingerprint(self) -> Fingerprint | None:
        """What this cache was filled under, or its module was bound with; None while neither happened."""
        return self.session.version.fingerprint

    def stats(self) -> CacheStats:
        """What the cache holds and what it did in this process, all versions together."""
        sessions, versions, quota = self._sessions(), self._versions(), self.session.version.quota
        stores = [version.reader.store for version in versions if version.reader is not None]
        return CacheStats(
            entries=sum(store.snapshot.length for store in stores),
            pending=sum(len(version.blocks) for version in versions),
            hits=sum(version.cost.here.hits for version in versions),
            misses=sum(version.cost.here.misses for version in versions),
            damaged=sum(session.damaged for session in sessions),
            bytes=sum(store.nbytes for store in stores),
            bytes_read=sum(session.bytes_read for session in sessions),
            computed_seconds=sum(version.cost.here.seconds for version in versions),
            seconds_saved=sum(version.cost.here.hits * version.cost.in_all().per_sample for version in versions),
            versions=read_versions(self.session.version.folder, self.session.version.name),
            hot_hits=sum(version.hot.hits for version in versions if version.hot is not None),
            hot_bytes=sum(version.hot.nbytes for version in versions if version.hot is not None),
            max_size=quota.max_size if quota is not None else None,
            window=max((detector.window for detector in list(self.detectors)), default=None),
            evicted=sum(gaps.count for gaps in (store.snapshot.gaps for store in stores) if gaps is not None),
        )

    # Samples

    def get_batch(self, ids: Any, device: torch.device | str | None = None) -> tuple[Any, Int64]:
        """Look up a batch of samples.

        Args:
            ids: a list, array or tensor of n str or int.
            device: where tensors are wanted; the CPU if None.

        Returns:
            The outputs of the samples that were found, in their order and in the structure they were put in, or None
            when there are none; and the positions of the others, int64 [misses], in order.

        Raises:
            BadIds, BadIdType: ids that cannot be.
            WriteFailed: an earlier write in the background failed; its samples still wait.
        """
        values, missing = self.session.fetch(as_keys(ids))
        return None if values is None else self.session.assemble(values, _torch_device(device)), missing

    def put_batch(self, ids: Any, outputs: Any) -> None:
        """Keep the outputs of a batch of samples. They are found at once, and are on the disk after the next flush.

        Args:
            ids: a list, array or tensor of n str or int. Of equal ids the last one counts.
            outputs: arrays or tensors [n, ...], in dicts, lists, tuples, namedtuples or dataclasses, nested at will.

        Raises:
            BadIds, BadIdType: ids that cannot be, or more or fewer than outputs.
            SchemaMismatch: outputs that do not fit what the cache holds; nothing is kept of the batch.
            ReadOnly: the cache was opened with read_only=True.
            WriteFailed: an earlier write in the background failed; its samples still wait.
        """
        keys = as_keys(ids)
        if self.read_only:
            raise ReadOnly(f"the cache {self.path} was opened with read_only=True; open it without to put samples")
        if len(keys):
            self.session.put(keys, outputs)

    def flush(self) -> None:
        """Commit everything accepted so far; it is on the disk, and other processes see it, when this returns.

        Raises:
            WriteFailed: the disk refused; nothing is lost, and the next flush tries again.
        """
        self.session.version.flush()
        for other in list(self._others.values()):
            other.flush()

    def fill(
        self,
        module: nn.Module,
        loader: Iterable[Any],
        *,
        call: Call | None = None,
        progress: bool | None = None,
    ) -> FillResult:
        """Compute and keep every sample of a loader that is not cached yet. Batches that are all there are skipped.

        Killed and started again it goes on, since what was flushed is found. In a distributed job give each rank its
        own part of the samples; ranks that do not write return at once.

        Args:
            module: a CachedModule with this cache, or a frozen module to be wrapped in one.
            loader: any iterable of batches. A dict goes to the module as it is, with its ids under "cache_ids" (or
                where the CachedModule's `key_from_batch` finds them); of a tuple or list the last entry is the ids, and
                the others are the module's positional arguments. A DataLoader's batches are on the CPU: move them to
                the module's device in `call`.
            call: turns a batch of any other kind into (args, kwargs) of a call of the CachedModule.
            progress: show a bar; None shows one on a terminal.

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
        """Copy what another cache of the same module holds and this one lacks. What is here already stays as it is.

        Goes in blocks of some 30 MB. Killed and started again it goes on, since keys that are here are skipped.

        Args:
            other: a cache, or the folder of one (of one version where there are several).
            progress: show a bar; None shows one on a terminal.

        Raises:
            SchemaMismatch: it holds outputs of another structure, dtype or shape.
            StaleCache: it was filled under another fingerprint, and versions="raise" (with "new", the rows go to
                their version); or by put_batch alone while this one was not.
            StoreExists: it is a record store and no cache. NotAStore: it is nothing.
            ReadOnly: this cache is not written by this process.
        """
        return merge_caches(self, other, progress)

    def rebalance(self, *, progress: bool | None = None) -> Utilisation:
        """Write the store anew with one row per id, and without damaged rows, and give the rest of the room back.

        Others may read and write meanwhile. There must be room for a copy: of a cache with `max_size` that is more
        than half full, the oldest samples go first.

        Args:
            progress: show a bar; None shows one on a terminal.

        Returns:
            Records now, rows and bytes before, bytes now.

        Raises:
            ReadOnly: this cache is not written by this process.
        """
        if not self.writes:
            raise ReadOnly(f"the cache {self.path} is only read by this process; open it for writing to rebalance it")
        self.flush()
        return self.session.version.rebalance(progress)

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
        """Add what this host computed to a cache at a remote, which any number of hosts fill; see `RecordStore.push`.

        Args:
            url: where caches lie; this one is below it under its id. None for where it was opened.

        Raises:
            StaleCache, SchemaMismatch: others filled it with another module, or with other outputs.
            RemoteUnavailable, RemoteRefused: it was not pushed.
        """
        remote = self._remote(url, remote_options, anonymous)
        self.flush()
        return push(self.session.version, remote, verify, progress)

    def pull(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> PullResult:
        """Have what other hosts pushed to a remote here too. Their chunks join this cache as they are.

        Samples that two hosts computed are here twice then, until `rebalance`. The arguments are those of `push`.

        Raises:
            StaleCache, SchemaMismatch: others filled it with another module, or with other outputs.
            Damaged, RemoteUnavailable, RemoteRefused: what came until then is here; the next pull goes on.
        """
        remote = self._remote(url, remote_options, anonymous)
        self.flush()
        return pull(self.session.version, remote, progress)

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
        if url is None:
            if self._joined is None:
                raise ValueError(f"push and pull need a URL: {self.path} was opened as a folder")
            return self._joined.remote.below(self.path.name)
        return Remote(url, options, anonymous).below(self.path.name)

    def _join_remote(self, folder: str) -> RemoteBinding | None:
        if not is_remote(folder):
            return None
        return RemoteBinding(Remote(folder, self._options.remote_options, self._options.anonymous), self._options)

    # Versions

    def bind(self, fingerprint: Fingerprint) -> FeatureCache:
        """The version of this cache for outputs that depend on `fingerprint`: this cache itself, or one beside it.

        Raises:
            StaleCache: the cache was filled under another fingerprint, and versions="raise".
        """
        if bind(self.session.version, fingerprint):
            return self
        with self.session.version.lock:
            key = digest(fingerprint)
            if key not in self._others:
                files = self.session.version.files if self._joined is None else None
                other = FeatureCache(self._given, self.id, **vars(self._options), files=files)
                self._others[key] = other.bind(fingerprint)
                self._share_out()
            return self._others[key]

    def _share_out(self) -> None:
        versions = self._versions()
        for version in versions:
            if version.hot is not None:
                version.hot.share(len(versions))

    def _sessions(self) -> list[CacheSession]:
        return [self.session, *(other.session for other in self._others.values())]

    def _versions(self) -> list[OpenVersion]:
        return [session.version for session in self._sessions()]

    # The end

    def _commit(self, blocks: Sequence[Block]) -> None:
        # A method of the cache's: who commits in the background holds the cache, so that it is not closed meanwhile.
        self.session.version.commit(blocks)

    def close(self) -> None:
        """Commit what waits and let go of the files. Closing twice is fine.

        Raises:
            WriteFailed: the disk refused; the cache stays open.
        """
        if self.closed:
            return
        self.session.blocks.stop()
        self.flush()
        for other in self._others.values():
            other.close()
        self.session.version.close()
        self.closed = True
        self.unregister()

    def _after_fork(self) -> None:
        self.session.after_fork()

    def __reduce__(self) -> Any:
        return _reopen, (self._given, self.id, vars(self._options))

    def __deepcopy__(self, memo: Any) -> Self:
        return self


def _torch_device(device: torch.device | str | None) -> torch.device | None:
    if device is None:
        return None
    import torch

    return torch.device(device)


def _reopen(folder: str, id: str, options: dict[str, Any]) -> FeatureCache:
    return FeatureCache(folder, id, **options)
