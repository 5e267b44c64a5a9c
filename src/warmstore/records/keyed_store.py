"""Record stores with a key in each row, open in one process to find rows by key.

Feature caches and the tiers of pipelines keep samples in such stores. Any process may create a store and add rows to
it. The others learn of these rows from the key column.
"""

import errno
import functools
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ParamSpec, TypeVar, final

import numpy as np

from warmstore.errors import NotAStore, NotSupportedError, StoreExists, WarmstoreError, WriteFailed
from warmstore.records.format.encoded_rows import EncodedRows, GatheredColumn, absent_rows, stored_rows
from warmstore.records.format.manifest import NAME, holds_store, read_manifest
from warmstore.records.format.value_encoding import encode
from warmstore.records.index.key_index import KeyIndex
from warmstore.records.index.sample_keys import Keys
from warmstore.records.local_store import LocalStore
from warmstore.records.maintenance.rewrite import rewrite
from warmstore.records.read.gather import Gatherer
from warmstore.records.store_session import BATCH_BYTES
from warmstore.storage.array_types import Bools, Int64
from warmstore.storage.reading_lease import ReadingLease

_log = logging.getLogger("warmstore")

_Arguments = ParamSpec("_Arguments")
_Found = TypeVar("_Found")
_AT_ONCE = 1 << 20  # rows whose keys are read together
_TRIES = 10  # of a use whose store is being removed
MISSING, DAMAGED = -1, -2
"""In place of a row: no row has the key, or the row that should have it is damaged. Row numbers are larger."""


class KeyedStore(ABC):
    """A record store with a key in each row: the field `key`, which is `Array("uint64", (2,))`.

    A subclass defines `catch_up`, which adds new rows to its index. This class calls it whenever there may be new rows,
    and owns the store, which only `close` closes.
    """

    def __init__(self, store: LocalStore, key: str) -> None:
        store._hand_over()
        self.store = store
        self.key = key

    @abstractmethod
    def catch_up(self) -> None:
        """Read the keys of committed rows that this process does not know yet."""

    def refresh(self) -> None:
        """Read the rows that other processes have committed."""
        self.store.refresh()
        self.catch_up()

    def commit(self, rows: dict[str, EncodedRows]) -> None:
        """Commit rows whose values are compressed already."""
        self.store._commit_rows(rows)
        self.catch_up()

    def close(self, *, seal: bool = True) -> None:
        """Commit pending rows and close the store; see `LocalStore.close`."""
        self.store.close(seal=seal)

    def abandon(self) -> None:
        """Release the files without writing: a forked child must not change its parent's files, and a folder that was
        removed cannot be written."""
        self.store._session.generation.release()
        self.store.closed = True


