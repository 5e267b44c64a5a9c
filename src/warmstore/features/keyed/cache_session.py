"""One version of a cache as one process has it open: what is found in it, what is kept, and its store on the disk.

FeatureCache is the face; this is what happens behind it. The store is opened when some process has made it, made at the
first commit, and its folder may turn out to be another version's: nobody else needs to know of that.
"""

import contextlib
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from warmstore.errors import AmbiguousBatch, Closed, Damaged, RemoteError, SchemaMismatch, StaleCache, StoreExists
from warmstore.features.cache_options import CacheOptions, folder_name
from warmstore.features.cache_stats import UsageCounters
from warmstore.features.calls.call_arguments import Roles
from warmstore.features.keyed.cache_quota import CacheQuota, rebalance, tidy
from warmstore.features.keyed.cache_reader import DAMAGED, MISSING, CacheReader, merge, no_values, open_index, select
from warmstore.features.keyed.cache_store import SETTLED, create_store, is_settled, open_store, schema_of
from warmstore.features.keyed.cache_versions import (
    Fingerprint,
    are_equal,
    difference,
    have_same_rules,
    read_versions,
    version_folder,
)
from warmstore.features.outputs.dims_inference import Repeats
from warmstore.features.outputs.out_dims import UNTOLD
from warmstore.features.outputs.output_schema import KEY, OutputSchema
from warmstore.features.outputs.output_structure import Leaf, check_spec, flatten, nbytes_of
from warmstore.features.write_queue import Block, WriteBehindQueue
from warmstore.features.writer_ranks import WriterRanks
from warmstore.records.format.manifest import NAME
from warmstore.records.format.value_encoding import encode
from warmstore.records.index.sample_keys import Keys
from warmstore.records.write.rewrite import Utilisation
from warmstore.replicate.record_store import RecordStore
from warmstore.storage.files import Files
from warmstore.storage.humanize import parse_size
from warmstore.storage.memory.buffer_pool import Arena
from warmstore.tree.spec import TreeSpec

Int64 = np.ndarray[Any, np.dtype[np.int64]]
_log = logging.getLogger("warmstore")
_NOWHERE = np.zeros(0, np.int64)
_ARENA = 64 << 20
"""Bytes that values of one leaf wait in at most, before they wait in another such piece of memory."""


class _OtherRules(StaleCache):
    """A cache was filled under other rules of identity, so that nothing can be said of its fingerprint."""


class Remote(Protocol):
    """What a session asks of the remote of its cache; `joining.Joined` is one."""

    def files(self, name: str) -> Files:
        """What a version of the cache is read with."""

    def pull_now(self, session: "CacheSession") -> None:
        """Have what the remote has be seen here."""

    def push_now(self, session: "CacheSession") -> None:
        """Send what is here."""

    def failed(self, error: Exception) -> None:
        """The remote did not give what was asked."""


