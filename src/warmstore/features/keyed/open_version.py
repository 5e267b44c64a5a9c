"""OpenVersion: the version of a cache that one process has open, with its folder, store, schema and fingerprint.

The store is opened if some process has created it; otherwise the first commit creates it. If another process fills the
folder meanwhile under another fingerprint, this version moves to another folder.
"""

from __future__ import annotations

import contextlib
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmstore.errors import Closed, NotSupportedError, ReadOnly, StaleCache, StoreExists
from warmstore.features.keyed.cache_options import CacheOptions, folder_name
from warmstore.features.keyed.cache_quota import CacheQuota, rebalance, tidy
from warmstore.features.keyed.cache_reader import CacheReader, StoredFigures
from warmstore.features.keyed.cache_store import (
    SETTLED,
    UNSETTLED,
    check_signed,
    create_store,
    is_settled,
    schema_of,
    unwritable,
)
from warmstore.features.keyed.cache_versions import Fingerprint, OtherRules, check_equal, version_folder
from warmstore.features.keyed.lookup_recorder import LookupRecorder
from warmstore.features.keyed.usage_counters import UsageCounters
from warmstore.features.keyed.version_remote import VersionRemote
from warmstore.features.outputs.output_schema import KEY, OutputSchema
from warmstore.features.outputs.output_structure import check_spec
from warmstore.features.write_queue import Block, WriteBehindQueue
from warmstore.features.writer_ranks import WriterRanks
from warmstore.records.format.manifest import holds_store
from warmstore.records.index.sample_keys import Keys
from warmstore.records.keyed_store import MISSING, IndexedStore, despite_removal
from warmstore.records.local_store import LocalStore
from warmstore.records.maintenance.rewrite import Utilisation
from warmstore.records.write.upgrade import upgrade
from warmstore.records.write.write_options import WriteOptions
from warmstore.replicate.parts import PartLog
from warmstore.storage.disk_usage import entries_below
from warmstore.storage.files import Files
from warmstore.storage.humanize import parse_size
from warmstore.storage.registry import FEATURES, register

if TYPE_CHECKING:
    from warmstore.features.calls.call_arguments import Roles


