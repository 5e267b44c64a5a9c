"""The log of a store: 64-byte entries that say what is committed, and whose order is the order of the rows.

A row exists once the log says so. An entry is written in one piece under the log's lock; a short or all-zero last
entry is the tail of a write that never finished and is cut off by the next writer, any other bad entry is damage.
docs/format.md draws the entry.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from warmstore.errors import Damaged, NotAStore
from warmstore.records.files import Files, write_all, write_failed

ENTRY = np.dtype(
    [
        ("chunk", "<u4"),  # number of the chunk's file
        ("rows", "<u4"),
        ("offset", "<u8"),  # where the batch's header starts in the chunk
        ("header", "<u4"),  # bytes of header: the Arrow message with its length prefix
        ("kind", "<u4"),
        ("body", "<u8"),  # bytes of body
        ("header_hash", "<u8"),  # xxh3-64
        ("body_hash", "<u8"),  # xxh3-64
        ("sequence", "<u8"),  # this entry's own number, so that none can vanish from the middle
        ("hash", "<u8"),  # xxh3-64 of the 56 bytes before, seeded
    ]
)
BATCH, SEALED, UPDATE, DELETE, CLOSED, EVICTED, ADOPTED = 1, 2, 3, 4, 5, 6, 7
KINDS = range(ADOPTED + 1)
NOWHERE = 0xFFFFFFFF
"""In place of a chunk's number: rows of an adopted chunk that were written anew, among others."""
_SIZE = ENTRY.itemsize
_ZEROS = bytes(_SIZE)

Entries = np.ndarray[Any, np.dtype[np.void]]


def new_entry(kind: int, chunk: int, **values: int) -> Entries:
    """One entry, complete but for its sequence and hash, which `Log.append` fills in."""
    entry: Entries = np.zeros(1, ENTRY)
    entry["kind"], entry["chunk"] = kind, chunk
    for name, value in values.items():
        entry[name] = value
    return entry


class GenerationClosed(Exception):
    """The log has ended: the store was rebalanced and goes on in a later generation."""