class CacheSession:
    """Safe to use from several threads: `lock` is held by whoever opens the store or goes on in another folder.

    Args:
        id: of the cache.
        folder: where caches lie here.
        blocks: what waits to be committed, by `commit`.
        joined: the remote of a cache that was opened by its URL.
        files: to read and write with, where others than the usual ones are wanted.
    """

    def __init__(
        self,
        id: str,
        folder: Path,
        options: CacheOptions,
        blocks: WriteBehindQueue,
        joined: Remote | None,
        files: Files | None,
    ) -> None:
        self.hot = options.hot_tier()
        self.name = folder_name(id, options.versions)
        self.folder = folder
        self.path = folder / self.name
        self.files = files or (Files() if joined is None else joined.files(self.name))
        self.blocks = blocks
        most = options.max_size
        self.quota = CacheQuota(folder, self.name, parse_size(most), self.files) if most else None
        self.cost = UsageCounters(self.path / "cost.json")
        self.damaged = self.bytes_read = 0
        self.reader: CacheReader | None = None  # of the store, once there is one
        self.lock = threading.RLock()
        self.closed = False
        self._id = id
        self._options = options
        self._read_only = options.read_only
        self.lists = options.lists
        self.roles: Roles = {}  # of the arguments of the module that is bound
        self.repeats = Repeats()
        self._pad_value = options.pad_value
        self._writers = WriterRanks(options.writer_ranks)
        self._joined = joined
        self._schema: OutputSchema | None = None
        self._fingerprint: Fingerprint | None = None
        self._settled = True  # until the structure is fixed in a way that is not settled
        self._checked: tuple[Any, Any] | None = None  # the structure that fits, and the out_dims
        self._handed = 0
        self._arenas: dict[str, Arena] = {}  # by leaf
        self._find_store()
        try:
            self._open_joined()
        except BaseException:
            if self.reader is not None:
                self.reader.store.close()
            raise

    @property
    def is_fixed(self) -> bool:
        """Whether the structure of outputs is fixed, by what was kept or stored before."""
        return self._schema is not None

    @property
    def stored_roles(self) -> Roles:
        """What the arguments of the module are by which this cache was filled; empty where nobody wrote it down."""
        return self.reader.store.metadata.get("arguments") or {} if self.reader is not None else {}

    def check_dims(self, out_dims: Any) -> None:
        """Raise SchemaMismatch where the cache holds outputs with samples in other dimensions than told."""
        schema = self._schema
        if schema is not None and (schema.structure, out_dims) != self._checked:
            schema.check_dims(out_dims)
            self._checked = (schema.structure, out_dims)
            with self.lock:
                self._settle()

    @property
    def is_settled(self) -> bool:
        """Whether it is known, or was told, where samples lie in outputs. Batches of one do not show it."""
        return self._schema is not None and self._settled

    def serves(self, count: int) -> bool:
        """Whether batches of `count` samples may be put together from what is cached."""
        return count < 2 or self._settled

    def confirm(self, outputs: Any, count: int) -> None:
        """Take an output for several samples as the proof of where samples lie.

        Raises:
            SchemaMismatch: it does not fit what the cache holds.
        """
        with self.lock:
            known = self._schema
            assert known is not None
            _, leaves = flatten(outputs, count, known.structure, self.lists, allow_pickle=self._options.allow_pickle)
            known.check_growth(leaves, count)
            self._settle()

    def _settle(self) -> None:
        if not self._settled:
            self._settled = True
            if self.reader is not None:
                self._write_settled(self.reader.store)

    def _write_settled(self, store: RecordStore) -> None:
        if store.mode == "a" and not is_settled(store.metadata):
            with contextlib.suppress(OSError):  # the next process finds out by itself
                store.annotate(SETTLED, True)

    # Looking up

    def fetch(self, keys: Keys) -> tuple[dict[str, Any] | None, Int64]:
        """The leaves of the keys that are cached, in order, as NumPy values, or None; and the places of the others."""
        if self._joined is None:
            return self._fetch(keys)
        try:
            return self._fetch(keys)
        except (RemoteError, Damaged) as error:
            self._joined.failed(error)
            self.cost.add(misses=len(keys))
            return None, np.arange(len(keys))

    def _fetch(self, keys: Keys) -> tuple[dict[str, Any] | None, Int64]:
        self._check_open()
        self.blocks.raise_error()
        if self.reader is not None and not len(self.blocks):
            values = self.reader.read_all(keys)
            if values is not None:
                self._count(values, len(keys), 0)
                return values, _NOWHERE
        waiting = self.blocks.find(keys)
        return self._fetch_some(keys, self._find(keys, waiting), waiting)

    def serve(self, keys: Keys, device: torch.device | None) -> Any:
        """The output for keys that are all committed; None where that is not so, or is not known at once."""
        if self.closed or self.reader is None or self._joined is not None or len(self.blocks):
            return None
        self.blocks.raise_error()
        values = self.reader.read_all(keys) if len(keys) and self.serves(len(keys)) else None
        if values is None:
            return None
        self._count(values, len(keys), 0)
        return self.assemble(values, device)

    def missing(self, keys: Keys) -> Int64:
        """The places of the keys that are not cached, int64 in order, told without reading the others' values."""
        self._check_open()
        waiting = self.blocks.find(keys)
        absent = self._find(keys, waiting) < 0
        absent[list(waiting)] = False
        return np.flatnonzero(absent)

    def _fetch_some(
        self, keys: Keys, rows: Int64, waiting: dict[int, tuple[Block, int]]
    ) -> tuple[dict[str, Any] | None, Int64]:
        stored = np.flatnonzero(rows >= 0)
        if not len(stored) and not waiting:
            self.cost.add(misses=len(keys))
            return None, np.arange(len(keys))
        assert self._schema is not None
        values = no_values(self._schema)
        if self.reader is not None and len(stored):
            values, bad, damaged = self.reader.values(keys.take(stored), rows[stored])
            if bad is not None:
                self.damaged += damaged
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
        self.cost.add(hits=hits, misses=misses)
        for value in values.values():
            self.bytes_read += nbytes_of(value)

    def _find(self, keys: Keys, waiting: dict[int, Any]) -> Int64:
        """The confirmed row of each key, or less. Looks what others committed since before it calls anything a miss."""
        rows = np.full(len(keys), MISSING, np.int64)
        todo = np.delete(np.arange(len(keys)), list(waiting))
        news = self.reader is not None or self.see_others()
        while len(todo) and news:
            assert self.reader is not None
            rows[todo] = self.reader.find(keys.take(todo))
            todo = todo[rows[todo] < 0]
            news = bool(len(todo)) and self.see_others()
        self.damaged += int((rows == DAMAGED).sum())
        return rows

    def see_others(self) -> bool:
        """Take in what was committed since; True when there was something."""
        with self.lock:
            if self.reader is None:
                return self._find_store()
            store = self.reader.store
            covered, before = self.reader.index.covered, store.snapshot.rows
            store.refresh()
            index, rows = self._follow_generation().index, store.snapshot.rows
            if covered > rows and not self._read_only:
                index.start_over(rows)  # rows that a failing disk took back
            index.catch_up(rows)
            return rows != before or index.covered != covered

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
        if not self._settled and max(map(len, values.values())) > 1:
            raise AmbiguousBatch(
                f"the cache {self.path} was filled in batches of one, which do not show where samples lie in a batch "
                "of several. Call the module with a batch of several samples once, or give CachedModule out_dims="
            )
        return self._schema.assemble(values, self._pad_value, device, allow_pickle=self._options.allow_pickle)

    # Keeping

    def put(
        self, keys: Keys, outputs: Any, out_dims: Any = UNTOLD, rows: Int64 | None = None, *, sure: bool = True
    ) -> tuple[TreeSpec, list[Leaf]]:
        """Keep the outputs of some keys, unless this process does not write.

        Args:
            out_dims: see `flatten`.
            rows: which of them to keep; None for all.
            sure: whether they show, or it was told, in which dimensions samples lie. Until then only batches of one are
                served.

        Returns:
            All outputs, flattened.
        """
        self._check_open()
        with self.lock:
            if self.reader is None:
                self._find_store()
            known = self._schema
            structure, leaves = flatten(
                outputs,
                len(keys),
                known.structure if known else None,
                self.lists,
                allow_pickle=self._options.allow_pickle,
                out_dims=out_dims,
            )
            if known is not None and sure and not self._settled:
                known.check_growth(leaves, len(keys))
            if known is None:
                self._schema = OutputSchema.of_leaves(structure, leaves, self._options.variable, self._options.codec)
                self._settled = sure
            elif self.reader is None:
                self._schema = known.widened(leaves)
            else:
                known.check(leaves)
            if sure:
                self._settle()
        if self.writes and (rows is None or len(rows)):
            kept = leaves if rows is None else [leaf.take(rows) for leaf in leaves]
            own = tuple(leaf.to_host(self._arena(leaf, len(keys)).copy) for leaf in kept)
            self._keep(Block.of(keys if rows is None else keys.take(rows), own))
        return structure, leaves

    def _arena(self, leaf: Leaf, count: int) -> Arena:
        """Where the values of a leaf wait to be written: one after the other, for about as many as are written at once.

        Args:
            count: samples of the first batch.
        """
        known = self._arenas.get(leaf.path)
        if known is None:
            size = nbytes_of(leaf.values) // max(count, 1) * self._options.flush_every
            known = self._arenas.setdefault(leaf.path, Arena(min(size, _ARENA)))
        return known

    def _keep(self, block: Block) -> None:
        if self.quota is not None:
            self.quota.check(block)
        self.blocks.put(block)

    def accept(self, keys: Keys, leaves: tuple[Leaf, ...]) -> None:
        """Keep leaves that fit the schema, in memory that nobody else writes to."""
        self._check_open()
        self._keep(Block.of(keys, leaves))

    def expect(self, schema: OutputSchema, *, settled: bool) -> OutputSchema:
        """What this cache holds; one that holds nothing yet takes the schema given."""
        with self.lock:
            if self.reader is None:
                self._find_store()
            if self._schema is None:
                self._schema, self._settled = schema, settled
            return self._schema

    def computed(self, seconds: float, samples: int) -> None:
        """Count what misses cost, for `stats`."""
        self.cost.add(seconds, samples)

    def flush(self) -> None:
        """Commit everything accepted so far."""
        self._check_open()
        if not self._read_only:
            self.blocks.flush(self.commit)

    def commit(self, blocks: Sequence[Block]) -> None:
        """Write blocks for good. Those that the store has since a commit that failed are not handed to it again."""
        with self.lock:
            reader = self.reader or self._create_store()
        store, schema = reader.store, reader.schema
        if self.quota is not None:
            tidy(reader, self.quota)
        try:
            for block in blocks[self._handed :]:
                rows = schema.encode(block.leaves)
                store.extend_rows({KEY: encode(KEY, store.fields[KEY], block.keys.halves), **rows})
                self._handed += 1
        except SchemaMismatch:
            self._handed = 0  # blocks that never fit are forgotten, all of them
            raise
        store.flush()
        with self.lock:
            index = self._follow_generation().index
        index.catch_up(store.snapshot.rows)
        if self.quota is not None and index.is_crowded(store.snapshot.length):
            index.start_over(store.snapshot.rows)
        if self.quota is not None:
            store.refresh()  # the index may have taken the room of other chunks
        self._handed = 0

    def rebalance(self, progress: bool | None) -> Utilisation:
        """See `FeatureCache.rebalance`."""
        with self.lock:
            if self.reader is None and not self._find_store():
                return Utilisation(0, 0, 0, 0)
            reader = self.reader
        assert reader is not None
        done = rebalance(reader, self.quota, progress)
        self.see_others()
        return done

    @property
    def writes(self) -> bool:
        """Whether this process keeps what it computes: neither read-only nor kept from it by `writer_ranks`."""
        return not self._read_only and self._writers.include_this()

    # Which version it is

    @property
    def fingerprint(self) -> Fingerprint | None:
        """What this cache was filled under, or its module was bound with; None while neither happened."""
        stored = self.reader.store.metadata.get("fingerprint") if self.reader is not None else None
        return stored or self._fingerprint

    def bind(self, fingerprint: Fingerprint) -> bool:
        """Whether this is the version of a fingerprint, which it becomes if it is nobody's yet."""
        if self._options.versions != "new":
            try:
                self._tie(fingerprint)
            except _OtherRules:
                self._leave(fingerprint)
            return True
        if self._fingerprint is None and self.writes:
            self.blocks.flush(self.commit)  # put in by hand, before any module was bound
        with self.lock:
            if self._fingerprint is None and not len(self.blocks):
                self._become(fingerprint)
            return self._fingerprint is not None and are_equal(self._fingerprint, fingerprint)

    def _tie(self, fingerprint: Fingerprint) -> None:
        with self.lock:
            if self.reader is None:
                self._find_store()
            known = self.fingerprint
            if known is None:
                self._fingerprint = fingerprint
                if self.reader is None or not self.writes:
                    return
                known = self.reader.store.annotate("fingerprint", fingerprint)  # filled by put_batch so far
        self._compare(known, fingerprint)

    def _compare(self, known: Fingerprint, fingerprint: Fingerprint) -> None:
        changed = difference(known, fingerprint)
        if changed and self._options.versions != "ignore":
            kind = StaleCache if have_same_rules(known, fingerprint) else _OtherRules
            raise kind(
                f"the cache {self._id!r} in {self.folder} holds outputs of another computation than this: {changed}. "
                "Use another cache id for the changed module, pass versions='new' to keep both, restore what changed, "
                f"or remove {self.path}"
            )

    def _leave(self, fingerprint: Fingerprint) -> None:
        """Go on in a version beside a cache that was filled under other rules of identity, which stays as it is.

        Raises:
            StaleCache: there is one beside it for another fingerprint of the same rules.
        """
        if self.writes:
            self.blocks.flush(self.commit)  # put in by hand
        own = version_folder(self.folder, self.name, fingerprint)
        if not (own / NAME).exists():
            for version in read_versions(self.folder, self.name):
                if version.fingerprint is not None and have_same_rules(version.fingerprint, fingerprint):
                    self._compare(version.fingerprint, fingerprint)
            self._say_left(own)
        with self.lock:
            self._fingerprint = None
            self._move(own)
            self._tie(fingerprint)

    def _say_left(self, own: Path) -> None:
        _log.warning(
            "the cache %r in %s was filled under other rules of identity: it stays as it is, and samples are computed "
            "anew into %s",
            self._id, self.folder, own.name,
        )  # fmt: skip

    def _become(self, fingerprint: Fingerprint) -> None:
        """Be the version of a fingerprint: its own folder if it has one, else the first one if that is free or its."""
        own = version_folder(self.folder, self.name, fingerprint)
        if (own / NAME).exists():
            self._move(own)
        try:
            self._tie(fingerprint)
        except StaleCache as error:
            if self.path == own:
                raise  # two fingerprints of one digest
            if type(error) is _OtherRules:
                self._say_left(own)
            self._move(own)
            self._tie(fingerprint)
        self._fingerprint = fingerprint

    def _move(self, path: Path) -> None:
        # What was open is not closed: another thread may be reading it.
        if self.reader is not None:
            self.reader.store.reclaim()
            self._schema = self.reader = None
            self._settled = True
        self.path = path
        self.cost.move(path / "cost.json")
        if self._joined is not None:
            self.files = self._joined.files(path.name)
            self._open_joined()

    # The store

    def _find_store(self) -> bool:
        """Open the store if some process has made it."""
        if not (self.path / NAME).exists():
            return False
        try:
            self._adopt(self._open_store())
        except StaleCache as error:
            # Another process filled the first version meanwhile; ours is another one, and nothing of it is written yet.
            assert self._fingerprint is not None
            own = version_folder(self.folder, self.name, self._fingerprint)
            if (self._options.versions != "new" and type(error) is not _OtherRules) or self.path == own:
                raise
            self._move(own)
            return self._find_store()
        return True

    def _open_store(self) -> RecordStore:
        return open_store(
            self.path,
            self.files,
            read_only=self._read_only,
            must_write=self.writes,
            quota=self.quota,
            threads=self._options.threads,
        )

    def _create_store(self) -> CacheReader:
        assert self._schema is not None
        try:
            store = create_store(
                self.path,
                self._schema,
                self._fingerprint,
                self.files,
                self.quota,
                self._options.threads,
                roles=self.roles,
                settled=self._settled,
            )
        except StoreExists:
            # Another process was first. Its schema and fingerprint stand; ours must fit them, or be another version.
            before = self.path
            if self._find_store():
                assert self.reader is not None
                return self.reader
            if self.path == before:
                raise
            return self._create_store()
        return self._adopt(store)

    def _adopt(self, store: RecordStore) -> CacheReader:
        store.hand_over()  # this cache closes it, after its own pending rows
        try:
            schema = schema_of(store)
            self._check_joins(store, schema)
            reader = self._reader_of(store, schema)
            reader.index.catch_up(store.snapshot.rows)
        except BaseException:
            store.close()
            raise
        self._settled = is_settled(store.metadata) or (self._schema is not None and self._settled)
        self._schema, self.reader = schema, reader
        if self._settled:
            self._write_settled(store)
        return reader

    def _check_joins(self, store: RecordStore, schema: OutputSchema) -> None:
        """Raise where a store that another process made does not fit what this one works with already."""
        known = store.metadata.get("fingerprint")
        if self._fingerprint is not None and known is not None:
            self._compare(known, self._fingerprint)
        if len(self.blocks):
            assert self._schema is not None
            check_spec(schema.structure, self._schema.structure)
            for block in self.blocks.waiting():
                schema.check(block.leaves)

    def _reader_of(self, store: RecordStore, schema: OutputSchema) -> CacheReader:
        largest = self.quota.largest if self.quota is not None else None
        return CacheReader(store, open_index(store, self.files, largest=largest), schema, self.hot)

    def _follow_generation(self) -> CacheReader:
        """Read with the index of the store's present generation: somebody may have rebalanced it."""
        assert self.reader is not None
        store = self.reader.store
        if self.reader.index.generation != store.manifest.generation:
            self.reader = self._reader_of(store, self.reader.schema)
        return self.reader

    # The remote

    def _open_joined(self) -> None:
        """Have what others pushed by now; without an answer, what was here already."""
        if self._joined is not None and not self._read_only:
            self._joined.pull_now(self)

    def settled_store(self) -> RecordStore | None:
        """The store of this cache, with nothing pending and no chunk that this process writes to; None without one."""
        self.flush()
        with self.lock:
            if self.reader is None and not self._find_store():
                return None
            assert self.reader is not None
            store = self.reader.store
            if store.mode == "a":
                with store.session.lock:
                    store.session.generation.seal()
            return store

    # The end

    def close(self) -> None:
        """Let go of the files; for when nothing waits any more."""
        if self.writes:
            self.cost.save()
            if self._joined is not None and self.reader is not None:
                self._joined.push_now(self)
        if self.reader is not None:
            self.reader.index.sync()
            self.reader.index.close()
            self.reader.store.close()
        if self.hot is not None:
            self.hot.close()
        self.files.release()
        self.closed = True

    def after_fork(self) -> None:
        """In a forked child: what waits, the locks and the hot rows stay the parent's."""
        self.lock = threading.RLock()
        self._handed = 0
        self._arenas = {}
        self.blocks.after_fork()
        if self.hot is not None:
            self.hot.after_fork()
        if self.reader is not None:
            self.reader.store._after_fork()
            self.reader.index.after_fork()

    def _check_open(self) -> None:
        if self.closed:
            raise Closed(f"the cache {self.path} is closed; open it again with FeatureCache")