class OpenVersion:
    """An open version. Safe to use from several threads: `lock` is held while the store opens or the folder changes.

    reader: reads the store; None without a store. schema: the schema of outputs; None until stored or accepted outputs
    fix it. settled: whether the dimensions of samples in outputs are known. roles: of the bound module's arguments.

    Args:
        id: the id of the cache.
        folder: the folder of all caches.
        blocks: the blocks that `commit` will commit.
        remote: the remote of a cache that was opened by its URL.
        files: file operations; None for the default.
    """

    def __init__(
        self,
        id: str,
        folder: Path,
        options: CacheOptions,
        blocks: WriteBehindQueue,
        remote: VersionRemote[OpenVersion] | None,
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
        max_size = parse_size(options.max_size) if options.max_size else None
        self.recorder = LookupRecorder(self.path, limit=max_size)
        self.quota = CacheQuota(folder, self.name, max_size, self.files, self.recorder.evicted) if max_size else None
        self.cost = UsageCounters(self.path / "cost.json")
        self.reader: CacheReader | None = None
        self.schema: OutputSchema | None = None
        self.settled = True  # a schema that is fixed by a batch of one clears it
        self.module_fingerprint: Fingerprint | None = None
        self.unbound = 0  # how often `unbind` took effect
        self.roles: Roles = {}
        self.lock = threading.RLock()
        self.closed = False
        self._read_only = options.read_only
        self._writers = WriterRanks(options.writer_ranks)
        self.remote = remote
        self.logs: dict[tuple[str, bool], PartLog] = {}  # by the identity of a remote, and whether it is signed
        self._accepted = 0  # blocks that the store accepted or refused before a commit failed
        self._rested: StoredFigures | None = None  # of the store that `rest` has left
        self.find_store()
        try:
            self._pull_remote()
        except BaseException:
            if self.reader is not None:
                self.reader.keyed.close()
            raise

    @property
    def stored_roles(self) -> Roles:
        """The roles of the arguments of the module that filled this cache; empty if they were not stored."""
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

    def unbind(self) -> None:
        """Forget the bound module if it has stored nothing, so that the program may change it and try again."""
        with self.lock:
            if self.reader is None and self.schema is None and not len(self.blocks):
                self.module_fingerprint = None
                self.unbound += 1
                if self.path != self.folder / self.name:  # it is in the folder of that module
                    self.move(self.folder / self.name)

    def check_fingerprint(self, known: Fingerprint, fingerprint: Fingerprint) -> None:
        """Raise StaleCache if two fingerprints differ, unless versions="ignore"."""
        if self.options.versions != "ignore":
            check_equal(known, fingerprint, self.id, self.path)

    @property
    def entries(self) -> int:
        """Samples in this version, pending ones too."""
        reader, rested = self.reader, self._rested or StoredFigures()
        return len(self.blocks) + (rested.length if reader is None else reader.store._snapshot.length)

    @property
    def stored(self) -> StoredFigures:
        """What the store has, or had when `rest` left it."""
        return self._rested or StoredFigures() if self.reader is None else self.reader.figures

    @property
    def nbytes(self) -> int:
        """Bytes on the disk."""
        return sum(status.st_size for _, status in entries_below(self.path) if not stat.S_ISDIR(status.st_mode))

    # Opening and creating

    @despite_removal
    def find_store(self) -> bool:
        """Open the store if some process has created it. Returns whether there is one."""
        self._rested = None
        if not holds_store(self.path):
            return False
        try:
            self._adopt(self._open_store())
        except StaleCache as error:
            # Another process filled this folder meanwhile with another version. Nothing of this version is written yet.
            assert self.module_fingerprint is not None
            own = version_folder(self.folder, self.name, self.module_fingerprint)
            if (self.options.versions != "new" and type(error) is not OtherRules) or self.path == own:
                raise
            self.move(own)
            return self.find_store()
        return True

    def _open_store(self) -> LocalStore:
        """Open the store, for writing if possible.

        Raises:
            ReadOnly: this process must write to the store, and cannot.
        """
        if not self._read_only or self.remote is not None:  # what comes from a remote is written to the local folder
            try:
                writing = WriteOptions.of(**self._writing())
                store = LocalStore._open_folder(self.path, "a", writing=writing, files=self.files)
                if self.quota is not None:
                    upgrade(self.path, self.files, wait=True)
                return store
            except ReadOnly as error:
                if self.writes:
                    raise unwritable(error, self.path) from error
        return LocalStore._open_folder(self.path, files=self.files)

    def _new_store(self, schema: OutputSchema) -> LocalStore:
        metadata: dict[str, Any] = {"structure": schema.structure, "fingerprint": self.module_fingerprint}
        if len(self.roles) > 1:  # one argument is the input
            metadata["arguments"] = dict(self.roles)
        if not self.settled:
            metadata |= UNSETTLED
        return create_store(self.path, schema, metadata, self.files, self._writing())

    def _writing(self) -> dict[str, Any]:
        room = {} if self.quota is None else {"chunk_size": self.quota.chunk_size, "room": self.quota.reserve}
        return {"writer_threads": self.options.threads, **room}

    def _create_store(self) -> CacheReader:
        assert self.schema is not None
        try:
            store = self._new_store(self.schema)
        except StoreExists:
            # Another process created the store first. Outputs of this process must fit its schema and fingerprint;
            # otherwise this is another version.
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
        register(FEATURES, self.path)  # also if it is only read: that is a use too
        self.settled = is_settled(store.metadata) or (self.schema is not None and self.settled)
        self.schema, self.reader = schema, CacheReader(keyed, schema, self.hot, unpickles=self.options.allow_pickle)
        if self.settled:
            self._write_settled(store)
        return self.reader

    def _check_joins(self, store: LocalStore, schema: OutputSchema) -> None:
        """Raise if the store of another process does not fit the fingerprint and pending blocks of this one."""
        if self.options.is_signed:
            check_signed(store.metadata, self.path)
        if self.module_fingerprint is not None and (known := store.metadata.get("fingerprint")) is not None:
            self.check_fingerprint(known, self.module_fingerprint)
        if len(self.blocks):
            assert self.schema is not None
            check_spec(schema.structure, self.schema.structure)
            for block in self.blocks.waiting():
                schema.check(block.leaves)

    @despite_removal
    def see_others(self) -> bool:
        """Read new rows of other processes. Returns whether there were any."""
        with self.lock:
            self._leave_removed()
            return self.find_store() if self.reader is None else self.reader.keyed.see_others()

    def _found(self) -> CacheReader | None:
        """The reader of the store in the folder; None if there is none, or not any more."""
        with self.lock:
            self._leave_removed()
            if self.reader is None:
                self.find_store()
            return self.reader

    def _leave_removed(self) -> None:
        """Leave a store that somebody has removed from its folder. It stays open, as in `move`."""
        reader = self.reader
        if reader is None or self.remote is not None or not reader.keyed.is_gone():
            return
        reader.store.mode = "r"  # so that it is closed without looking for what others have written
        self._leave(reader)

    def _leave(self, reader: CacheReader) -> None:
        """Let the store close itself as soon as no thread uses it."""
        self.module_fingerprint, self.roles = self.fingerprint, self.roles or self.stored_roles
        reader.store._reclaim()
        self.reader, self._accepted = None, 0

    def rest(self) -> None:
        """Commit what is pending and leave the store until it is needed again, with no files and no thread."""
        if self.reader is None or self.closed:
            return
        self.flush()
        self.blocks.stop()
        with self.lock:
            self._leave_removed()
            if (reader := self.reader) is not None and not len(self.blocks):
                with contextlib.suppress(OSError):  # the index is rebuilt from the store
                    reader.keyed.index.sync()
                self._rested = self.stored
                self._leave(reader)

    def move(self, path: Path) -> None:
        """Use another version's folder. The previous store stays open, because other threads may be reading it."""
        if self.reader is not None:
            self.reader.store._reclaim()
            self.schema = self.reader = None
            self.settled = True
        self.recorder.move(self, path)
        self.path = path
        self.cost.move(path / "cost.json")
        if self.remote is not None:
            self.files = self.remote.files(path.name)
            self._pull_remote()

    # The dimensions of samples in outputs

    def settle(self) -> None:
        """Record that the dimensions of samples in outputs are known."""
        if not self.settled:
            self.settled = True
            if self.reader is not None:
                self._write_settled(self.reader.store)

    def _write_settled(self, store: LocalStore) -> None:
        if store.mode == "a" and not is_settled(store.metadata):
            with contextlib.suppress(OSError):  # then the next process learns the dimensions again
                store.annotate(SETTLED, True)

    # Committing

    def flush(self) -> None:
        """Commit all pending blocks."""
        self.check_open()
        if not self._read_only:
            self.blocks.flush(self.commit)
            self.recorder.flushed(self)

    def created(self) -> CacheReader:
        """The reader of the store, which is created if there is none. The schema must be known."""
        with self.lock:
            return self._found() or self._create_store()

    @despite_removal
    def commit(self, blocks: Sequence[Block]) -> None:
        """Commit blocks to the store. Those that it accepted or refused before a commit failed are not passed again."""
        reader = self.created()
        with self._replacing(reader.keyed, [block.keys for block in blocks[self._accepted :]]):
            for block in blocks[self._accepted :]:
                with self.blocks.refusing():
                    reader.keyed.extend(block.keys, reader.schema.encode(block.leaves))
                self._accepted += 1
            reader.keyed.flush()
        self._accepted = 0
        self.recorder.wrote(sum(block.nbytes for block in blocks))

    def delete(self, keys: Keys) -> None:
        """Delete the samples with these keys, which are cached."""
        self._check_removable()
        self.flush()
        if (reader := self._found()) is not None:  # else they are gone with the folder
            with self._replacing(reader.keyed, [keys]):
                reader.keyed.delete(keys)

    @contextlib.contextmanager
    def _replacing(self, keyed: IndexedStore, added: Sequence[Keys]) -> Iterator[None]:
        """Commit rows that may replace others, or delete them, within the quota.

        Chunks are evicted in the order in which they were begun. So rows with keys that are there already come into a
        chunk that was begun after all others: evicted earlier, they would bring back what they replace.
        """
        if self.quota is None:
            yield
            return
        tidy(keyed, self.quota)
        # No other process writes. The lock of the session comes first, as wherever a store with a quota is written.
        with keyed.store._session.lock, self.quota.reserve(0):
            keyed.refresh()
            if any((keyed.find_last(keys) != MISSING).any() for keys in added):
                keyed.store._session.continue_in_newest_chunk()
            yield

    def clear(self) -> None:
        """Delete all samples."""
        self._check_removable()
        self.flush()
        if (reader := self._found()) is None:
            return
        with reader.store._editing(), contextlib.nullcontext() if self.quota is None else self.quota.reserve(0):
            reader.keyed.clear()

    def _check_removable(self) -> None:
        if not self.writes:
            raise ReadOnly(f"the cache {self.path} is only read by this process; open it for writing to delete samples")
        if self.remote is not None:
            raise NotSupportedError(
                f"the cache {self.id!r} is at a URL, from which other hosts would get deleted samples again; remove "
                "its folder there, or use another cache id"
            )

    def rebalance(self, progress: bool | None) -> Utilisation:
        """See `FeatureCache.rebalance`."""
        if (reader := self._found()) is None:
            return Utilisation(0, 0, 0, 0)
        utilisation = rebalance(reader.keyed, self.quota, progress)
        self.see_others()
        return utilisation

    # The remote

    def _pull_remote(self) -> None:
        """Pull the samples of other hosts, if the remote answers."""
        if self.remote is not None:
            self.remote.pull_now(self)

    def settled_store(self) -> LocalStore | None:
        """Commit all pending blocks and seal this process's chunk. Returns the store; None without one."""
        self.flush()
        with self.lock:
            reader = self._found()
            if reader is not None and reader.store.mode == "a":
                with reader.store._session.lock:
                    reader.store._session.generation.seal()
            return None if reader is None else reader.store

    # Closing

    def close(self) -> None:
        """Push to the remote and close the files. Nothing may be pending."""
        if self.writes:
            self.recorder.record(self)
            self.cost.save()
            if self.remote is not None and (self.reader or (self._rested and self._found())):
                self.remote.push_now(self)
        with self.lock:
            self._leave_removed()
        if self.reader is not None:
            self.reader.keyed.close()
        if self.hot is not None:
            self.hot.close()
        self.files.release()
        self.closed = True

    def after_fork(self) -> None:
        """In a forked child: pending blocks, counts, locks and hot rows stay with the parent."""
        self.lock = threading.RLock()
        self._accepted = 0
        self.cost.after_fork()
        self.recorder.after_fork()
        self.blocks.after_fork()
        if self.hot is not None:
            self.hot.after_fork()
        if self.reader is not None:
            self.reader.keyed.after_fork()

    def check_open(self) -> None:
        """Raise Closed after `close`."""
        if self.closed:
            raise Closed(f"the cache {self.path} is closed; open it again with FeatureCache")
