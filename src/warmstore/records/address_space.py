"""One stretch of address space for all chunks of a store, so that any rows of any chunks are one gather.

Each chunk is mapped read-only at its own fixed slot of 1 GiB, also beyond the file's present end: bytes that a writer
appends later are seen without mapping again. Nothing may be read beyond what the log says is committed: past the
end of a file lies SIGBUS.
"""

import contextlib
import ctypes
import mmap
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from warmstore.records.buffers import LARGE, take
from warmstore.records.files import Files, advise, release, reserve

if TYPE_CHECKING:
    from warmstore.records.pages import Pages

SLOT = 1 << 30
"""Bytes of address space per chunk, and so the most a chunk may hold."""

_FIRST_SLOTS = 64
# From this many bytes a parallel copy pays; below it numpy's single thread is ahead of torch's dispatch.
_PARALLEL_BYTES = 1 << 15
_BLOCK = 1 << 12
_PARALLEL_BLOCKS = 256
# torch's worker threads do not survive a fork: a child that uses them waits for ever (GNU OpenMP).
_home = os.getpid()
# Gaps of up to this many bytes are read along: one request costs more than they do.
_CLOSE = 1 << 14

BLOCK = 1 << 16
"""Bytes that come from a remote as one."""

Int64 = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class AddressSpace:
    """`slots` chunk slots. `memory` is all of it as bytes, `view` too; what is made over them keeps it alive."""

    def __init__(self, files: Files, slots: int = _FIRST_SLOTS, pages: "Pages | None" = None) -> None:
        self.slots = slots
        self.pages = pages  # brings chunks from a remote; nothing may then be read but through the methods here
        self._files = files
        self._places = np.full(slots, -1, np.int64)  # of each slot's first block in the table of `pages`
        self._mapped: set[int] = set()
        length = slots * SLOT
        self.address = reserve(length)
        owner = (ctypes.c_uint8 * length).from_address(self.address)
        # At exit arrays may outlive us and the process goes anyway.
        weakref.finalize(owner, release, self.address, length).atexit = False
        self.memory: Bytes = np.ctypeslib.as_array(owner)
        self._words: Int64 = self.memory.view(np.int64)
        self.view = self.memory.data.toreadonly()
        self._windows: dict[int, Any] = {}

    def __contains__(self, slot: int) -> bool:
        return slot in self._mapped

    def map(self, slot: int, descriptor: int, chunk: int = -1) -> None:
        """Map a chunk's file at its slot. The descriptor may be closed afterwards."""
        self._files.map(self.address + slot * SLOT, SLOT, descriptor)
        if self.pages is not None:
            self._places[slot] = self.pages.place(chunk)
        self._mapped.add(slot)

    def grown(self, slots: int) -> "AddressSpace":
        """A larger, empty space. Arrays over this one stay valid for as long as they live."""
        size = self.slots
        while size < slots:
            size *= 2
        return AddressSpace(self._files, size, self.pages)

    def held(self, addresses: Int64, lengths: Int64 | int) -> contextlib.AbstractContextManager[None]:
        """Have bytes here, from a remote if need be, for as long as they are being copied."""
        if self.pages is None or not len(addresses):
            return contextlib.nullcontext()
        places = self._places[addresses // SLOT]
        remote = (places >= 0) & (np.asarray(lengths) > 0)
        within, places = (addresses % SLOT)[remote], places[remote]
        lengths = np.broadcast_to(lengths, len(addresses))[remote]
        first, last = within // BLOCK, (within + lengths - 1) // BLOCK
        count = last - first + 1
        if count.max(initial=0) <= 2:
            return self.pages.holding(np.concatenate((places + first, places + last)))
        ends = np.cumsum(count)
        return self.pages.holding(np.repeat(places + first - (ends - count), count) + np.arange(ends[-1]))

    def gather(self, addresses: Int64, width: int, out: Bytes | None = None) -> Bytes:
        """Copy `width` bytes from each address.

        Args:
            addresses: int64 [n], byte addresses relative to `memory`, multiples of 8 where `width` is one.
            width: bytes per row, at least 1.
            out: contiguous uint8 [n, width] to copy into, or None.

        Returns:
            uint8 [n, width], `out` or a new array.
        """
        if self.pages is not None:
            with self.held(addresses, width):
                return self._gather(addresses, width, out)
        return self._gather(addresses, width, out)

    def _gather(self, addresses: Int64, width: int, out: Bytes | None) -> Bytes:
        count = len(addresses)
        if width == 8 and out is None:
            words: Int64 = self._words[addresses >> 3]
            return words.view(np.uint8).reshape(count, 8)
        torch = sys.modules.get("torch")  # never imported for this: numpy does it too, on one thread
        if torch is not None and width % 8 == 0 and count * width >= _PARALLEL_BYTES and os.getpid() == _home:
            window, words_at = self._window(torch, width), torch.from_numpy(addresses >> 3)
            if out is None and count * width >= LARGE:
                out = take(count * width).reshape(count, width)
            if out is None:
                return torch.index_select(window, 0, words_at).numpy().view(np.uint8)  # type: ignore[no-any-return]
            if not out.ctypes.data & 7:
                torch.index_select(window, 0, words_at, out=torch.from_numpy(out.view(np.int64)))
                return out
        window = np.ndarray((len(self.memory) - width + 1,), f"V{width}", self.memory, strides=(1,))
        rows: Bytes = window[addresses].view(np.uint8).reshape(count, width)
        if out is None:
            return rows
        out[:] = rows
        return out

    def gather_spans(self, starts: Int64, lengths: Int64, out: Bytes) -> None:
        """Copy spans of different lengths one after the other.

        Args:
            starts, lengths: int64 [n], byte addresses relative to `memory`, and bytes.
            out: uint8 [sum of lengths].
        """
        with self.held(starts, lengths):
            self._gather_spans(starts, lengths, out)

    def _gather_spans(self, starts: Int64, lengths: Int64, out: Bytes) -> None:
        ends = np.cumsum(lengths)
        firsts = ends - lengths
        shifts = starts - firsts
        # Blocks of the output that end within one span are rows of one width, and so one parallel gather. Of a span's
        # first block the front comes along from before the span; it is overwritten by the ends of the others, below.
        inner_first, inner_last = -(-firsts // _BLOCK), ends // _BLOCK
        heads = np.minimum(inner_first * _BLOCK, ends)
        front = shifts + (inner_first - 1) * _BLOCK
        along = (heads > firsts) & (inner_last >= inner_first) & (front >= 0) & (front // SLOT == starts // SLOT)
        blocks = np.maximum(inner_last - inner_first + along, 0)
        torch = sys.modules.get("torch")
        if torch is None or os.getpid() != _home or int(blocks.sum()) < _PARALLEL_BLOCKS:
            heads, tails, head_of, tail_of = ends, ends, np.flatnonzero(lengths), np.zeros(0, np.int64)
        else:
            span = np.repeat(np.arange(len(starts)), blocks)
            block = np.arange(len(span)) + (inner_first - along - (np.cumsum(blocks) - blocks))[span]
            addresses = np.zeros(len(out) // _BLOCK, np.int64)
            addresses[block] = shifts[span] + block * _BLOCK
            target = torch.from_numpy(out[: len(addresses) * _BLOCK].reshape(-1, _BLOCK))
            flat = torch.from_numpy(self.memory)
            windows = torch.as_strided(flat, (flat.numel() - _BLOCK + 1, _BLOCK), (1, 1))
            torch.index_select(windows, 0, torch.from_numpy(addresses), out=target)
            tails = np.maximum(inner_last * _BLOCK, heads)
            head_of, tail_of = np.flatnonzero((heads > firsts) & ~along), np.flatnonzero(ends > tails)
        _copy(self.view, out, shifts[head_of], firsts[head_of], heads[head_of])
        _copy(self.view, out, shifts[tail_of], tails[tail_of], ends[tail_of])

    def will_need(self, addresses: Int64, width: int) -> None:
        """Start reading `width` bytes at each scattered address, all at once, before the first is waited for.

        Neighbours are left to the kernel's read-ahead, which is better at them.
        """
        ordered = np.sort(addresses)
        breaks = np.flatnonzero(np.diff(ordered) > width + _CLOSE) + 1
        if 4 * len(breaks) < len(ordered):
            return
        firsts = ordered[np.concatenate(([0], breaks))]
        lasts = ordered[np.concatenate((breaks - 1, [len(ordered) - 1]))] + width
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            advise(self.address + first, last - first, mmap.MADV_WILLNEED)

    def _window(self, torch: Any, width: int) -> Any:
        # A row of `width` bytes may start at any 8-byte word: overlapping windows, one select for all chunks.
        window = self._windows.get(width)
        if window is None:
            words = width // 8
            flat = torch.from_numpy(self._words)
            window = torch.as_strided(flat, (flat.numel() - words + 1, words), (1, 1))
            self._windows[width] = window
        return window

    def span(self, address: int, length: int) -> memoryview:
        """A read-only view of `length` bytes, which keeps the mapping alive. Of what comes from a remote a copy."""
        if self.pages is None:
            return self.view[address : address + length]
        return self.spans(np.array([address]), np.array([length]))[0]

    def spans(self, starts: Int64, lengths: Int64) -> list[memoryview]:
        """A read-only view for each of some spans, int64 [n]; copies of what comes from a remote."""
        view, ends = self.view, (starts + lengths).tolist()
        spans = [view[first:last] for first, last in zip(starts.tolist(), ends, strict=True)]
        if self.pages is None:
            return spans
        with self.held(starts, lengths):  # holes may be made there later, and views would show zeros
            return [memoryview(bytes(span)) for span in spans]


def _copy(view: memoryview, out: Bytes, shifts: Int64, firsts: Int64, lasts: Int64) -> None:
    """Copy the bytes [first, last) of `out`, each from so many bytes further on in `view`."""
    target = out.data
    sources = zip((firsts + shifts).tolist(), (lasts + shifts).tolist(), strict=True)
    for first, last, (start, stop) in zip(firsts.tolist(), lasts.tolist(), sources, strict=True):
        target[first:last] = view[start:stop]