@final
class IndexedStore(KeyedStore):
    """A keyed store with a key index in its folder, which all processes of a host share.

    The last row with a key counts. A row that was adopted from another store counts only where none of this store's own
    has a value for its key. Safe to use from several threads.

    Args:
        largest: bytes that the direct table of the index may take; see `KeyIndex`.
    """

    def __init__(self, store: LocalStore, key: str, *, largest: int | None = None) -> None:
        super().__init__(store, key)
        self._largest = largest
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None  # the file that describes the store, when it was looked at last
        self.index = self._open_index()
        self._lease = ReadingLease(store.path)

    def _open_index(self) -> KeyIndex:
        store = self.store
        return KeyIndex(
            store.path,
            store._manifest.id,
            store._manifest.generation,
            functools.partial(_present_keys, store, self.key),  # not a method: cycles of references are freed late
            store._files,
            write=store.mode == "a",
            room=store._session.writing.room,
            largest=self._largest,
            ranked=functools.partial(_own_first, store, self.key),
        )

    def find(self, keys: Keys) -> Int64:
        """The row of each key, `MISSING` or `DAMAGED`: int64 [n]. Each row is confirmed by the key stored in it.

        A row without values says that its key was deleted.
        """

        def look(index: KeyIndex) -> Int64:
            found = _confirmed(self.store, self.key, keys, index.lookup(keys))
            found[_are_deleted(self.store, self.key, found)] = MISSING
            return found

        return self._in_one_generation(look)

    def find_last(self, keys: Keys) -> Int64:
        """`find`, with the rows of deleted keys, too."""
        return self._in_one_generation(lambda index: _confirmed(self.store, self.key, keys, index.lookup(keys)))

    def _in_one_generation(self, look: Callable[[KeyIndex], _Found]) -> _Found:
        """What a search finds in rows of one generation: another thread may follow a rebalance meanwhile."""
        while True:
            index, generation = self.index, self.store._session.generation
            found = look(index)
            if self.index is index and self.store._session.generation is generation:
                return found

    def latest(self, rows: Int64) -> Bools:
        """Which of some committed rows are undamaged and the last ones of their keys: bool [n]."""
        self.catch_up()  # the process that has committed the last rows may not have added them to the index yet
        leaves = [name for name in self.store.fields if name != self.key]
        keys, *columns = map(without_absent, self.store._gatherer.read_rows([self.key, *leaves], rows))
        last = self.find_last(keys_of(keys))
        counts: Bools = (last <= rows) & (_are_own(self.store, rows) | (last == rows) | (last < 0))
        return counts & ~bad_rows(len(rows), keys, *columns)

    def live(self, first: int, last: int) -> Keys:
        """The keys whose row is one of the committed rows [first, last), in order."""
        self.catch_up()  # as `latest` does

        def look(index: KeyIndex) -> Keys:
            keys, rows = _present_keys(self.store, self.key, first, last)
            return keys.take(self.find(keys) == rows)

        return self._in_one_generation(look)

    def has_replaced(self) -> bool:
        """Whether a row in a chunk of this store's own has a key that was deleted later, or has another value now.

        The last row of a key counts here. Who adopts the chunks one by one may take the older one.
        """
        return any(self._differ(older, last) for older, last in self._superseded())

    def put_in_order(self) -> None:
        """Commit the last rows of some keys again: of those of which an older row is in a chunk that was begun later.

        Who adopts the chunks in the order in which they were begun then takes the last row of every key. The new rows
        are in a sealed chunk.
        """
        self.store.refresh()
        snapshot, generation = self.store._snapshot, self.store._session.generation
        chunks = snapshot.chunk[: snapshot.batches]
        chunks = chunks[~np.isin(chunks, list(generation.batches.adopted))]
        if (chunks[1:] >= chunks[:-1]).all():
            return  # one process has written after the other
        late = []
        for older, last in self._superseded():
            is_late = _are_own(self.store, last) & (_chunks_of(self.store, older) > _chunks_of(self.store, last))
            if is_late.any() and self._differ(older[is_late], last[is_late]):
                late.append(read_keys(self.store._gatherer, self.key, np.unique(last[is_late]))[0])
        if not late:
            return
        session, step = self.store._session, BATCH_BYTES * self.store._snapshot.rows // max(self.store.nbytes, 1)
        with self.store._editing():
            session.continue_in_newest_chunk()
            for keys in late:
                for first in range(0, len(keys), max(step, 1)):
                    self._commit_again(keys.take(slice(first, first + max(step, 1))))
            session.generation.seal()

    def _commit_again(self, keys: Keys) -> None:
        """Commit the undamaged last rows of some keys again, as far as they are in chunks of this store's own."""
        names = list(self.store.fields)
        with self.store._session.generation.log.locked():  # no process commits a newer row meanwhile
            self.refresh()
            rows = self.find_last(keys)
            rows = rows[_are_own(self.store, rows)]
            rows = rows[~bad_rows(len(rows), *self.store._gatherer.read_rows(names, rows))]
            columns = self.store._gatherer.read_rows(names, rows)
            self.commit({name: stored_rows(column) for name, column in zip(names, columns, strict=True)})

    def _superseded(self) -> Iterator[tuple[Int64, Int64]]:
        """Rows in chunks of this store's own that are not the last ones of their keys, and these: int64 [n] each."""
        self.refresh()
        for first in range(0, self.store._snapshot.rows, _AT_ONCE):
            rows = _present_rows(self.store, first, first + _AT_ONCE)
            rows = rows[_are_own(self.store, rows)]
            last = self.find_last(read_keys(self.store._gatherer, self.key, rows)[0])
            older = (last >= 0) & (last != rows)
            if older.any():
                yield rows[older], last[older]

    def _differ(self, rows: Int64, others: Int64) -> bool:
        """Whether some rows have other values than others, bit for bit. Damaged rows do."""
        leaves = [name for name in self.store.fields if name != self.key]
        for name in leaves:
            one, other = (self.store._gatherer.read_rows([name], which)[0] for which in (rows, others))
            if one.bad is not None or other.bad is not None or not stored_rows(one).equals(stored_rows(other)):
                return True
        return False

    def delete(self, keys: Keys) -> None:
        """Commit a row without values for each of some keys. Lookups find no row of them then.

        Raises:
            NotSupportedError: rows have nothing but a key.
        """
        fields = {name: field for name, field in self.store.fields.items() if name != self.key}
        if not fields:
            raise NotSupportedError(f"the outputs in {self.store.path} have no values per sample to delete")
        self.extend(keys, {name: absent_rows(field, len(keys)) for name, field in fields.items()})
        self.flush()

    def clear(self) -> None:
        """Remove all committed rows, for all processes. The store must be held for editing."""
        self.index.forget_all()
        rewrite(self.store._session, self.store.fields, {}, progress=False, keep=_none)
        self.see_others()

    def catch_up(self) -> None:
        with self._lock:
            if self.index.generation != self.store._manifest.generation:
                self.index = self._open_index()  # the store was rewritten, maybe by another process
            index = self.index
        index.catch_up(self.store._snapshot.rows)

    def see_others(self) -> bool:
        """`refresh`; returns whether there were other rows, or rows that the index did not cover."""
        covered, before = self.index.covered, self.state
        self.store.refresh()
        rows = self.store._snapshot.rows
        if covered > rows and self.store.mode == "a":
            self.catch_up()
            self.index.start_over(rows)  # a writer whose disk failed removed rows that the index has
        self.catch_up()
        return self.state != before

    def is_gone(self) -> bool:
        """Whether the folder does not have this store any more: somebody has removed it, and perhaps made another one
        in its place. Nothing can be looked up or committed then."""
        path, seen = self.store.path, None
        try:
            status = os.stat(path / NAME)  # noqa: PTH116 - in each lookup that misses
            seen = status.st_ino, status.st_mtime_ns
            if seen == self._seen:
                return False
            is_gone = read_manifest(path, self.store._files).id != self.store._manifest.id
        except (NotAStore, FileNotFoundError, NotADirectoryError):
            is_gone = not holds_store(path)  # the copy of that file may be there
        except (WarmstoreError, OSError):  # what is open can be read all the same
            return False
        if is_gone:
            _log.warning("%s was removed while it was open: what it had is computed anew", path)
        else:
            self._seen = seen
        return is_gone

    @property
    def state(self) -> tuple[int, int, int, int]:
        """A value that changes when lookups may find more: the generation of the rows, which may have as many as the
        one before, and that of the index, and how many rows each has."""
        generation, index = self.store._session.generation, self.index
        return generation.manifest.generation, generation.snapshot.rows, index.generation, index.covered

    def extend(self, keys: Keys, rows: dict[str, EncodedRows]) -> None:
        """Add rows, which are pending until `flush`."""
        self.store._extend_rows({self.key: encode(self.key, self.store.fields[self.key], keys.halves), **rows})

    def flush(self) -> None:
        """Commit pending rows and add them to the index."""
        store = self.store
        store.flush()
        self.catch_up()
        if store._session.writing.room is not None:
            if self.index.is_crowded(store._snapshot.length):
                self.index.start_over(store._snapshot.rows)
            store.refresh()  # the index may have grown, and chunks been evicted for it

    def close(self, *, seal: bool = True) -> None:
        self.index.sync()
        self.index.close()
        super().close(seal=seal)
        self._lease.release()

    def abandon(self) -> None:
        self.index.close()
        super().abandon()
        self._lease.release()

    def after_fork(self) -> None:
        """In a forked child: open the store anew; pending rows and locks stay with the parent."""
        self._lock = threading.Lock()
        self.store._after_fork()
        self.index.after_fork()


