"""FeatureCache: outputs of a frozen module, kept per sample on disk and found by the sample's id.

A cache is a record store with a key column, a key index beside it, and a queue of outputs on their way there. Every
process may write, and sees what the others committed as soon as it misses something.
"""

import contextlib
import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import nn

from warmstore.errors import (
    Closed,
    Damaged,
    ReadOnly,
    RemoteRefused,
    RemoteUnavailable,
    SchemaMismatch,
    StaleCache,
    StoreExists,
    WarmstoreError,
)
from warmstore.features.blocks import Block, Blocks
from warmstore.features.eviction import Bound, rebalance, tidy
from warmstore.features.filling import Call, fill
from warmstore.features.merging import Merged, check_same, merge_caches
from warmstore.features.opening import create_store, open_store, schema_of
from warmstore.features.options import CacheOptions, folder_name
from warmstore.features.ranks import WriterRanks
from warmstore.features.reader import DAMAGED, MISSING, Reader, merge, no_values, open_index, select
from warmstore.features.schema import KEY, Schema
from warmstore.features.statistics import CacheStats, Cost
from warmstore.features.structure import Leaf, Structure, check_structure, nbytes_of, take_apart
from warmstore.features.versions import Fingerprint, differing, digest, read_versions, version_folder
from warmstore.filled import Filled
from warmstore.owner import Owner
from warmstore.records.files import Files
from warmstore.records.gaps import Gaps
from warmstore.records.key_index import KeyIndex
from warmstore.records.keys import Keys, as_keys
from warmstore.records.manifest import NAME, Manifest
from warmstore.records.rewrite import Utilisation
from warmstore.records.store import RecordStore
from warmstore.records.values import encode
from warmstore.remote.location import is_remote
from warmstore.sizes import parse_size

if TYPE_CHECKING:
    from warmstore.features.joining import Joined
    from warmstore.records.pulling import Pulled
    from warmstore.records.pushing import Pushed
    from warmstore.records.remote_copy import Remote

Int64 = np.ndarray[Any, np.dtype[np.int64]]
_NOWHERE = np.zeros(0, np.int64)


