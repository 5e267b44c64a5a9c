"""Reads unchecked bytes with `pread`, so that a truncated file or a bad sector gives missing bytes and no SIGBUS.

Bytes in the page cache are copied at once; others are read from the disk by many threads.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence

import numpy as np

from warmstore.storage.array_types import Bools, Bytes, Int64
from warmstore.storage.files import Files
from warmstore.storage.locks import renewed_in_children
from warmstore.storage.memory.buffer_pool import take

_MOST_OPEN = 128
"""The most files that are kept open."""
_WAITING = 32
"""The most threads that wait for a disk, and so the most requests at once."""

_RUN = 1 << 20
"""The most bytes of adjacent spans that are read at once; a power of two."""


class UncheckedReader:
    """Reads from files in slots of `slot` bytes each, `paths` by slot. Safe to use from several threads."""

    _lock: threading.Lock

    def __init__(self, files: Files, slot: int, paths: dict[int, str]) -> None:
        self._files = files
        self._slot = slot
        self._paths = paths
        self._open: dict[int, int] = {}
        renewed_in_children(self, "_lock")
        self._reads: set[object] = set()  # that use the open files now
        self._is_released = False
        self.mapping: memoryview | None = None  # of all slots, for files that were unlinked
        self._finalizer = weakref.finalize(self, _close_all, files, self._open)
        self._finalizer.atexit = False

    def release(self) -> None:
        """Close the files, once no thread reads from them. Later reads open and close them each time."""
        self._is_released = True
        if not self._reads:
            self._finalizer()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[dict[int, int]]:
        """Yield the open files by slot, which stay open in this context: a closed descriptor may become another file's.

        Without a lock, which another thread could hold when this process forks.
        """
        read = object()
        self._reads.add(read)
        try:
            yield {} if self._is_released else self._open
        finally:
            self._reads.discard(read)
            if self._is_released and not self._reads:
                self._finalizer()

    def rows(self, addresses: Int64, width: int) -> tuple[Bytes, Bools | None]:
        """`width` bytes from each address, uint8 [n, width]; and the missing rows, bool [n], or None without any."""
        out = take(len(addresses) * width).reshape(len(addresses), width)
        return out, self._read(addresses, np.full(len(addresses), width, np.int64), out)

    def columns(self, addresses: Sequence[Int64], widths: Sequence[int]) -> tuple[list[Bytes], Bools | None]:
        """`rows` of several columns in one call: uint8 [n, width] each; and the rows that are missing in any column."""
        count = len(addresses[0])
        lengths = np.repeat(np.array(widths, np.int64), count)
        out = take(int(lengths.sum()))
        missing = self._read(np.concatenate(addresses), lengths, out)
        ends = np.cumsum(np.array(widths) * count).tolist()
        columns = [
            out[end - count * width : end].reshape(count, width) for end, width in zip(ends, widths, strict=True)
        ]
        return columns, None if missing is None else np.asarray(missing.reshape(len(widths), count).any(axis=0))

    def spans(self, starts: Int64, lengths: Int64) -> tuple[list[memoryview], Bools | None]:
        """Spans of different lengths, one read-only view each; and the missing ones, bool [n], or None without any."""
        out, missing = self.packed(starts, lengths)
        ends, view = np.cumsum(lengths), out.data.toreadonly()
        return [view[first:last] for first, last in zip((ends - lengths).tolist(), ends.tolist(), strict=True)], missing

    def packed(self, starts: Int64, lengths: Int64) -> tuple[Bytes, Bools | None]:
        """Concatenated spans, uint8; and the missing ones, bool [n], or None without any."""
        out = take(int(lengths.sum()))
        return out, self._read(starts, lengths, out)

    def span(self, start: int, length: int) -> memoryview | None:
        """One span, read-only; None if it is incomplete, or longer than a file may be."""
        if length > self._slot:
            return None
        (found,), missing = self.spans(np.array([start]), np.array([length]))
        return found if missing is None else None

    def _read(self, starts: Int64, lengths: Int64, out: Bytes) -> Bools | None:
        """Read spans into `out`. Returns the missing ones, or None without any.

        Adjacent spans, such as the rows of a range, are read together.
        """
        heads = _heads(starts, lengths, self._slot)
        if heads is not None and self._read_all(starts[heads], np.add.reduceat(lengths, heads), out) is None:
            return None
        return self._read_all(starts, lengths, out)

    def _read_all(self, starts: Int64, lengths: Int64, out: Bytes) -> Bools | None:
        slots = starts // self._slot
        offsets = starts - slots * self._slot
        files = np.full(len(starts), -1, np.int32)
        with self._reading() as known, contextlib.ExitStack() as briefly_open:
            for slot in np.unique(slots).tolist():
                descriptor = known.get(slot)
                if descriptor is None:
                    descriptor = self._opened(slot, briefly_open)
                files[slots == slot] = descriptor
            missing = np.zeros(len(starts), np.uint8)
            if not self._files.read_rows(files, offsets, np.ascontiguousarray(lengths), out, missing, _WAITING):
                return None
        if self.mapping is not None:  # evicted or merged files are unlinked, but their mapping is intact
            ends = np.cumsum(lengths)
            for at in np.flatnonzero(files == -1).tolist():
                start, end, length = int(starts[at]), int(ends[at]), int(lengths[at])
                if int(slots[at]) in self._paths:
                    out.reshape(-1)[end - length : end] = np.frombuffer(self.mapping[start : start + length], np.uint8)
                    missing[at] = 0
        return missing.view(bool) if missing.any() else None

    def _opened(self, slot: int, briefly_open: contextlib.ExitStack) -> int:
        """The descriptor of a slot's file, kept open or closed with `briefly_open`; -1 for a missing file."""
        try:
            descriptor = self._files.open(self._paths[slot])
        except (KeyError, OSError):
            return -1
        with self._lock:
            if not self._is_released and len(self._open) < _MOST_OPEN and slot not in self._open:
                self._open[slot] = descriptor
                return descriptor
        briefly_open.callback(self._files.close, descriptor)
        return descriptor


def _heads(starts: Int64, lengths: Int64, slot: int) -> Int64 | None:
    """The index of the first span of each run of adjacent spans; None if too few spans are adjacent.

    Long runs are cut into pieces, which several threads can read.
    """
    follows = starts[1:] == (starts + lengths)[:-1]
    if not len(starts) or 2 * np.count_nonzero(follows) < len(starts):
        return None
    place = starts[1:] // min(slot, _RUN)
    follows &= place == np.append(starts[0] // min(slot, _RUN), place[:-1])
    return np.flatnonzero(np.append(True, ~follows))


def _close_all(files: Files, descriptors: dict[int, int]) -> None:
    while descriptors:
        with contextlib.suppress(OSError):  # they were only read, and the others are to be closed too
            files.close(descriptors.popitem()[1])