def read_keys(gatherer: Gatherer, field: str, rows: Int64) -> tuple[Keys, Bools | None]:
    """The keys in a field of some rows; and which of them are damaged, bool [n], or None."""
    (gathered,) = gatherer.read_rows([field], rows)
    return keys_of(gathered), gathered.bad


def _present_keys(store: LocalStore, field: str, first: int, last: int) -> tuple[Keys, Int64]:
    rows = _present_rows(store, first, last)
    return read_keys(store._gatherer, field, rows)[0], rows


def _present_rows(store: LocalStore, first: int, last: int) -> Int64:
    """The committed rows in [first, last) that were not evicted: int64 [n]."""
    snapshot = store._gatherer.snapshot
    last = min(last, snapshot.rows)  # another thread may have followed a rebalance, and there are fewer rows
    rows = np.arange(first, last, dtype=np.int64)
    return rows if snapshot.gaps is None else rows[~snapshot.gaps.holds(rows)]


def _confirmed(store: LocalStore, field: str, keys: Keys, rows: Int64) -> Int64:
    """The proposed rows, int64 [n], that have these keys; `MISSING` or `DAMAGED` for the others."""
    gatherer = store._gatherer
    gaps = gatherer.snapshot.gaps
    exists = (rows >= 0) & (rows < gatherer.snapshot.rows)
    proposed = np.flatnonzero(exists if gaps is None else exists & ~gaps.holds(rows))
    found = np.full(len(keys), MISSING, np.int64)
    if len(proposed):
        stored, bad = read_keys(gatherer, field, rows[proposed])
        same = (stored.halves == keys.halves[proposed]).all(axis=1)
        found[proposed] = np.where(same, rows[proposed], MISSING)
        if bad is not None:
            found[proposed[bad]] = DAMAGED
    return found