class FeatureCache(Owner):
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
        versions: what to do where weights, code or settings are others than those that filled the cache: "raise"
            StaleCache; "new" keep one version of the cache for each, side by side; "ignore" use the cache as it is,
            whoever filled it, and get another module's outputs.
        writer_ranks: the ranks of a distributed job that write. The others read, compute what they miss and keep
            nothing of it. None lets all write, which is safe and faster.
        hot_size: bytes of rows that this process keeps in memory of its own, such as "2GB"; "all" for the whole cache,
            loaded at once, where it fits. None leaves that to the system's page cache, which is mostly as good.
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
        self._hot = self._options.hot_tier()
        self._name = folder_name(id, versions)
        self.id = id
        self.read_only = read_only
        self._writers = WriterRanks(writer_ranks)
        self._given = os.fspath(folder)
        self._joined = self._join_remote(self._given)
        self._folder = Path(folder) if self._joined is None else self._joined.folder
        self.path = self._folder / self._name
        self.files = files or (Files() if self._joined is None else self._joined.files(self._name))
        self._bound = Bound(self._folder, self._name, parse_size(max_size), self.files) if max_size else None
        self._variable = variable
        self._pad_value = pad_value
        self._lists = lists
        self._store: RecordStore | None = None
        self._index: KeyIndex | None = None
        self._schema: Schema | None = None
        self._reader: Reader | None = None
        self._fingerprint: Fingerprint | None = None
        self._others: dict[str, FeatureCache] = {}  # versions opened beside this one, by digest
        self._handed = 0
        self._damaged = self._bytes_read = 0
        self._lock = threading.RLock()
        self._cost = Cost(self.path / "cost.json")
        self._blocks = Blocks(self._commit, flush_every, parse_size(max_pending), async_write)
        self._find_store()
        self.closed = False
        try:
            self._open_joined()
        except BaseException:
            self.closed = True
            raise
        self.own()

    def __repr__(self) -> str:
        where = str(self._folder) if self._joined is None else self._joined.remote.shown
        return f"FeatureCache({where!r}, {self.id!r}, {len(self):,} entries)"

    def __len__(self) -> int:
        """Rows on the disk, those of an id cached again included, and samples that wait to be written."""
        own = (self._store.snapshot.length if self._store is not None else 0) + len(self._blocks)
        return own + sum(map(len, self._others.values()))

    # Reading

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
        values, missing = self.fetch(as_keys(ids))
        where = None if device is None else torch.device(device)
        return None if values is None else self.assemble(values, where), missing

    def fetch(self, keys: Keys) -> tuple[dict[str, Any] | None, Int64]:
        """The leaves of the keys that are cached, in order, as NumPy values, or None; and the places of the others."""
        if self._joined is None:
            return self._fetch(keys)
        try:
            return self._fetch(keys)
        except (RemoteUnavailable, RemoteRefused, Damaged) as error:
            self._joined.failed(error)
            self._cost.add(misses=len(keys))
            return None, np.arange(len(keys))

    def _fetch(self, keys: Keys) -> tuple[dict[str, Any] | None, Int64]:
        self._check_open()
        self._blocks.raise_error()
        if self._reader is not None and not len(self._blocks):
            values = self._reader.read_all(keys)
            if values is not None:
                self._count(values, len(keys), 0)
                return values, _NOWHERE
        waiting = self._blocks.find(keys)
        return self._fetch_some(keys, self._find(keys, waiting), waiting)

    def missing(self, keys: Keys) -> Int64:
        """The places of the keys that are not cached, int64 in order, told without reading the others' values."""
        self._check_open()
        waiting = self._blocks.find(keys)
        absent = self._find(keys, waiting) < 0
        absent[list(waiting)] = False
        return np.flatnonzero(absent)

    def _fetch_some(
        self, keys: Keys, rows: Int64, waiting: dict[int, tuple[Block, int]]
    ) -> tuple[dict[str, Any] | None, Int64]:
        stored = np.flatnonzero(rows >= 0)
        if not len(stored) and not waiting:
            self._cost.add(misses=len(keys))
            return None, np.arange(len(keys))
        assert self._schema is not None
        values = no_values(self._schema)
        if self._reader is not None and len(stored):
            values, bad, damaged = self._reader.values(keys.take(stored), rows[stored])
            if bad is not None:
                self._damaged += damaged
                stored = stored[~bad]
                values = {path: select(value, ~bad) for path, value in values.items()}
        found = np.union1d(stored, np.array(list(waiting), np.int64))
        if waiting:
            place = {at: number for number, at in enumerate(found.tolist())}
            late = [(place[at], block.leaves, row) for at, (block, row) in waiting.items()]
            values = merge(self._schema, values, np.searchsorted(found, stored), late, len(found))
        missing = np.setdiff1d(np.arange(len(keys)), found)
        self._count(values, len(found), len(missing))
        return values if len(found) else None, missing

    def _count(self, values: dict[str, Any], hits: int, misses: int) -> None:
        self._cost.add(hits=hits, misses=misses)
        self._bytes_read += sum(nbytes_of(value) for value in values.values())

    def _find(self, keys: Keys, waiting: dict[int, Any]) -> Int64:
        """The confirmed row of each key, or less. Looks what others committed since before it calls anything a miss."""
        rows = np.full(len(keys), MISSING, np.int64)
        todo = np.delete(np.arange(len(keys)), list(waiting))
        news = self._reader is not None or self._see_others()
        while len(todo) and news:
            assert self._reader is not None
            rows[todo] = self._reader.find(keys.take(todo))
            todo = todo[rows[todo] < 0]
            news = bool(len(todo)) and self._see_others()
        self._damaged += int((rows == DAMAGED).sum())
        return rows

    def _see_others(self) -> bool:
        """Take in what was committed since; True when there was something."""
        with self._lock:
            if self._store is None:
                return self._find_store()
            assert self._index is not None
            covered, before = self._index.covered, self._store.snapshot.rows
            self._store.refresh()
            self._follow_generation()
            rows = self._store.snapshot.rows
            if covered > rows and not self.read_only:
                self._index.start_over(rows)  # rows that a failing disk took back
            self._index.catch_up(rows)
            return rows != before or self._index.covered != covered

    def completed(self, values: Any, missing: Int64, leaves: Sequence[Leaf], rows: Int64, count: int) -> dict[str, Any]:
        """Leaves of `count` samples: row `rows[i]` of `leaves` for the i-th missing one, `values` for the others."""
        assert self._schema is not None
        found = np.setdiff1d(np.arange(count), missing)
        late = [(place, leaves, row) for place, row in zip(missing.tolist(), rows.tolist(), strict=True)]
        return merge(self._schema, values or no_values(self._schema), found, late, count)

    def assemble(self, values: dict[str, Any] | None, device: torch.device | None) -> Any:
        """Leaves as `fetch` gives them, in the structure of an output."""
        assert self._schema is not None
        assert values is not None
        return self._schema.assemble(values, self._pad_value, device, allow_pickle=self._options.allow_pickle)

    # Writing

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
            self.put(keys, outputs)

    def put(self, keys: Keys, outputs: Any) -> tuple[Structure, list[Leaf]]:
        """`put_batch` with keys; nothing is kept where this process does not write. Returns the outputs taken apart."""
        self._check_open()
        with self._lock:
            if self._store is None:
                self._find_store()
            known = self._schema
            structure, leaves = take_apart(
                outputs,
                len(keys),
                known.structure if known else None,
                self._lists,
                allow_pickle=self._options.allow_pickle,
            )
            if known is None:
                self._schema = Schema.of_leaves(structure, leaves, self._variable, self._options.codec)
            elif self._store is None:
                self._schema = known.widened(leaves)
            else:
                known.check(leaves)
        if self.writes:
            self._keep(Block.of(keys, tuple(leaf.to_host() for leaf in leaves)))
        return structure, leaves

    def _keep(self, block: Block) -> None:
        if self._bound is not None:
            self._bound.check(block)
        self._blocks.put(block)

    def accept(self, keys: Keys, leaves: tuple[Leaf, ...]) -> None:
        """Keep leaves that fit the schema, in memory that nobody else writes to."""
        self._check_open()
        self._keep(Block.of(keys, leaves))

    def expect(self, schema: Schema) -> None:
        """Raise SchemaMismatch where this cache holds other outputs; one that holds nothing yet takes the schema."""
        with self._lock:
            if self._store is None:
                self._find_store()
            if self._schema is None:
                self._schema = schema
            check_same(self._schema, schema)

    def fill(
        self,
        module: nn.Module,
        loader: Iterable[Any],
        *,
        call: Call | None = None,
        progress: bool | None = None,
    ) -> Filled:
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
        return fill(self, module, loader, call, progress)

    def merge(self, other: "FeatureCache | str | os.PathLike[str]", *, progress: bool | None = None) -> Merged:
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
        with self._lock:
            if self._store is None and not self._find_store():
                return Utilisation(0, 0, 0, 0)
            store, reader = self._store, self._reader
        assert store is not None
        assert reader is not None
        done = rebalance(store, reader, self._bound, progress)
        self._see_others()
        return done

    def push(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        verify: bool = False,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> "Pushed":
        """Add what this host computed to a cache at a remote, which any number of hosts fill; see `RecordStore.push`.

        Args:
            url: where caches lie; this one is below it under its id. None for where it was opened.

        Raises:
            StaleCache, SchemaMismatch: others filled it with another module, or with other outputs.
            RemoteUnavailable, RemoteRefused: it was not pushed.
        """
        from warmstore.features.joining import push

        return push(self, self._remote(url, remote_options, anonymous), verify, progress)

    def pull(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> "Pulled":
        """Have what other hosts pushed to a remote here too. Their chunks join this cache as they are.

        Samples that two hosts computed are here twice then, until `rebalance`. The arguments are those of `push`.

        Raises:
            StaleCache, SchemaMismatch: others filled it with another module, or with other outputs.
            Damaged, RemoteUnavailable, RemoteRefused: what came until then is here; the next pull goes on.
        """
        from warmstore.features.joining import pull

        return pull(self, self._remote(url, remote_options, anonymous), progress)

    def sync(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> "tuple[Pulled, Pushed]":
        """`pull` and then `push`."""
        options: dict[str, Any] = {"progress": progress, "remote_options": remote_options, "anonymous": anonymous}
        return self.pull(url, **options), self.push(url, **options)

    def _remote(
        self, url: str | os.PathLike[str] | None, options: Mapping[str, Any] | None, anonymous: bool
    ) -> "Remote":
        from warmstore.records.remote_copy import Remote

        if url is None:
            if self._joined is None:
                raise ValueError(f"push and pull need a URL: {self.path} was opened as a folder")
            return self._joined.remote.below(self.path.name)
        return Remote(url, options, anonymous).below(self.path.name)

    def _join_remote(self, folder: str) -> "Joined | None":
        if not is_remote(folder):
            return None
        from warmstore.features.joining import Joined
        from warmstore.records.remote_copy import Remote

        return Joined(Remote(folder, self._options.remote_options, self._options.anonymous), self._options)

    def _open_joined(self) -> None:
        """Have what others pushed by now; without an answer, what was here already."""
        if self._joined is not None and not self.read_only:
            from warmstore.features.joining import join_now

            join_now(self, self._joined)

    def _push_joined(self) -> None:
        if self._joined is not None and self._store is not None:
            from warmstore.features.joining import push_now

            push_now(self, self._joined)

    def settled_store(self) -> RecordStore | None:
        """The store of this cache, with nothing pending and no chunk that this process writes to; None without one."""
        self.flush()
        with self._lock:
            if self._store is None:
                self._find_store()
            if self._store is not None and self._store.mode == "a":
                with self._store.session.lock:
                    self._store.session.generation.seal()
            return self._store

    def joined_store(self, manifest: Manifest) -> RecordStore:
        """The same for a cache that may be empty still: it becomes one for what another host wrote."""
        store = self.settled_store()
        if store is None:
            if not self.writes:
                raise ReadOnly(f"the cache {self.path} is only read by this process; open it for writing to pull")
            with contextlib.suppress(StoreExists):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                RecordStore.create(self.path, manifest.fields, metadata=manifest.metadata, files=self.files).close()
            store = self.settled_store()
        assert store is not None
        return store

    def take_in(self) -> None:
        """See what was joined to the store."""
        self._see_others()

    @property
    def room(self) -> Any:
        """Makes room for bytes that are to come; None without a bound."""
        return self._bound.room if self._bound is not None else None

    @property
    def fingerprint(self) -> Fingerprint | None:
        """What this cache was filled under, or its module was bound with; None while neither happened."""
        stored = self._store.metadata.get("fingerprint") if self._store is not None else None
        return stored or self._fingerprint

    def bind(self, fingerprint: Fingerprint) -> "FeatureCache":
        """The version of this cache for outputs that depend on `fingerprint`: this cache itself, or one beside it.

        Raises:
            StaleCache: the cache was filled under another fingerprint, and versions="raise".
        """
        if self._options.versions != "new":
            self._tie(fingerprint)
            return self
        if self._fingerprint is None and self.writes:
            self._blocks.flush(self._commit)  # put in by hand, before any module was bound
        with self._lock:
            if self._fingerprint is None and not len(self._blocks):
                self._become(fingerprint)
                return self
            if self._fingerprint is not None and not differing(self._fingerprint, fingerprint):
                return self
            key = digest(fingerprint)
            if key not in self._others:
                files = self.files if self._joined is None else None
                other = FeatureCache(self._given, self.id, **vars(self._options), files=files)
                self._others[key] = other.bind(fingerprint)
                self._share_out()
            return self._others[key]

    def _share_out(self) -> None:
        every = [self, *self._others.values()]
        for one in every:
            if one._hot is not None:
                one._hot.share(len(every))

    def _tie(self, fingerprint: Fingerprint) -> None:
        with self._lock:
            if self._store is None:
                self._find_store()
            known = self.fingerprint
            if known is None:
                self._fingerprint = fingerprint
                if self._store is None or not self.writes:
                    return
                known = self._store.annotate("fingerprint", fingerprint)  # filled by put_batch so far
        self._compare(known, fingerprint)

    def _compare(self, known: Fingerprint, fingerprint: Fingerprint) -> None:
        parts = differing(known, fingerprint)
        if parts and self._options.versions != "ignore":
            raise StaleCache(
                f"the cache {self.id!r} in {self._folder} was filled with other {' and '.join(parts)} than the "
                "module has now, so its outputs are not this module's. Use another cache id for the changed module, "
                f"pass versions='new' to keep both, restore what changed, or remove {self.path}"
            )

    def _become(self, fingerprint: Fingerprint) -> None:
        """Be the version of a fingerprint: its own folder if it has one, else the first one if that is free or its."""
        own = version_folder(self._folder, self._name, fingerprint)
        if (own / NAME).exists():
            self._move(own)
        try:
            self._tie(fingerprint)
        except StaleCache:
            if self.path == own:
                raise  # two fingerprints of one digest
            self._move(own)
            self._tie(fingerprint)
        self._fingerprint = fingerprint

    def _move(self, path: Path) -> None:
        # What was open is not closed: another thread may be reading it.
        if self._store is not None:
            self._store = self._index = self._schema = self._reader = None
        self.path = path
        self._cost.move(path / "cost.json")
        if self._joined is not None:
            self.files = self._joined.files(path.name)
            self._open_joined()

    def computed(self, seconds: float, samples: int) -> None:
        """Count what misses cost, for `stats`."""
        self._cost.add(seconds, samples)

    def flush(self) -> None:
        """Commit everything accepted so far; it is on the disk, and other processes see it, when this returns.

        Raises:
            WriteFailed: the disk refused; nothing is lost, and the next flush tries again.
        """
        self._check_open()
        if not self.read_only:
            self._blocks.flush(self._commit)
        for other in list(self._others.values()):
            other.flush()

    def _commit(self, blocks: Sequence[Block]) -> None:
        with self._lock:
            store = self._store if self._store is not None else self._create_store()
            schema, reader = self._schema, self._reader
        assert schema is not None
        assert reader is not None
        if self._bound is not None:
            tidy(store, reader, self._bound)
        try:
            for block in blocks[self._handed :]:
                rows = schema.encode(block.leaves)
                store.extend_rows({KEY: encode(KEY, store.fields[KEY], block.keys.halves), **rows})
                self._handed += 1
        except SchemaMismatch:
            self._handed = 0  # blocks that never fit are forgotten, all of them
            raise
        store.flush()
        with self._lock:
            self._follow_generation()
            index = self._index
        assert index is not None
        index.catch_up(store.snapshot.rows)
        if self._bound is not None and index.is_crowded(store.snapshot.length):
            index.start_over(store.snapshot.rows)
        if self._bound is not None:
            store.refresh()  # the index may have taken the room of other chunks
        self._handed = 0

    def _follow_generation(self) -> None:
        """Take the index of the store's present generation: somebody may have rebalanced it."""
        assert self._store is not None
        assert self._index is not None
        assert self._schema is not None
        if self._index.generation != self._store.manifest.generation:
            self._index = self._open_index(self._store)
            self._reader = Reader(self._store, self._index, self._schema, self._hot)

    def _open_index(self, store: RecordStore) -> KeyIndex:
        return open_index(store, self.files, largest=self._bound.largest if self._bound is not None else None)

    def close(self) -> None:
        """Commit what waits and let go of the files. Closing twice is fine.

        Raises:
            WriteFailed: the disk refused; the cache stays open.
        """
        if self.closed:
            return
        self._blocks.stop()
        self.flush()
        for other in self._others.values():
            other.close()
        if self.writes:
            self._cost.save()
            self._push_joined()
        if self._index is not None:
            self._index.sync()
            self._index.close()
        if self._store is not None:
            self._store.close()
        if self._hot is not None:
            self._hot.close()
        self.files.let_go()
        self.closed = True
        self.disown()

    def stats(self) -> CacheStats:
        """What the cache holds and what it did in this process, all versions together."""
        every = [self, *self._others.values()]
        return CacheStats(
            entries=sum(one._store.snapshot.length for one in every if one._store is not None),
            pending=sum(len(one._blocks) for one in every),
            hits=sum(one._cost.here.hits for one in every),
            misses=sum(one._cost.here.misses for one in every),
            damaged=sum(one._damaged for one in every),
            bytes=sum(one._store.nbytes for one in every if one._store is not None),
            bytes_read=sum(one._bytes_read for one in every),
            computed_seconds=sum(one._cost.here.seconds for one in every),
            seconds_saved=sum(one._cost.here.hits * one._cost.in_all().per_sample for one in every),
            versions=read_versions(self._folder, self._name),
            hot_hits=sum(one._hot.hits for one in every if one._hot is not None),
            hot_bytes=sum(one._hot.nbytes for one in every if one._hot is not None),
            max_size=self._bound.max_size if self._bound is not None else None,
            evicted=sum(gaps.count for gaps in (one._gaps() for one in every) if gaps is not None),
        )

    def _gaps(self) -> Gaps | None:
        return self._store.snapshot.gaps if self._store is not None else None

    @property
    def writes(self) -> bool:
        """Whether this process keeps what it computes: neither read-only nor kept from it by `writer_ranks`."""
        return not self.read_only and self._writers.include_this()

    # The store

    def _find_store(self) -> bool:
        """Open the store if some process has made it."""
        if not (self.path / NAME).exists():
            return False
        try:
            self._adopt(self._open_store())
        except StaleCache:
            # Another process filled the first version meanwhile; ours is another one, and nothing of it is written yet.
            assert self._fingerprint is not None
            own = version_folder(self._folder, self._name, self._fingerprint)
            if self._options.versions != "new" or self.path == own:
                raise
            self._move(own)
            return self._find_store()
        return True

    def _open_store(self) -> RecordStore:
        return open_store(
            self.path,
            self.files,
            read_only=self.read_only,
            must_write=self.writes,
            bound=self._bound,
            threads=self._options.threads,
        )

    def _create_store(self) -> RecordStore:
        assert self._schema is not None
        try:
            store = create_store(
                self.path, self._schema, self._fingerprint, self.files, self._bound, self._options.threads
            )
        except StoreExists:
            # Another process was first. Its schema and fingerprint stand; ours must fit them, or be another version.
            before = self.path
            if self._find_store():
                assert self._store is not None
                return self._store
            if self.path == before:
                raise
            return self._create_store()
        self._adopt(store)
        return store

    def _adopt(self, store: RecordStore) -> None:
        store.disown()  # this cache closes it, after its own pending rows
        try:
            schema = schema_of(store)
            self._check_joins(store, schema)
        except WarmstoreError:
            store.close()
            raise
        self._schema = schema
        self._index = self._open_index(store)
        self._index.catch_up(store.snapshot.rows)
        self._reader = Reader(store, self._index, self._schema, self._hot)
        self._store = store

    def _check_joins(self, store: RecordStore, schema: Schema) -> None:
        """Raise where a store that another process made does not fit what this one works with already."""
        known = store.metadata.get("fingerprint")
        if self._fingerprint is not None and known is not None:
            self._compare(known, self._fingerprint)
        if len(self._blocks):
            assert self._schema is not None
            check_structure(schema.structure, self._schema.structure)
            for block in self._blocks.waiting():
                schema.check(block.leaves)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self._handed = 0
        self._blocks.after_fork()
        if self._hot is not None:
            self._hot.after_fork()
        if self._bound is not None:
            self._bound.after_fork()
        if self._store is not None:
            self._store._after_fork()
        if self._index is not None:
            self._index.after_fork()

    def __reduce__(self) -> Any:
        return _reopen, (self._given, self.id, vars(self._options))

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def _check_open(self) -> None:
        if self.closed:
            raise Closed(f"the cache {self.path} is closed; open it again with FeatureCache")


def _reopen(folder: str, id: str, options: dict[str, Any]) -> FeatureCache:
    return FeatureCache(folder, id, **options)
