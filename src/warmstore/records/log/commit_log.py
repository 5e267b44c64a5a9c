"""The log of a store: 64-byte entries that commit rows. Their order is the order of the rows.

A row exists once the log has an entry for it. An entry is written in one piece under the log's lock. A short last
entry, and all-zero entries at the end of the last sector, are an unfinished write, which the next writer cuts off. Any
other bad entry is damage. Every entry is also in `log.copy`, where it is written first. A damaged log is read with the
help of its copy, and the next writer restores it. docs/format.md shows the layout of an entry.
"""

import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash

from warmstore.records.log.log_entries import (
    CLOSED,
    ENTRY,
    PER_SECTOR,
    SIZE,
    ZEROS,
    Entries,
    damaged,
    matches,
    numbered,
    searched,
    torn_from,
)
from warmstore.records.log.log_files import check_not_removed, open_log, whole_entries
from warmstore.storage.array_types import Bools
from warmstore.storage.files import COPY, Files, read_whole, write_all, write_failed
from warmstore.storage.interrupts import uninterrupted

_logger = logging.getLogger("warmstore")


class GenerationClosed(Exception):
    """The log has ended: the store was rebalanced and continues in a later generation."""


class Log:
    """One generation's log, opened for reading and, where the file allows it, for appending.

    Args:
        seed: of the entries' hashes. The log of another store or generation has another seed, and does not match.
        superseded: whether the store continues in a later generation. Only then does a `closed` entry count. Without a
            later generation the rebalance that wrote the entry died before it was complete.
        salvage: replace entries that are damaged in the log and in its copy by zeros, instead of raising. `lost` has
            their numbers.
    """

    def __init__(
        self,
        path: Path,
        files: Files,
        seed: int,
        *,
        write: bool,
        superseded: Callable[[], bool] = lambda: False,
        salvage: bool = False,
    ) -> None:
        self.path = path
        self.copy_path = path.with_name(path.name + COPY)
        self.lost: list[int] = []
        self._seed = seed
        self._files = files
        self._write = write
        self._superseded = superseded
        self._salvage = salvage
        self._copy: int | None = None
        self._refused: int | None = None  # entries from this number on are in the copy alone, and do not count
        self._stranded: tuple[int, bytes] | None = None  # refused entries that could not be cut off, and their number
        self.guard = threading.RLock()
        self._depth = 0
        # Damaged: entries, or all of them, were read from the copy.
        self._descriptor, self.is_damaged = open_log(path, self.copy_path, files, write=write)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        closing, self._descriptor, self._copy = (self._copy, self._descriptor), -1, -1  # a fork must not close them too
        with contextlib.ExitStack() as stack:  # both, also if one fails
            for descriptor in closing:
                if descriptor is not None and descriptor >= 0:
                    stack.callback(self._files.close, descriptor)

    def ends_with(self, entries: int, last: bytes) -> bool:
        """Whether the log is still the one of so many entries whose last one is `last`, and its copy has no more."""
        at = max(entries - 1, 0) * SIZE
        return self._files.read(self._descriptor, 2 * SIZE, at) == last and not self._copy_is_longer(entries * SIZE)

    def continues(self, entries: int, last: bytes) -> bool:
        """Whether the log begins with the one of so many entries; not so when a failing disk had one taken back."""
        return not entries or self._files.read(self._descriptor, SIZE, (entries - 1) * SIZE) == last

    def read(self, first: int) -> Entries:
        """The committed entries from number `first` on; an empty array when there are none. An entry that a dead
        writer has written to the copy alone is committed.

        Raises:
            Damaged: an entry that is not a torn tail does not match its hash, nor does its copy.
        """
        data, before = self._read_log(first), first * SIZE
        ends_early = self._copy_is_longer(before + len(data))
        if ends_early:
            with self._unless_written() as is_still:
                data = self._read_log(first)
                ends_early = is_still and self._copy_is_longer(before + len(data))
        good = matches(data, self._seed, first)
        if ends_early or not good.all():
            data = self._mended(data, self._read_copy(first), good, first)
        entries = np.frombuffer(data, ENTRY)
        if len(entries) and entries["kind"][-1] == CLOSED and not self._superseded():
            entries = entries[:-1]
        return entries

    @contextlib.contextmanager
    def _unless_written(self) -> Iterator[bool]:
        """Take the log's lock without waiting. False if a writer holds it, which may have written to the copy alone."""
        with self.guard, uninterrupted():
            held = not self._depth and self._files.lock(self._descriptor, wait=False)
            try:
                yield held or bool(self._depth)
            finally:
                if held:
                    self._files.unlock(self._descriptor)

    def _read_log(self, first: int) -> bytes:
        size = self._files.size(self._descriptor)
        try:
            if stranded := self._still_stranded():
                size = min(size, stranded[0] * SIZE)
            data = self._files.read(self._descriptor, max(size - first * SIZE, 0), first * SIZE)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # a bad sector: the copy is read
        data = data[: len(data) // SIZE * SIZE]
        return data[: torn_from(data, first) * SIZE] if data.endswith(ZEROS) else data

    def _copy_is_longer(self, length: int) -> bool:
        """Whether the copy has more entries: the log was cut off, or a writer died between its two writes."""
        if self._refused is not None:
            return False
        try:
            return len(self._files.read(self._opened_copy(), SIZE, length)) == SIZE
        except OSError:
            return False

    def _opened_copy(self) -> int:
        with self.guard:
            if self._copy is None:
                self._copy = self._files.open(self.copy_path, write=self._write)
            return self._copy

    def _read_copy(self, first: int) -> bytes:
        """The whole entries of the copy, from number `first` on."""
        try:
            data = read_whole(self._files, self.copy_path)[first * SIZE :]
        except OSError:
            return b""
        return data[: len(data) // SIZE * SIZE]

    def _mended(self, data: bytes, copy: bytes, good: Any, first: int) -> bytes:
        """The log's bytes, with bad entries replaced by those of the copy, and with the copy's additional entries."""
        good_copy = matches(copy, self._seed, first)
        whole = bytearray(data)
        for number in np.flatnonzero(~good).tolist():
            part = slice(number * SIZE, (number + 1) * SIZE)
            entry = copy[part] if number < len(good_copy) and good_copy[number] else None
            whole[part] = entry or searched(bytes(whole[part]), first + number, self._seed) or ZEROS
        count = len(data) // SIZE
        more = self._committed(copy[len(data) :], good_copy[count:])
        whole += more
        lost = [number for number in np.flatnonzero(~good).tolist() if not any(whole[number * SIZE :][:SIZE])]
        if lost and not self._salvage:
            raise damaged(str(self.path), first + lost[0], first + count)
        wrong = int(np.count_nonzero(~good)) + len(more) // SIZE
        # A writer that died leaves one entry in the copy alone.
        self.is_damaged |= bool(lost or wrong > (1 if good.all() else 0))
        if self.is_damaged and not lost:
            advice = "the log is restored" if self._write else "verify(repair=True) restores the log"
            _logger.warning(
                "%s: %d entries are damaged or missing and are read from its copy; %s", self.path, wrong, advice
            )
        if self._write and not lost and bytes(whole) != data:
            self._mend(bytes(whole), first)
        self.lost = [*(number for number in self.lost if number < first), *(first + number for number in lost)]
        return bytes(whole)

    def _committed(self, copy: bytes, good: Bools) -> bytes:
        """Of entries that only the copy has, those of the log; not the `closed` entry of a rebalance that died."""
        count = int(np.argmin(np.append(good, False)))
        entries = np.frombuffer(copy, ENTRY, count)
        if count and entries["kind"][-1] == CLOSED and not self._superseded():
            count -= 1
        return copy[: count * SIZE]

    def _mend(self, whole: bytes, first: int) -> None:
        """Restore the log from entry `first` on. Only wrong entries are written."""
        with self.locked():
            current = self._files.read(self._descriptor, len(whole), first * SIZE)
            for at in range(0, len(whole), SIZE):
                entry, old = whole[at : at + SIZE], current[at : at + SIZE]
                if len(old) < SIZE or not matches(old, self._seed, first + at // SIZE)[0]:
                    write_all(self._files, self._descriptor, [entry], first * SIZE + at)
            self._files.sync(self._descriptor)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the log's lock, under which every append happens. The thread that holds it may take it again."""
        with self.guard, self._files.before_log(self._descriptor), uninterrupted():
            if not self._depth:
                self._files.lock(self._descriptor)
            self._depth += 1
            try:
                if self._write and self._depth == 1:
                    self._remove_stranded()
                    self._roll_forward()
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    self._files.unlock(self._descriptor)

    def append(self, *entries: Entries) -> None:
        """Commit all or none of some entries. They are on the disk when this returns.

        Raises:
            WriteFailed: none are; the log is unchanged.
            GenerationClosed: the store continues in another generation.
        """
        try:
            with self.locked():
                self.append_locked(*entries)
        except OSError as error:
            raise write_failed(error, self.path) from error

    def append_all(self, entries: Entries) -> None:
        """Commit all or none of many entries, also if the process is killed or the power fails.

        The entries are written to the copy, and the first of them last: without it the others do not count. The log
        follows.

        Raises:
            WriteFailed: the disk refused; none are committed.
            GenerationClosed: the store continues in another generation.
        """
        try:
            with self.locked():
                length = self._committed_length()
                self._append_whole(numbered(entries, length, self._seed), length)
        except OSError as error:
            raise write_failed(error, self.path) from error

    def _append_whole(self, data: bytes, length: int) -> None:
        """Append the bytes of many entries after the first `length`; see `append_all`."""
        at = length * SIZE
        copy = self._copy_descriptor(at)
        try:
            parts = (copy, data[SIZE:], at + SIZE), (copy, data[:SIZE], at), (self._descriptor, data, at)
            for descriptor, part, offset in parts:
                if part:
                    write_all(self._files, descriptor, [part], offset)
                    self._files.sync(descriptor)
        except OSError:
            self._cut_off(length, data)
            self._cut_copy(length)
            raise

    def extend_locked(self, whole: bytes) -> bool:
        """Append all or none of the further entries of a longer log, for a caller with the lock. Returns False if
        `whole` is another log.

        Raises:
            OSError: the disk refused; none are committed.
        """
        length = self._committed_length()
        if self._files.read(self._descriptor, length * SIZE, 0) != whole[: length * SIZE]:
            return False
        self._append_whole(whole[length * SIZE :], length)
        return True

    def append_locked(self, *entries: Entries) -> None:
        """`append` for a caller that holds the lock.

        Raises:
            OSError: the entries are not on the disk; the log is unchanged.
        """
        length = self._committed_length()
        try:
            for number, entry in enumerate(entries):
                # Entries of one sector reach the disk together. Earlier sectors are synced before the last one.
                last = number + 1 == len(entries)
                self._append_locked(entry, length + number, sync=last or not (length + number + 1) % PER_SECTOR)
        except BaseException as error:
            if isinstance(error, OSError):
                self._cut_off(length, b"".join(entry.tobytes() for entry in entries[: number + 1]))
            else:  # an interrupt: what the log contains is committed
                length = self._files.size(self._descriptor) // SIZE
            self._cut_copy(length)
            raise

    def _cut_off(self, length: int, refused: bytes) -> None:
        """Remove entries that the disk refused. What it does not let go is removed under the next lock."""
        try:
            self._files.truncate(self._descriptor, length * SIZE)
        except OSError:
            self._stranded = length, refused

    def _still_stranded(self) -> tuple[int, bytes] | None:
        """The refused entries, unless the log has another writer's in their place: nothing of them had arrived."""
        if self._stranded is None:
            return None
        length, refused = self._stranded
        found = self._files.read(self._descriptor, SIZE, length * SIZE)
        return self._stranded if refused.startswith(found) else None

    def _cut_copy(self, length: int) -> None:
        """Remove refused entries from the copy. If the disk refuses that too, they do not count."""
        if self._copy is not None:
            try:
                self._files.truncate(self._copy, length * SIZE)
            except OSError:
                self._refused = length

    def _remove_stranded(self) -> None:
        """Remove refused entries, or their rows would be there twice: they are still pending.

        Raises:
            OSError: the disk refuses; or another writer has appended behind them, so that they are committed.
        """
        if stranded := self._still_stranded():
            length, refused = stranded
            if not refused.startswith(self._files.read(self._descriptor, len(refused) + 1, length * SIZE)):
                raise OSError(
                    errno.EIO,
                    "rows that the disk refused and could not remove are committed, as another writer has appended "
                    "behind them: open the store again, and add what it lacks",
                )
            self._files.truncate(self._descriptor, length * SIZE)
        self._stranded = None

    def _append_locked(self, entry: Entries, length: int | None = None, *, sync: bool) -> None:
        length = self._committed_length() if length is None else length
        entry["sequence"] = length
        entry["hash"] = xxhash.xxh3_64_intdigest(entry.tobytes()[:-8], self._seed)
        # The copy is written first, and not synced. So a writer that dies leaves no entry without a copy.
        write_all(self._files, self._copy_descriptor(length * SIZE), [entry.tobytes()], length * SIZE)
        write_all(self._files, self._descriptor, [entry.tobytes()], length * SIZE)
        if sync:
            self._files.sync(self._descriptor)

    def _copy_descriptor(self, length: int) -> int:
        """The copy, open for writing, with at least the first `length` bytes of the log."""
        try:
            copy = self._opened_copy()
        except FileNotFoundError:
            copy = self._copy = self._files.create(self.copy_path)
        size = self._files.size(copy)
        if size < length:
            first = size // SIZE * SIZE
            missing = self._files.read(self._descriptor, length - first, first)
            write_all(self._files, copy, [missing], first)
        return copy

    def prefix_hash(self) -> int:
        """The xxh3-64 of all committed entries, for a `merged` entry. The caller holds the lock."""
        length = self._committed_length() * SIZE
        return xxhash.xxh3_64_intdigest(self._files.read(self._descriptor, length, 0), self._seed)

    def mend_copy(self) -> bool:
        """Make the copy equal to the log. Returns whether it differed."""
        with self.locked():
            length = self._committed_length() * SIZE
            data = bytearray(self._files.read(self._descriptor, length, 0))
            copy = self._copy_descriptor(0)
            present = self._files.read(copy, length, 0)
            good = matches(bytes(present[: len(present) // SIZE * SIZE]), self._seed)
            # Entries that are damaged in the log alone are not copied.
            for number in np.flatnonzero(good & ~matches(bytes(data), self._seed)[: len(good)]).tolist():
                part = slice(number * SIZE, (number + 1) * SIZE)
                data[part] = present[part]
            self.is_damaged = False  # a log that is open for writing was restored when it was read
            if present == data:
                return False
            write_all(self._files, copy, [data], 0)
            self._files.sync(copy)
            return True

    def copy_differs(self) -> bool:
        """Whether the copy lacks entries of the log, or has damaged ones."""
        length = len(self._read_log(0)) // SIZE
        good = matches(self._read_copy(0), self._seed)[:length]
        return len(good) < length or not good.all()

    def holds(self, entry: Entries) -> bool:
        """Whether an entry that was given to `append` is committed. After an interrupt the caller cannot know."""
        at = int(entry["sequence"][0]) * SIZE
        if self._stranded is not None and at >= self._stranded[0] * SIZE:
            return False
        return self._files.read(self._descriptor, SIZE, at) == entry.tobytes()

    def _committed_length(self) -> int:
        # A torn tail is overwritten in place: cut back to whole entries, and over an all-zero last one.
        size = self._files.size(self._descriptor)
        length = whole_entries(self._files, self._descriptor, size)
        last = self._files.read(self._descriptor, SIZE, (length - 1) * SIZE) if length else ZEROS
        if np.frombuffer(last, ENTRY)["kind"][0] == CLOSED:
            if self._superseded():
                raise GenerationClosed(str(self.path))
            length -= 1  # a rebalance died before its new generation was complete
        check_not_removed(self.path, self._descriptor)
        if size != length * SIZE:
            self._files.truncate(self._descriptor, length * SIZE)
        return length

    def _roll_forward(self) -> None:
        """Append entries that a dead writer had written to the copy alone. Readers since then have seen them.

        What follows them in the copy is removed: further entries of the dead writer would count after the next one.
        """
        if self._refused is not None:
            with contextlib.suppress(OSError):
                # Not if another process has already appended the entry as that of a dead writer.
                if self._copy is not None and self._files.size(self._descriptor) <= self._refused * SIZE:
                    self._files.truncate(self._copy, self._refused * SIZE)
                self._refused = None
        whole = whole_entries(self._files, self._descriptor, self._files.size(self._descriptor))
        if not self._copy_is_longer(whole * SIZE):
            return
        try:
            length = self._committed_length()
        except GenerationClosed:
            return
        copy = self._read_copy(length)
        entries = self._committed(copy, matches(copy, self._seed, length))
        if entries:
            write_all(self._files, self._descriptor, [entries], length * SIZE)
            self._files.sync(self._descriptor)
        if len(entries) < len(copy):
            self._files.truncate(self._copy_descriptor(0), length * SIZE + len(entries))
