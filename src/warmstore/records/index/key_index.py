"""The key index of a store: the row of each key, in memory-mapped files that all processes of a host share.

It has two tables: small non-negative ints index an array directly, all other keys use a hash table. The index can be
deleted at any time and is rebuilt from the key column. It only proposes rows: the reader of a row compares the key that
is stored with it, so a damaged index causes no wrong values.

A process that finds rows that the index does not cover adds them, under the index's lock. Lookups take no lock.
"""

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from warmstore.records.index.key_table import BUCKET, PARTITIONS, KeyTable
from warmstore.records.index.sample_keys import Keys
from warmstore.records.read.verified_column import Values, VerifiedColumn
from warmstore.storage.array_types import Int64
from warmstore.storage.boot import boot_id
from warmstore.storage.files import HUGE_PAGE, Files, file_lock, is_read_only
from warmstore.storage.memory.mmap import GrowableMmap, OutgrownMapping
from warmstore.storage.quota import Reserve
from warmstore.storage.temporary_folder import TemporaryFolder, host_name

_log = logging.getLogger("warmstore")


HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("store", "S32"),
        ("generation", "<i8"),
        ("token", "<i8"),  # the direct table's file has the same
        ("boot", "S40"),  # id of the machine's last start; 40 bytes keep the numbers after it aligned
        ("covered", "<i8"),  # rows [0, covered) are in the index
        ("synced", "<i8"),  # rows that were on the disk when the index was last closed
        ("direct", "<i8"),  # ints below this number are in the direct table
        ("buckets", "<i8"),  # of the hash table; the file may be larger
        ("hash", "<u8"),  # xxh3-64 of everything before
    ]
)
_MAGIC = b"WSKEYS4"
_PAGE = 4096
_DIRECTORY = _PAGE
_COUNTS = _DIRECTORY + 8 * PARTITIONS
_BUCKETS = _COUNTS + 8 * PARTITIONS
_BUCKET_BYTES = 8 * BUCKET
_FIRST_BUCKETS = 64
_ALWAYS_DIRECT = 1 << 21
"""The direct table holds all ints below this number."""
_DIRECT_SPARSITY = 8
"""The direct table holds larger ints below this many times the number of rows. So shuffled ids of a data set count as
dense before all of them have come. It takes at most 64 bytes per row, mostly unwritten."""
_MOST_PER_ROW = 64
"""Bytes of either table for each row, at most, about."""
_BLOCK = 1 << 18
_STEP = 4 * HUGE_PAGE  # bytes by which larger files grow

ReadKeys = Callable[[int, int], tuple[Keys, Int64]]
Ranked = Callable[[Keys, Int64, Callable[[Keys], Int64]], Iterable[tuple[Keys, Int64]]]


