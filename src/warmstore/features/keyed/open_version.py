"""OpenVersion: the version of a cache that one process has open, with its folder, store, schema and fingerprint.

The store is opened once some process has created it, and created at the first commit. The folder may turn out to hold
another version, filled under another fingerprint: this version then goes on in a folder of its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from warmstore.errors import Closed, SchemaMismatch, StaleCache, StoreExists
from warmstore.features.keyed.cache_options import CacheOptions, folder_name
from warmstore.features.keyed.cache_quota import CacheQuota, rebalance, tidy
from warmstore.features.keyed.cache_reader import CacheReader
from warmstore.features.keyed.cache_store import SETTLED, create_store, is_settled, open_store, schema_of
from warmstore.features.keyed.cache_versions import Fingerprint, difference, have_same_rules, version_folder
from warmstore.features.keyed.usage_counters import UsageCounters
from warmstore.features.outputs.output_schema import KEY, OutputSchema
from warmstore.features.outputs.output_structure import check_spec
from warmstore.features.write_queue import Block, WriteBehindQueue
from warmstore.features.writer_ranks import WriterRanks
from warmstore.records.format.manifest import NAME
from warmstore.records.keyed_store import IndexedStore
from warmstore.records.local_store import LocalStore
from warmstore.records.maintenance.rewrite import Utilisation
from warmstore.storage.files import Files
from warmstore.storage.humanize import parse_size

if TYPE_CHECKING:
    from warmstore.features.calls.call_arguments import Roles


class OtherRules(StaleCache):
    """A cache was filled under other rules of identity, so its fingerprint cannot be compared."""


class VersionRemote(Protocol):
    """The remote of a cache that was opened by its URL, as a version uses it; `RemoteBinding` implements it."""

    def files(self, name: str) -> Files:
        """The files that a version of the cache is read with, by the name of its folder."""

    def pull_now(self, version: OpenVersion) -> None:
        """Pull what the remote has. A remote that fails is no error."""

    def push_now(self, version: OpenVersion) -> None:
        """Push what is committed here. A remote that fails is no error."""

    def failed(self, error: Exception) -> None:
        """Count and log a failed read."""


class OpenVersion:
    """Safe to use from several threads: `lock` is held while the store is opened or the folder changes.

    reader: of the store; None until there is one. schema: the structure of outputs; None until it is fixed by stored or
    accepted outputs. settled: whether it is known in which dimensions samples lie. roles: of the bound module's
    arguments.

    Args:
        id: of the cache.
        folder: the folder of all caches.
        blocks: the blocks to be committed, by `commit`.
        remote: of a cache that was opened by its URL.
        files: to read and write with, instead of the default.
    """

    def __init__(
        self,
        id: str,
        folder: Path,
        options: CacheOptions,
        blocks: WriteBehindQueue,
        remote: VersionRemote | None,
        files: Files | None,
    ) -> None:
        self.id = id
        self.hot = options.hot_tier()
        self.name = folder_name(id, options.versions)
        self.folder = folder
        self.path = folder / self.name
        self.files = files or (Files() if remote is None else remote.files(self.name))
        self.blocks = blocks
        self.options = options
        max_size = options.max_size
        self.quota = CacheQuota(folder, self.name, parse_size(max_size), self.files) if max_size else None
        self.cost = UsageCounters(self.path / "cost.json")
        self.reader: CacheReader | None = None
        self.schema: OutputSchema | None = None
        self.settled = True  # a schema that is fixed by a batch of one clears it
        self.module_fingerprint: Fingerprint | None = None
        self.roles: Roles = {}
        self.lock = threading.RLock()
        self.closed = False
        self._read_only = options.read_only
        self._writers = WriterRanks(options.writer_ranks)
        self.remote = remote
        self._handed = 0  # blocks that the store took before a commit failed
        self.find_store()
        try:
            self._pull_remote()
        except BaseException:
            if self.reader is not None:
                self.reader.keyed.close()
            raise

    @property
    def stored_roles(self) -> Roles:
        """The roles of the arguments of the module that filled this cache; empty where they were not stored."""
        return self.reader.store.metadata.get("arguments") or {} if self.reader is not None else {}

    @property
    def writes(self) -> bool:
        """Whether this process stores what it computes: it is not read-only, and `writer_ranks` includes it."""
        return not self._read_only and self._writers.include_this()

    @property
    def fingerprint(self) -> Fingerprint | None:
        """The fingerprint of the stored outputs, or else of the module that was bound; None without either."""
        stored = self.reader.store.metadata.get("fingerprint") if self.reader is not None else None
        return stored or self.module_fingerprint

    def check_fingerprint(self, known: Fingerprint, fingerprint: Fingerprint) -> None:
        """Raise StaleCache where two fingerprints differ, unless differences are to be ignored."""
        changed = difference(known, fingerprint)
        if changed and self.options.versions != "ignore":
            kind = StaleCache if have_same_rules(known, fingerprint) else OtherRules
            raise kind(
                f"the cache {self.id!r} in {self.folder} holds outputs of another computation than this: {changed}. "
                "Use another cache id for the changed module, pass versions='new' to keep both, restore what changed, "
                f"or remove {self.path}"
            )

    # Opening and creating

    def find_store(self) -> bool:
        """Open the store if some process has created it; return whether there is one."""
        if not (self.path / NAME).exists():
            return False
        try:
            self._adopt(self._open_store())
        except StaleCache as error:
            # Another process filled this folder meanwhile, with another version. Nothing of this version is written.
            assert self.module_fingerprint is not None
            own = version_folder(self.folder, self.name, self.module_fingerprint)
            if (self.options.versions != "new" and type(error) is not OtherRules) or self.path == own:
                raise
            self.move(own)
            return self.find_store()
        return True

    def _open_store(self) -> LocalStore:
        return open_store(
            self.path,
            self.files,
            read_only=self._read_only,
            must_write=self.writes,
            quota=self.quota,
            threads=self.options.threads,
        )

    def _create_store(self) -> CacheReader:
        assert self.schema is not None
        try:
            store = create_store(
                self.path,
                self.schema,
                self.module_fingerprint,
                self.files,
                self.quota,
                self.options.threads,
                roles=self.roles,
                settled=self.settled,
            )
        except StoreExists:
            # Another process created it first. Its schema and fingerprint count: outputs of this process fit them, or
            # this is another version.
            before = self.path
            if self.find_store():
                assert self.reader is not None
                return self.reader
            if self.path == before:
                raise
            return self._create_store()
        return self._adopt(store)

    def _adopt(self, store: LocalStore) -> CacheReader:
        keyed = IndexedStore(store, KEY, largest=None if self.quota is None else self.quota.largest)
        try:
            schema = schema_of(store)
            self._check_joins(store, schema)
            keyed.catch_up()
        except BaseException:
            keyed.close()
            raise
        self.settled = is_settled(store.metadata) or (self.schema is not None and self.settled)
        self.schema, self.reader = schema, CacheReader(keyed, schema, self.hot)
        if self.settled:
            self._write_settled(store)
        return self.reader

    def _check_joins(self, store: LocalStore, schema: OutputSchema) -> None:
        """Raise where a store of another process does not fit this one's fingerprint and pending blocks."""
        known = store.metadata.get("fingerprint")
        if self.module_fingerprint is not None and known is not None:
            self.check_fingerprint(known, self.module_fingerprint)
        if len(self.blocks):
            assert self.schema is not None
            check_spec(schema.structure, self.schema.structure)
            for block in self.blocks.waiting():
                schema.check(block.leaves)

    def see_others(self) -> bool:
        """Read what other processes committed since; return whether there was anything."""
        with self.lock:
            return self.find_store() if self.reader is None else self.reader.keyed.see_others()

    def move(self, path: Path) -> None:
        """Go on in another version's folder. The store that was open stays open: other threads may be reading it."""
        if self.reader is not None:
            self.reader.store.reclaim()
            self.schema = self.reader = None
            self.settled = True
        self.path = path
        self.cost.move(path / "cost.json")
        if self.remote is not None:
            self.files = self.remote.files(path.name)
            self._pull_remote()

    # Where samples lie in outputs

    def settle(self) -> None:
        """Record that it is known in which dimensions samples lie in outputs."""
        if not self.settled:
            self.settled = True
            if self.reader is not None:
                self._write_settled(self.reader.store)

    def _write_settled(self, store: LocalStore) -> None:
        if store.mode == "a" and not is_settled(store.metadata):
            with contextlib.suppress(OSError):  # else the next process finds out again
                store.annotate(SETTLED, True)

    # Committing

    def flush(self) -> None:
        """Commit everything accepted so far."""
        self.check_open()
        if not self._read_only:
            self.blocks.flush(self.commit)

    def commit(self, blocks: Sequence[Block]) -> None:
        """Commit blocks to the store. Blocks that it took before a commit failed are not passed to it again."""
        with self.lock:
            reader = self.reader or self._create_store()
        if self.quota is not None:
            tidy(reader.keyed, self.quota)
        try:
            for block in blocks[self._handed :]:
                reader.keyed.extend(block.keys, reader.schema.encode(block.leaves))
                self._handed += 1
        except SchemaMismatch:
            self._handed = 0  # the queue drops all of these blocks
            raise
        reader.keyed.flush()
        self._handed = 0

    def rebalance(self, progress: bool | None) -> Utilisation:
        """See `FeatureCache.rebalance`."""
        with self.lock:
            if self.reader is None and not self.find_store():
                return Utilisation(0, 0, 0, 0)
            reader = self.reader
        assert reader is not None
        utilisation = rebalance(reader.keyed, self.quota, progress)
        self.see_others()
        return utilisation

    # The remote

    def _pull_remote(self) -> None:
        """Pull what other hosts pushed. A remote that does not answer is no error: local rows are used."""
        if self.remote is not None and not self._read_only:
            self.remote.pull_now(self)

    def settled_store(self) -> LocalStore | None:
        """The store, with everything committed and this process's chunk sealed; None where there is none yet."""
        self.flush()
        with self.lock:
            if self.reader is None and not self.find_store():
                return None
            assert self.reader is not None
            store = self.reader.store
            if store.mode == "a":
                with store.session.lock:
                    store.session.generation.seal()
            return store

    # The end

    def close(self) -> None:
        """Push to the remote and close the files. Nothing may be pending."""
        if self.writes:
            self.cost.save()
            if self.remote is not None and self.reader is not None:
                self.remote.push_now(self)
        if self.reader is not None:
            self.reader.keyed.close()
        if self.hot is not None:
            self.hot.close()
        self.files.release()
        self.closed = True

    def after_fork(self) -> None:
        """In a forked child: pending blocks, locks and hot rows stay with the parent."""
        self.lock = threading.RLock()
        self._handed = 0
        self.blocks.after_fork()
        if self.hot is not None:
            self.hot.after_fork()
        if self.reader is not None:
            self.reader.keyed.after_fork()

    def check_open(self) -> None:
        """Raise Closed after `close`."""
        if self.closed:
            raise Closed(f"the cache {self.path} is closed; open it again with FeatureCache")
