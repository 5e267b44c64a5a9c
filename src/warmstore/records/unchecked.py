"""Reading bytes that nobody has checked yet: by `pread`, so that a file cut short or a bad sector is no SIGBUS.

Neighbouring rows come in one request. What cannot be read is marked as missing.
"""

import threading
import weakref
from typing import Any

import numpy as np

from warmstore.records.files import Files

_CLOSE = 4096
"""Gaps of up to so many bytes are read along: a request costs more than they do."""
_PAGE = 4096
_MOST_OPEN = 128
"""Files that are kept open."""

Int64 = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


class UncheckedReader:
    """Reads from files in slots of `slot` bytes each, `paths` by slot. Safe to use from several threads."""

    def __init__(self, files: Files, slot: int, paths: dict[int, str]) -> None:
        self._files = files
        self._slot = slot
        self._paths = paths
        self._open: dict[int, int] = {}
        self._lock = threading.Lock()
        self.mapping: memoryview | None = None  # of all slots, for files whose names have gone
        self._finalizer = weakref.finalize(self, _close_all, files, self._open)
        self._finalizer.atexit = False

    def let_go(self) -> None:
        """Close the files. What is read later opens them again, each time."""
        self._finalizer()

    def rows(self, addresses: Int64, width: int) -> tuple[Bytes, Bools | None]:
        """`width` bytes from each address, uint8 [n, width]; and which rows are missing, bool [n], or None for none."""
        count = len(addresses)
        data, places, missing = self._read(addresses, np.full(count, width, np.int64))
        if not count or not width:
            return np.zeros((count, width), np.uint8), missing
        if len(data) == count * width and (count == 1 or bool((np.diff(places) == width).all())):
            return data.reshape(count, width), missing
        window = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
        return window[places].view(np.uint8).reshape(count, width), missing

    def spans(self, starts: Int64, lengths: Int64) -> tuple[list[memoryview], Bools | None]:
        """Spans of different lengths, one read-only view each; and which are missing, bool [n], or None for none."""
        data, places, missing = self._read(starts, lengths)
        view = data.data.toreadonly()
        ends = (places + lengths).tolist()
        return [view[first:last] for first, last in zip(places.tolist(), ends, strict=True)], missing

    def span(self, start: int, length: int) -> memoryview | None:
        """One span, read-only; None where not all of it is there."""
        target = memoryview(bytearray(length))
        holes = self._read_piece(start // self._slot, start % self._slot, target)
        return None if holes else target.toreadonly()

    def _read(self, starts: Int64, lengths: Int64) -> tuple[Bytes, Int64, Bools | None]:
        """The bytes, uint8 [m]; where in them each span begins, int64 [n]; and which are missing."""
        if not len(starts):
            return np.zeros(0, np.uint8), np.zeros(0, np.int64), None
        order = np.argsort(starts, kind="stable")
        first = starts[order]
        reach = np.maximum.accumulate(first + lengths[order])
        cuts = (first[1:] > reach[:-1] + _CLOSE) | (first[1:] // self._slot != first[:-1] // self._slot)
        begins = np.concatenate(([0], np.flatnonzero(cuts) + 1))
        piece_first, piece_last = first[begins], reach[np.append(begins[1:] - 1, len(first) - 1)]
        sizes = piece_last - piece_first
        ends = np.cumsum(sizes)
        data = np.empty(int(ends[-1]), np.uint8)
        view = data.data
        holes: list[tuple[int, int]] = []  # bytes of `data` that could not be read: first, last
        opened, read_into, slot_size = self._open, self._files.read_into, self._slot
        for start, size, end in zip(piece_first.tolist(), sizes.tolist(), ends.tolist(), strict=True):
            slot, offset = divmod(start, slot_size)
            target = view[end - size : end]
            try:  # a request a row: what costs a microsecond here is the cost of a first epoch
                if read_into(opened[slot], target, offset) == size:
                    continue
            except (KeyError, OSError):
                pass
            bad = self._read_piece(slot, offset, target)
            holes += [(end - size + hole_first, end - size + hole_last) for hole_first, hole_last in bad]
        piece = np.zeros(len(first), np.int64)
        piece[begins[1:]] = 1
        piece = np.cumsum(piece)
        places = np.empty(len(first), np.int64)
        places[order] = (ends - sizes)[piece] + first - piece_first[piece]
        if not holes:
            return data, places, None
        missing = np.zeros(len(first), bool)
        for hole_first, hole_last in holes:
            data[hole_first:hole_last] = 0
            missing |= (places < hole_last) & (places + lengths > hole_first)
        return data, places, missing if missing.any() else None

    def _read_piece(self, slot: int, offset: int, target: memoryview) -> list[tuple[int, int]]:
        """Fill `target` from a file; returns the parts of it that could not be read: first and last byte."""
        descriptor = self._open.get(slot)
        if descriptor is not None:
            return self._fill(descriptor, target, offset)
        try:
            descriptor = self._files.open(self._paths[slot])
        except KeyError:
            return [(0, len(target))]
        except OSError:
            if self.mapping is None:
                return [(0, len(target))]
            start = slot * self._slot + offset  # evicted or merged since: what is mapped is still whole
            target[:] = self.mapping[start : start + len(target)]
            return []
        with self._lock:
            if self._finalizer.alive and len(self._open) < _MOST_OPEN and slot not in self._open:
                self._open[slot] = descriptor
        try:
            return self._fill(descriptor, target, offset)
        finally:
            if self._open.get(slot) != descriptor:
                self._files.close(descriptor)

    def _fill(self, descriptor: int, target: memoryview, offset: int) -> list[tuple[int, int]]:
        done, most = 0, len(target)
        holes: list[tuple[int, int]] = []
        while done < len(target):
            try:
                count = self._files.read_into(descriptor, target[done : done + most], offset + done)
                if not count:
                    return [*holes, (done, len(target))]
                done += count
            except OSError:  # a bad sector, found page by page
                if most > _PAGE:
                    most = _PAGE
                    continue
                step = min(_PAGE - (offset + done) % _PAGE, len(target) - done)
                holes.append((done, done + step))
                done += step
        return holes


def _close_all(files: Files, descriptors: dict[int, int]) -> None:
    while descriptors:
        files.close(descriptors.popitem()[1])