class KeyIndex:
    """The index of one store on this host.

    Args:
        folder: the folder of the index's files: the store's folder, or another one if that cannot be written.
        store, generation: the owner of the index; an index of another owner is rebuilt.
        read_keys: the keys and the numbers of those committed rows in [first, last) that exist.
        write: False never writes to the folder; an incomplete index is then rebuilt in a private folder.
        room: reserves disk space before the files grow, and while keys are added.
        largest: the most bytes of the direct table.
        ranked: the keys and rows to add of those that were read, in parts: of equal keys the last counts. It is given
            `lookup`, which knows the parts before. None adds all rows in their order.
    """

    def __init__(
        self,
        folder: Path,
        store: str,
        generation: int,
        read_keys: ReadKeys,
        files: Files,
        *,
        write: bool = True,
        room: Reserve | None = None,
        largest: int | None = None,
        ranked: Ranked | None = None,
    ) -> None:
        self._place_in(folder)
        self.generation = generation
        self._room = room
        self._largest = largest
        self._identity = (store.encode(), generation)
        self._read_keys = read_keys
        self._ranked = ranked
        self._files = files
        self._thread_lock = threading.Lock()
        self._write = write
        self._private: TemporaryFolder | None = None
        self._opened: _Opened | None = None

    def _place_in(self, folder: Path) -> None:
        host = host_name()
        self.path = folder / f"keys-{host}.index"
        self._direct_path = folder / f"keys-{host}.direct"
        self._lock_path = folder / f"keys-{host}.lock"

    def lookup(self, keys: Keys) -> Int64:
        """The row of each key, int64 [n], or -1. A row may be wrong or missing; compare its key."""
        return self._find(keys, 0)[0]

    def lookup_all(self, keys: Keys, limit: int) -> Int64 | None:
        """`lookup` if every key has a row below `limit`, else None. Most lookups in training are of this kind."""
        rows, are_all = self._find(keys, limit)
        return rows if are_all and len(rows) else None

    def fetch(self, keys: Keys, columns: Sequence[VerifiedColumn]) -> list[Values] | None:
        """See `KeyTable.fetch`."""
        opened = self._opened
        return None if opened is None else opened.table.fetch(keys, opened.rows, opened.direct_count, columns)

    def _find(self, keys: Keys, limit: int) -> tuple[Int64, bool]:
        opened = self._opened
        if opened is None:
            return np.full(len(keys), -1, np.int64), False
        return opened.table.lookup(keys, limit, opened.rows, opened.direct_count)

    @property
    def covered(self) -> int:
        """Rows [0, covered) are in the index."""
        opened = self._opened
        return int(opened.header["covered"][0]) if opened is not None else 0

    @property
    def nbytes(self) -> int:
        """Bytes the index takes on the disk."""
        return sum(path.stat().st_size for path in (self.path, self._direct_path) if path.exists())

    def catch_up(self, rows: int) -> None:
        """Cover all of the store's `rows` committed rows.

        Raises:
            OSError: the index cannot be written. It covers the same rows as before.
        """
        if self._is_current() and self.covered >= rows:
            return
        if not self._write:
            self._catch_up_privately(rows)
            return
        try:
            with self._having_room(0), self._thread_lock, self._locked():
                is_writable = (
                    self._opened is not None and self._opened.table_file.write
                )  # else it may not have been before
                if not (is_writable and self._is_current()) and not self._open():
                    self._rebuild(rows)
                self._cover(rows)
        except OSError as error:
            if not is_read_only(error):
                raise
            self._catch_up_privately(rows)

    def _catch_up_privately(self, rows: int) -> None:
        # The folder is not written to: use the shared index while it covers everything, else a private one.
        with self._thread_lock:
            if self._private is None:
                if self._open(write=False) and self.covered >= rows:
                    return
                self._opened = None
                private = TemporaryFolder("index")
                self._place_in(private.path)
                self._private = private
            if self._opened is None:  # also after a build that failed or was interrupted
                self._rebuild(rows)
            self._cover(rows)

    def start_over(self, rows: int) -> None:
        """Rebuild the index: it has rows that the store lacks, or mostly keys of evicted rows."""
        with self._having_room(0), self._thread_lock, self._locked():
            self._rebuild(rows)

    def forget_all(self) -> None:
        """Let all lookups of all processes that use these files miss, until rows are added: the rows are removed."""
        with self._thread_lock, self._locked():
            if self._opened is not None and self._opened.table_file.write:
                self._opened.table.forget_all()
                self._write_header(direct=0)

    def sync(self) -> None:
        """Write the index to the disk, so that it survives a power failure."""
        opened = self._opened
        if opened is None or not opened.table_file.write or self._private is not None:
            return
        with self._thread_lock, self._locked():
            if self._is_current() and int(opened.header["synced"][0]) != self.covered:
                opened.direct_file.sync()
                opened.table_file.sync()
                self._write_header(synced=self.covered)
                opened.table_file.sync()

    def is_crowded(self, rows: int) -> bool:
        """Whether the hash table has more than twice as many keys as `rows`: keys of evicted rows stay in it."""
        opened = self._opened
        return opened is not None and opened.table.keys > 2 * rows + PARTITIONS

    def close(self) -> None:
        """Release the files. Later lookups find nothing."""
        self._opened = None
        private, self._private = self._private, None
        if private is not None:
            private.remove()

    def after_fork(self) -> None:
        """For a forked child: another thread of the parent may have held the lock."""
        self._thread_lock = threading.Lock()

    def _cover(self, rows: int) -> None:
        """Add rows, and map the files again where they outgrow the address space that they were given."""
        try:
            self._add(rows)
        except OutgrownMapping:
            if not self._open():
                self._rebuild(rows)
            self._add(rows)

    def _add(self, rows: int) -> None:
        for first in range(self.covered, rows, _BLOCK):
            last = min(first + _BLOCK, rows)
            keys, values = self._read_keys(first, last)
            parts = [(keys, values)] if self._ranked is None else self._ranked(keys, values, self.lookup)
            for keys, values in parts:
                self._insert(keys, values, rows)
            self._write_header(covered=last)

    def _insert(self, keys: Keys, values: Int64, rows: int) -> None:
        opened = self._opened
        assert opened is not None
        direct = self._direct_room(keys, rows)
        numbers = keys.halves[:, 0]
        near = keys.below(direct)
        # Of equal numbers NumPy keeps the last, which is the newest row.
        if near.all():
            opened.rows[numbers] = values + 1
        elif not near.any():
            opened.table.insert(keys, values, self._allocate)
        else:
            opened.rows[numbers[near]] = values[near] + 1
            far = np.flatnonzero(~near)
            opened.table.insert(keys.take(far), values[far], self._allocate)

    def _direct_room(self, keys: Keys, rows: int) -> int:
        """Enlarge the direct table for keys that are dense enough. Returns how many ints it holds."""
        opened = self._opened
        assert opened is not None
        direct = int(opened.header["direct"][0])
        numbers = keys.halves[:, 0]
        if not keys.small or not len(numbers):
            return direct
        limit = _DIRECT_SPARSITY * rows
        if limit < _ALWAYS_DIRECT or 4 * int((numbers < limit).sum()) < len(numbers):
            limit = _ALWAYS_DIRECT  # what lies beyond is not dense
        if self._largest is not None:
            limit = min(limit, self._largest // 8)
        near = numbers[numbers < limit]
        if not len(near) or int(near.max()) < direct:
            return direct
        least = int(near.max()) + 1
        in_order = least - direct <= 2 * len(near)
        size = _PAGE + 8 * max(2 * direct, least, 1 << 13)
        if in_order and size > _STEP:  # the whole table will be written
            size = _stepped(_PAGE + 8 * least)
        size = min(size, _PAGE + 8 * limit)
        direct = (size - _PAGE) // 8
        with self._having_room(size - opened.direct_file.size):
            opened.direct_file.allocate(size, used=in_order)
        self._write_header(direct=direct)
        return direct

    # Files

    def _is_current(self) -> bool:
        """Whether the mapped file is still the one at the index's path, and mapped as far as it goes."""
        opened = self._opened
        return (
            opened is not None
            and opened.table_file.is_at(self.path)
            and not (opened.table_file.has_outgrown or opened.direct_file.has_outgrown)
        )

    def _open(self, *, write: bool = True) -> bool:
        """Map the files. False if they are missing, damaged or of another store, and must be rebuilt."""
        self._opened = None
        try:
            table = GrowableMmap(self.path, self._files, minimum=_BUCKETS + _BUCKET_BYTES, write=write)
            direct = GrowableMmap(self._direct_path, self._files, minimum=_PAGE, write=write)
        except (FileNotFoundError, ValueError):
            return False
        opened = _Opened.over(table, direct)
        header = opened.header[0]
        same_boot = bytes(header["boot"]) == boot_id()
        good = (
            bytes(header["magic"]) == _MAGIC
            and int(header["hash"]) == _hash(opened.header)
            and (bytes(header["store"]), int(header["generation"])) == self._identity
            and int(header["token"]) == int(direct.memory[:8].view(np.int64)[0])
            and 0 <= int(header["direct"]) <= (direct.size - _PAGE) // 8
            and int(header["covered"]) >= 0
            and _FIRST_BUCKETS <= int(header["buckets"]) <= (table.size - _BUCKETS) // _BUCKET_BYTES
            and (same_boot or int(header["synced"]) == int(header["covered"]))
            and opened.table.is_sound(int(header["covered"]))
        )
        if good:
            self._opened = opened
            if write and not same_boot:
                self._write_header(boot=boot_id())
        return good

    def _rebuild(self, rows: int) -> None:
        if rows:
            _log.info("%s: building the key index of %d rows", self.path, rows)
        self._opened = None
        token = secrets.randbits(62)
        drafts = [path.with_name(f"{path.name}.{token:x}.tmp") for path in (self.path, self._direct_path)]
        if self._room is not None:  # no room for two: remove the old files, and drafts of dead processes
            for path in (self.path, self._direct_path):
                for old in (path, *path.parent.glob(f"{path.name}.*.tmp")):
                    self._files.remove(old)
        try:
            first = _BUCKETS + _FIRST_BUCKETS * _BUCKET_BYTES
            most = first + _MOST_PER_ROW * rows
            with self._having_room(first + _PAGE):
                table = GrowableMmap(drafts[0], self._files, create=first, room=most)
                direct = GrowableMmap(drafts[1], self._files, create=_PAGE, room=most)
            direct.memory[:8].view(np.int64)[0] = token
            self._opened = _Opened.over(table, direct)
            store, generation = self._identity
            fixed = {"magic": _MAGIC, "store": store, "generation": generation, "token": token, "boot": boot_id()}
            self._write_header(**fixed, buckets=_FIRST_BUCKETS)
            self._add(rows)
            self._files.rename(drafts[1], self._direct_path)
            self._files.rename(drafts[0], self.path)
        except BaseException:
            self._opened = None
            for draft in drafts:
                self._files.remove(draft)
            raise

    def _write_header(self, **values: Any) -> None:
        assert self._opened is not None
        header = self._opened.header.copy()
        for name, value in values.items():
            header[name] = value
        header["hash"] = _hash(header)
        self._opened.header[:] = header

    def _allocate(self, buckets: int) -> None:
        """Enlarge the hash table to `buckets` buckets."""
        opened = self._opened
        assert opened is not None
        size = _BUCKETS + buckets * _BUCKET_BYTES
        before = opened.table_file.size
        if size > before:
            size = _stepped(size) if size > _STEP else size
            with self._having_room(size - before):
                opened.table_file.allocate(size, used=True)
        self._write_header(buckets=buckets)

    def _having_room(self, size: int) -> AbstractContextManager[object]:
        return nullcontext() if self._room is None or self._private is not None else self._room(size)

    def _locked(self) -> AbstractContextManager[bool]:
        return file_lock(self._lock_path, self._files, briefly=True)


@dataclass(frozen=True)
class _Opened:
    """Both mapped files. They are replaced together, so that a lookup in another thread never mixes two indices."""

    table_file: GrowableMmap
    direct_file: GrowableMmap
    header: Any
    direct: Int64  # [1], the header's
    rows: Int64  # by small int: the row that holds it, plus one
    table: KeyTable

    @property
    def direct_count(self) -> int:
        """How many of `rows` are valid. Another process with more address space may have written more."""
        return min(int(self.direct.item()), len(self.rows))

    @classmethod
    def over(cls, table: GrowableMmap, direct: GrowableMmap) -> "_Opened":
        memory = table.memory
        whole = (len(memory) - _BUCKETS) // _BUCKET_BYTES * _BUCKET_BYTES
        header = memory[: HEADER.itemsize].view(HEADER)
        return cls(
            table,
            direct,
            header,
            header["direct"],
            direct.memory[_PAGE:].view(np.int64),
            KeyTable(
                memory[_DIRECTORY:_COUNTS].view(np.int64),
                memory[_COUNTS:_BUCKETS].view(np.int64),
                memory[_BUCKETS : _BUCKETS + whole].view(np.uint64),
                lambda: int(header["buckets"][0]),
            ),
        )


def _stepped(size: int) -> int:
    """The size to which a file grows that needs at least `size` bytes."""
    return -(-size // _STEP) * _STEP


def _hash(header: Any) -> int:
    return xxhash.xxh3_64_intdigest(header.tobytes()[: -HEADER["hash"].itemsize])
