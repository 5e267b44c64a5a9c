"""ResultStore: the results of one function on the disk, found by 16-byte keys.

A result is committed with the ones before it, as soon as these took 20 ms to compute, so that a kill loses no more than
that. Until then it is pending in this process. Results that were read once are found again without the key index.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np

from warmstore.errors import ReadOnly, StoreExists, WarmstoreError, WriteFailed
from warmstore.features.keyed.cache_quota import CacheQuota, tidy
from warmstore.functions.large_values import LARGE, LargeValue, LargeValues
from warmstore.records.format.encoded_rows import EncodedRows
from warmstore.records.format.fields import LARGEST_RECORD, Array, Bytes, Fields
from warmstore.records.format.manifest import NAME, Manifest, holds_store, read_manifest
from warmstore.records.index.sample_keys import Keys
from warmstore.records.keyed_store import IndexedStore, bad_rows, despite_removal, keys_of
from warmstore.records.local_store import LocalStore
from warmstore.records.write.upgrade import upgrade
from warmstore.records.write.write_options import WriteOptions
from warmstore.storage.files import PLAIN, Files
from warmstore.storage.registry import FUNCTIONS, register

_log = logging.getLogger("warmstore")

KEY, VALUE = "key", "value"
FIELDS: Fields = {KEY: Array("uint64", (2,)), VALUE: Bytes()}
FUNCTION = "function"
"""The entry in a store's metadata that has the name of the function."""

_AT_RISK = 0.02  # seconds of computing that may be pending
_MOST_PENDING = 8 << 20  # bytes
_MOST_ROWS = 1024
_MOST_WAITING = 256 << 20  # bytes that wait for a disk that refuses writes
_VIEWS = 4096
_HEAD = 1 << 10  # bytes of a row beside its value, at most


_stores: dict[Path, WeakSet[ResultStore]] = {}
"""All result stores of this process by their folders."""


def holds_results(folder: str) -> bool:
    """Whether a folder has the results of a function."""
    if not os.path.exists(f"{folder}/{NAME}"):  # noqa: PTH110  of all folders below an argument, in each call
        return False
    try:
        manifest = read_manifest(Path(folder), PLAIN)
    except (WarmstoreError, OSError):
        return False
    return _are_results(manifest)


def _are_results(store: LocalStore | Manifest) -> bool:
    return dict(store.fields) == FIELDS and isinstance(store.metadata.get(FUNCTION), str)