class Log:
    """One generation's log, opened for reading and, where the file allows it, for appending.

    Args:
        seed: of the entries' hashes, so that the log of another store or generation is not taken for this one's.
        superseded: whether the store has gone on to a later generation. A `closed` entry counts only then: without it
            the rebalance that wrote the entry died before its work was in place.
    """

    def __init__(
        self,
        path: Path,
        files: Files,
        seed: int,
        *,
        write: bool,
        superseded: Callable[[], bool] = lambda: False,
    ) -> None:
        self.path = path
        self._seed = seed
        self._files = files
        self._superseded = superseded
        try:
            self._descriptor = files.open(path, write=write)
        except FileNotFoundError:
            raise NotAStore(f"{path} is missing: the store's folder is incomplete; restore it from a copy") from None

    def close(self) -> None:
        self._files.close(self._descriptor)

    def ends_with(self, entries: int, last: bytes) -> bool:
        """Whether the log is still the one of so many entries whose last one is `last`."""
        return self._files.size(self._descriptor) // _SIZE == entries and self.continues(entries, last)

    def continues(self, entries: int, last: bytes) -> bool:
        """Whether the log begins with the one of so many entries; not so when a failing disk had one taken back."""
        return not entries or self._files.read(self._descriptor, _SIZE, (entries - 1) * _SIZE) == last

    def read(self, first: int) -> Entries:
        """The committed entries from number `first` on; an empty array when there are none.

        Raises:
            Damaged: an entry that is not a torn tail does not match its hash.
        """
        data = self._files.read(self._descriptor, self._files.size(self._descriptor) - first * _SIZE, first * _SIZE)
        entries = entries_of(data, self._seed, str(self.path), first)
        if len(entries) and entries["kind"][-1] == CLOSED and not self._superseded():
            entries = entries[:-1]
        return entries

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the log's lock; every append happens under it."""
        self._files.lock(self._descriptor)
        try:
            yield
        finally:
            self._files.unlock(self._descriptor)

    def append(self, entry: Entries) -> None:
        """Commit one entry: it is on the disk when this returns.

        Raises:
            WriteFailed: it is not; the log is as it was.
            GenerationClosed: the store goes on in another generation.
        """
        try:
            with self.locked():
                self.append_locked(entry)
        except OSError as error:
            raise write_failed(error, self.path) from error

    def append_all(self, entries: Entries) -> None:
        """Commit some entries, one behind the other; after a kill the first few of them may be there.

        Raises:
            WriteFailed: the disk refused.
            GenerationClosed: the store goes on in another generation.
        """
        try:
            with self.locked():
                for number in range(len(entries)):
                    self.append_locked(entries[number : number + 1].copy(), sync=number + 1 == len(entries))
        except OSError as error:
            raise write_failed(error, self.path) from error

    def extend_locked(self, whole: bytes) -> bool:
        """Go on as a longer log does, `whole`, by somebody who holds the lock; False where that is another log."""
        length = self._committed_length() * _SIZE
        if self._files.read(self._descriptor, length, 0) != whole[:length]:
            return False
        write_all(self._files, self._descriptor, [whole[length:]], length)
        self._files.sync(self._descriptor)
        return True

    def append_locked(self, entry: Entries, *, sync: bool = True) -> None:
        """`append` by somebody who holds the lock, and who may leave the syncing to the next.

        Raises:
            OSError: it is not on the disk; the log is as it was.
        """
        length = self._committed_length()
        entry["sequence"] = length
        entry["hash"] = xxhash.xxh3_64_intdigest(entry.tobytes()[:-8], self._seed)
        try:
            write_all(self._files, self._descriptor, [entry.tobytes()], length * _SIZE)
            if sync:
                self._files.sync(self._descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                self._files.truncate(self._descriptor, length * _SIZE)
            raise

    def holds(self, entry: Entries) -> bool:
        """Whether an entry given to `append` is committed: an interrupt may hide what became of it."""
        at = int(entry["sequence"][0]) * _SIZE
        return self._files.read(self._descriptor, _SIZE, at) == entry.tobytes()

    def _is_closed(self, number: int) -> bool:
        entry = np.frombuffer(self._files.read(self._descriptor, _SIZE, number * _SIZE), ENTRY)
        return bool(entry["kind"][0] == CLOSED)

    def _committed_length(self) -> int:
        # A torn tail is overwritten in place: cut back to whole entries, and over an all-zero last one.
        size = self._files.size(self._descriptor)
        length = size // _SIZE
        if length and self._files.read(self._descriptor, _SIZE, (length - 1) * _SIZE) == _ZEROS:
            length -= 1
        if length and self._is_closed(length - 1):
            if self._superseded():
                raise GenerationClosed(str(self.path))
            length -= 1  # a rebalance died before its new generation was in place
        if size != length * _SIZE:
            self._files.truncate(self._descriptor, length * _SIZE)
        return length


def entries_of(data: bytes, seed: int, where: str, first: int = 0) -> Entries:
    """The entries that the bytes of a log say, from number `first` on, without a torn tail.

    Raises:
        Damaged: an entry that is not a torn tail does not match its hash.
    """
    data = data[: len(data) // _SIZE * _SIZE]
    if data.endswith(_ZEROS):
        data = data[:-_SIZE]
    entries = np.frombuffer(data, ENTRY)
    digest = xxhash.xxh3_64_intdigest
    hashes = [digest(data[at : at + _SIZE - 8], seed) for at in range(0, len(data), _SIZE)]
    good = (entries["hash"] == np.array(hashes, np.uint64)) & (
        entries["sequence"] == np.arange(first, first + len(entries), dtype=np.uint64)
    )
    if not good.all():
        number = first + int(np.argmin(good))
        raise Damaged(
            f"{where}: entry {number} of {first + len(entries)} does not match its checksum. "
            "The log says which rows exist, so the store is not read past it; restore the file from a copy"
        )
    return entries


def create_log(folder: Path, files: Files, data: bytes = b"") -> None:
    """Make a log in a new folder, empty or with entries; on the disk when this returns."""
    descriptor = files.create(folder / "log")
    try:
        write_all(files, descriptor, [data], 0)
        files.sync(descriptor)
    finally:
        files.close(descriptor)
    files.sync_folder(folder)