def _are_deleted(store: LocalStore, field: str, rows: Int64) -> Bools:
    """Which rows, of those that may also be `MISSING` or `DAMAGED`, say that their key was deleted: bool [n]."""
    gatherer = store._gatherer
    deleted = np.zeros(len(rows), bool)
    if gatherer.snapshot.absent:
        at = np.flatnonzero((rows >= 0) & (rows < gatherer.snapshot.rows))
        leaf = next((name for name in store.fields if name != field), None)
        if len(at) and leaf is not None:
            (column,) = gatherer.read_rows([leaf], rows[at])
            if column.absent is not None:
                deleted[at] = column.absent
    return deleted


def _own_first(
    store: LocalStore, field: str, keys: Keys, rows: Int64, lookup: Callable[[Keys], Int64]
) -> Iterator[tuple[Keys, Int64]]:
    """Rows in chunks of a store's own, then those adopted rows whose keys have no value in such a row."""
    if not store._session.generation.batches.adopted:
        yield keys, rows
        return
    own = _are_own(store, rows)
    yield keys.take(own), rows[own]
    keys, rows = keys.take(~own), rows[~own]
    known = _confirmed(store, field, keys, lookup(keys))
    at = np.flatnonzero(_are_own(store, known))
    hidden = np.zeros(len(rows), bool)
    hidden[at] = (known[at] > rows[at]) | ~_are_deleted(store, field, known[at])
    yield keys.take(~hidden), rows[~hidden]


def _are_own(store: LocalStore, rows: Int64) -> Bools:
    """Which rows, of those that may also be `MISSING` or `DAMAGED`, are in chunks of a store's own: bool [n]."""
    own: Bools = (rows >= 0) & (rows < store._gatherer.snapshot.rows)
    own[own] = ~np.isin(_chunks_of(store, rows[own]), list(store._session.generation.batches.adopted))
    return own


def _chunks_of(store: LocalStore, rows: Int64) -> Int64:
    snapshot = store._gatherer.snapshot
    return snapshot.chunk[snapshot.batch_of(rows)]


def without_absent(gathered: GatheredColumn) -> GatheredColumn:
    """The same rows, where those without a value count as bad."""
    if gathered.absent is None:
        return gathered
    return replace(gathered, absent=None, bad=bad_rows(len(gathered.absent), gathered) | gathered.absent)


def _none(rows: Int64) -> Bools:
    return np.zeros(len(rows), bool)


def keys_of(gathered: GatheredColumn) -> Keys:
    """The keys in rows of a key field."""
    assert gathered.data is not None
    return Keys.of_halves(gathered.data.reshape(-1).view(np.uint64).reshape(-1, 2))


def bad_rows(count: int, *columns: GatheredColumn) -> Bools:
    """Which rows are damaged in any of some columns: bool [count]."""
    bad = np.zeros(count, bool)
    for column in columns:
        if column.bad is not None:
            bad |= column.bad
    return bad


def despite_removal(use: Callable[_Arguments, _Found]) -> Callable[_Arguments, _Found]:
    """Decorates a method that uses a keyed store, and leaves one whose folder was removed: it is called again where the
    folder is removed meanwhile."""

    @functools.wraps(use)
    def using(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Found:
        for _ in range(_TRIES):
            try:
                return use(*args, **kwargs)
            except (FileNotFoundError, StoreExists):
                pass
            except WriteFailed as error:
                if error.errno not in (errno.ENOENT, errno.ESTALE):
                    raise
            time.sleep(0.01)  # the removal may not be complete
        return use(*args, **kwargs)

    return using