class ResultStore:
    """Safe to use from several threads and processes.

    damaged: rows that did not match their checksums. evicted_files, evicted_bytes: what this process evicted.

    Args:
        folder: of all functions. name: of this function's folder in it.
        function: the name of the function, for its metadata and messages.
        max_size: the most bytes on the disk; None for no limit.
    """

    def __init__(self, folder: Path, name: str, function: str, max_size: int | None, files: Files) -> None:
        self.path = folder / name
        self.damaged = self.evicted_files = self.evicted_bytes = 0
        self._function = function
        self._files = files
        self._quota = None if max_size is None else CacheQuota(folder, name, max_size, files, self._count_evicted)
        self._lock = threading.RLock()
        self._keyed: IndexedStore | None = None
        self._is_read_only = False
        self._pending: dict[bytes, bytes] = {}
        self._pending_bytes = 0
        self._pending_seconds = 0.0
        self._views: dict[bytes, memoryview | LargeValue] = {}
        self._large = LargeValues()
        self._warned: set[str] = set()
        if holds_store(self.path):
            self._open()
        _stores.setdefault(self.path.absolute(), WeakSet()).add(self)

    def _count_evicted(self, files: int, nbytes: int) -> None:
        self.evicted_files += files
        self.evicted_bytes += nbytes

    # Opening

    def _open(self) -> IndexedStore:
        writing = WriteOptions.of(**self._writing)
        try:
            store = LocalStore._open_folder(self.path, "a", writing=writing, files=self._files)
            if self._quota is not None:
                upgrade(self.path, self._files, wait=True)
        except ReadOnly:
            self._is_read_only = True
            self._warn("read-only", f"{self.path} cannot be written: new results of {self._function} are not kept")
            store = LocalStore._open_folder(self.path, files=self._files)
        return self._adopt(store)

    @property
    def _writing(self) -> dict[str, Any]:
        quota = self._quota
        return {} if quota is None else {"chunk_size": quota.chunk_size, "room": quota.reserve}

    def _adopt(self, store: LocalStore) -> IndexedStore:
        if not _are_results(store):
            store.close()
            raise StoreExists(f"{self.path} has other data than results of {self._function}; choose another folder")
        keyed = IndexedStore(store, KEY, largest=None if self._quota is None else self._quota.largest)
        try:
            keyed.catch_up()
        except BaseException:
            keyed.close()
            raise
        self._keyed = keyed
        register(FUNCTIONS, self.path)
        return keyed

    @despite_removal
    def _create(self) -> IndexedStore:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            store = LocalStore.create(
                self.path, FIELDS, metadata={FUNCTION: self._function}, files=self._files, **self._writing
            )
        except StoreExists:
            if not holds_store(self.path):
                raise
            return self._open()  # another process was first
        return self._adopt(store)

    # Reading

    def find(self, key: bytes) -> Any:
        """The bytes stored under a key: bytes, a view of them, or for 256 kB and more a copy-on-write array, uint8, of
        the caller's own. None if there are none."""
        found: Any = self._pending.get(key) if self._pending else None
        if found is None:
            found = self._views.get(key) or self._find(key)
        return found.own() if isinstance(found, LargeValue) else found

    def holds(self, key: bytes) -> bool:
        """Whether something is stored under a key."""
        return self.find(key) is not None

    @despite_removal
    def _find(self, key: bytes) -> memoryview | LargeValue | None:
        keys = Keys.of_halves(np.frombuffer(key, np.uint64).reshape(1, 2))
        keyed = self._keyed
        if keyed is None:
            self._flush_others()
            with self._lock:
                if self._keyed is None and not holds_store(self.path):
                    return None
                keyed = self._keyed or self._open()
        found = self._read(keyed, keys)
        if found is None:
            self._flush_others()
            self._leave_removed()
            if self._keyed is not keyed:
                return self._find(key)
            if self._see_others(keyed):
                found = self._read(keyed, keys)
        if found is None:
            return None
        if len(self._views) >= _VIEWS:
            self._forget()
        self._views[key] = found
        return found

    def _leave_removed(self) -> None:
        """Leave a store that somebody has removed from its folder. What is pending goes to a new one."""
        with self._lock:
            keyed = self._keyed
            if keyed is None or not keyed.is_gone():
                return
            waiting, self._pending, self._pending_bytes, self._keyed = self._pending, {}, 0, None
            self._forget()
            with contextlib.suppress(OSError):
                keyed.abandon()
            for key, data in waiting.items():
                self._add(self._keyed or self._create(), key, data)

    def _flush_others(self) -> None:
        """Commit what is pending for another object in this process with the same function and folder."""
        for other in list(_stores.get(self.path.absolute(), ())):
            if other is not self and other.pending:
                with contextlib.suppress(WriteFailed):
                    other.flush()

    def _forget(self) -> None:
        """Forget what was read: views keep the files of removed chunks."""
        self._views = {}
        self._large.forget()

    def _see_others(self, keyed: IndexedStore) -> bool:
        """Read what other processes have committed. Returns whether there is anything."""
        snapshot = keyed.store._snapshot
        has_new = keyed.see_others()
        if keyed.store._snapshot is not snapshot:
            self._forget()
        return has_new

    def _read(self, keyed: IndexedStore, keys: Keys) -> memoryview | LargeValue | None:
        rows = keyed.index.lookup(keys)
        gatherer = keyed.store._gatherer  # one for all: another thread may continue in another generation
        if not 0 <= rows[0] < gatherer.snapshot.rows:
            return None
        value, stored = gatherer.read_rows([VALUE, KEY], rows)
        if bad_rows(1, value, stored)[0]:
            gaps = gatherer.snapshot.gaps
            self.damaged += gaps is None or not gaps.holds(rows)[0]
            return None
        if (keys_of(stored).halves != keys.halves).any():
            return None
        assert value.spans is not None
        view = value.spans.views()[0]
        return view if len(view) < LARGE else self._large.of(value.spans, view) or view

    # Writing

    def put(self, key: bytes, data: bytes, seconds: float) -> bool:
        """Store bytes under a key, which took some seconds to compute. Returns whether they are kept.

        A disk that refuses the write is tried again with the next result.
        """
        if self._is_read_only:
            return False
        most = LARGEST_RECORD - _HEAD if self._quota is None else min(LARGEST_RECORD - _HEAD, self._quota.largest)
        if len(data) > most:
            limit = "" if self._quota is None else ": with max_size a result may take an eighth of it"
            self._warn("large", f"a result of {self._function} of {len(data):,} bytes is not kept{limit}")
            return False
        with self._lock:
            if self._pending_bytes > _MOST_WAITING:
                return False
            self._add(self._keyed or self._create(), key, data)
            self._pending_seconds += seconds
            if (
                self._pending_seconds >= _AT_RISK
                or self._pending_bytes >= _MOST_PENDING
                or len(self._pending) >= _MOST_ROWS
            ):
                try:
                    self.flush()
                except WriteFailed as error:
                    self._warn("write", f"results of {self._function} wait for the disk: {error}")
        return True

    def _add(self, keyed: IndexedStore, key: bytes, data: bytes) -> None:
        rows = EncodedRows(1, np.frombuffer(data, np.uint8), np.array([0, len(data)], np.int64))
        keyed.extend(Keys.of_halves(np.frombuffer(key, np.uint64).reshape(1, 2)), {VALUE: rows})
        self._pending[key] = data
        self._pending_bytes += len(data)

    @despite_removal
    def flush(self) -> None:
        """Commit pending results.

        Raises:
            WriteFailed: the disk refused; they are still pending.
        """
        with self._lock:
            self._leave_removed()
            if self._keyed is None or not self._pending:
                return
            if self._quota is not None:
                tidy(self._keyed, self._quota)
            self._keyed.flush()
            for key in self._pending:
                self._views.pop(key, None)  # of a result that was computed again
            self._pending, self._pending_bytes, self._pending_seconds = {}, 0, 0.0

    @despite_removal
    def clear(self) -> None:
        """Remove all results.

        Raises:
            ReadOnly: the folder cannot be written.
        """
        with self._lock:
            if self._is_read_only:
                raise ReadOnly(f"{self.path} cannot be written, so its results cannot be removed")
            self.flush()
            keyed = self._keyed
            if keyed is None:
                if not holds_store(self.path):
                    return
                keyed = self._open()
            keyed.see_others()
            with keyed.store._editing(), self._quota.reserve(0) if self._quota else contextlib.nullcontext():
                keyed.clear()
            self._forget()

    # Figures

    @property
    def pending(self) -> int:
        """Results that are not committed yet."""
        return len(self._pending)

    @property
    def entries(self) -> int:
        """Committed results, including those of earlier code."""
        return 0 if self._keyed is None else self._keyed.store._snapshot.length

    @property
    def nbytes(self) -> int:
        """Bytes on the disk."""
        return 0 if self._keyed is None else self._keyed.store.nbytes

    def close(self) -> None:
        """Commit pending results and close the files."""
        with self._lock:
            self.flush()
            self._forget()
            if self._keyed is not None:
                self._keyed.close()
                self._keyed = None

    def after_fork(self) -> None:
        """In a forked child: pending results, locks and counts stay with the parent."""
        self._lock = threading.RLock()
        self.damaged = self.evicted_files = self.evicted_bytes = 0
        self._pending, self._pending_bytes, self._pending_seconds = {}, 0, 0.0
        if self._keyed is not None:
            self._keyed.after_fork()

    def _warn(self, subject: str, text: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            _log.warning("%s", text)
