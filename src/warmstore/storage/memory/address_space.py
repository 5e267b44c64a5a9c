"""One range of reserved address space for all chunks of a store, so that rows of any chunks are copied in one gather.

Each chunk is mapped read-only at its own slot of 1 GiB, beyond the current end of its file: bytes that a writer appends
later are visible without another mapping. Reads stay within the rows that the log commits, since reading past the end
of a file raises SIGBUS. Rows that are not verified yet are read from the file (see `UncheckedReader`).

If address space is scarce, slots are as small as the chunks allow. If even that fails, or the system refuses more
mappings, nothing is mapped and every row is read from its file.
"""

import contextlib
import ctypes
import errno
import mmap
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.ctypeslib import as_array  # numpy would import it later, in any thread

from warmstore._native import floor, threads_for
from warmstore.errors import Damaged
from warmstore.storage.array_types import Bools, Bytes, Int64
from warmstore.storage.block_source import BLOCK, BlockSource
from warmstore.storage.files import POPULATE_READ, Files, advise, opened, release, reserve
from warmstore.storage.memory.buffer_pool import take
from warmstore.storage.memory.unchecked_reader import UncheckedReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SLOT = 1 << 30
"""Bytes of address space per chunk, and so the most bytes of a chunk."""

_FIRST_SLOTS = 64
_SMALLEST_SLOT = 1 << 20
_PAGE = mmap.PAGESIZE
_COPIED = 1 << 26
"""Bytes from which views of rows are those of the mapping, whatever memory there is: copies may be too much for it."""
# Gaps of up to this many bytes are read too: a further request costs more.
_CLOSE = 1 << 14


class AddressSpace:
    """`slots` slots of `slot` bytes each. `memory` and `view` are all of its bytes; arrays over them keep the mapping.

    Without `is_mapped` nothing is mapped, and an address only stands for a file and an offset in it. With `reads_files`
    rows are read from the files even where they are mapped: a page fault waits alone, and reads 64 KiB around the row.

    Raises:
        OSError: There is not enough address space (ENOMEM).
    """

    def __init__(
        self,
        files: Files,
        slots: int = _FIRST_SLOTS,
        block_source: BlockSource | None = None,
        *,
        slot: int = SLOT,
        is_mapped: bool = True,
    ) -> None:
        self.slots = slots
        self.slot = slot
        self.is_mapped = is_mapped
        self.reads_files = not is_mapped
        self.block_source = block_source  # with one, bytes may only be read through the methods
        self._files = files
        self._base_indices = np.full(slots, -1, np.int64)  # of each slot's first block in `block_source`
        self.paths: dict[int, str] = {}  # of the slots that have a file
        self._unchecked = UncheckedReader(files, slot, self.paths)
        length = slots * slot if is_mapped else _PAGE
        self.address = reserve(length)
        owner = (ctypes.c_uint8 * length).from_address(self.address)
        # Not at exit: arrays may still be in use, and the process ends anyway.
        weakref.finalize(owner, release, self.address, length).atexit = False
        self.memory: Bytes = as_array(owner)
        self.view = self.memory.data.toreadonly()
        self._unchecked.mapping = self.view if is_mapped else None

    @classmethod
    def of(cls, files: Files, block_source: BlockSource | None = None) -> "AddressSpace":
        """A space with slots for the largest possible chunks, or without mapping."""
        return _mapped_or_not(lambda is_mapped: cls(files, block_source=block_source, is_mapped=is_mapped))

    @classmethod
    def compact(cls, files: Files, block_source: BlockSource | None, chunks: int, largest: int) -> "AddressSpace":
        """A space with few, small slots for `chunks` chunks of up to `largest` bytes, with room for twice as much."""
        slot = min(max(1 << (2 * largest - 1).bit_length(), _SMALLEST_SLOT), SLOT)
        slots = 1 << max(chunks, 4).bit_length()
        return _mapped_or_not(lambda is_mapped: cls(files, slots, block_source, slot=slot, is_mapped=is_mapped))

    def map(self, slot: int, path: str, chunk: int = -1) -> int:
        """Map a chunk's file at its slot, and return its current bytes. Raises FileNotFoundError for a missing file."""
        with opened(path, self._files) as descriptor:
            size = self._files.size(descriptor)
            if self.is_mapped:
                self._files.map(self.address + slot * self.slot, self.slot, descriptor)
        if self.block_source is not None:
            self._base_indices[slot] = self.block_source.base_index(chunk)
        self.paths[slot] = path
        return size

    def grown(self, slots: int) -> "AddressSpace":
        """A larger, empty space. Arrays over this one stay valid."""
        size = self.slots
        while size < slots:
            size *= 2

        def make(is_mapped: bool) -> AddressSpace:
            return AddressSpace(self._files, size, self.block_source, slot=self.slot, is_mapped=is_mapped)

        return _mapped_or_not(make) if self.is_mapped else make(False)

    def unmapped(self) -> "AddressSpace":
        """An empty space with the same slots, without mapping."""
        return AddressSpace(self._files, self.slots, self.block_source, slot=self.slot, is_mapped=False)

    @property
    def is_all_here(self) -> bool:
        """Whether committed bytes can be read from `memory` directly."""
        return self.block_source is None and self.is_mapped

    @property
    def reads_mapping(self) -> bool:
        """Whether rows should be read from `memory` directly."""
        return self.block_source is None and not self.reads_files

    def held(self, addresses: Int64, lengths: Int64 | int) -> contextlib.AbstractContextManager[None]:
        """Fetch missing blocks of some bytes, and keep all of them in their files while the context is held."""
        if self.block_source is None or not len(addresses):
            return contextlib.nullcontext()
        bases = self._base_indices[addresses // self.slot]
        remote = (bases >= 0) & (np.asarray(lengths) > 0)
        within, bases = (addresses % self.slot)[remote], bases[remote]
        lengths = np.broadcast_to(lengths, len(addresses))[remote]
        absent = ~self.block_source.are_pinned(bases * BLOCK + within, lengths)
        within, bases, lengths = within[absent], bases[absent], lengths[absent]
        first, last = within // BLOCK, (within + lengths - 1) // BLOCK
        count = last - first + 1
        if count.max(initial=0) <= 2:
            return self.block_source.pin(np.concatenate((bases + first, bases + last)))
        ends = np.cumsum(count)
        return self.block_source.pin(np.repeat(bases + first - (ends - count), count) + np.arange(ends[-1]))

    def gather(self, addresses: Int64, width: int, out: Bytes | None = None) -> Bytes:
        """Copy `width` bytes from each address. Returns uint8 [n, width], `out` or a new array.

        Args:
            addresses: int64 [n], byte addresses relative to `memory`.
            width: Bytes per row, at least 1.
            out: Contiguous uint8 [n, width] to copy into, or None.
        """
        if self.block_source is not None:
            with self.held(addresses, width):
                return self._gather(addresses, width, out)
        return self._gather(addresses, width, out)

    def _gather(self, addresses: Int64, width: int, out: Bytes | None) -> Bytes:
        count = len(addresses)
        if self.reads_files:
            found, missing = self._unchecked.rows(addresses, width)
            _raise_missing(missing)
            if out is None:
                return found
            out[:] = found
            return out
        if out is None:
            out = take(count * width).reshape(count, width)
        floor.gather(self.memory, np.ascontiguousarray(addresses), width, out, threads_for(out.nbytes))
        return out

    def gather_spans(self, starts: Int64, lengths: Int64, out: Bytes) -> None:
        """Copy spans of different lengths, int64 [n] byte addresses relative to `memory` and bytes, into `out`, uint8
        [sum of lengths]."""
        with self.held(starts, lengths):
            if self.reads_files:
                out[:], missing = self._unchecked.packed(starts, lengths)
                _raise_missing(missing)
            else:
                starts, lengths = np.ascontiguousarray(starts), np.ascontiguousarray(lengths)
                floor.gather_spans(self.memory, starts, lengths, out, threads_for(len(out)))

    def will_need(self, addresses: Int64, width: int) -> None:
        """Start reading `width` bytes at each address, without waiting. Does nothing for mostly adjacent addresses, for
        which the kernel's read-ahead is faster."""
        if not self.is_mapped:
            return
        ordered = np.sort(addresses)
        breaks = np.flatnonzero(np.diff(ordered) > width + _CLOSE) + 1
        if 4 * len(breaks) < len(ordered):
            return
        firsts = ordered[np.concatenate(([0], breaks))]
        lasts = ordered[np.concatenate((breaks - 1, [len(ordered) - 1]))] + width
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            advise(self.address + first, last - first, mmap.MADV_WILLNEED)

    def will_read(self, start: int, length: int) -> None:
        """Map the cached pages of a range at once, without a page fault for each."""
        advise(self.address + start, length, POPULATE_READ)

    def maps(self, addresses: Int64, width: int) -> bool:
        """Map the pages of rows, if all of them are in the page cache. Returns whether they are: reading them from
        `memory` raises no SIGBUS then, unless another process truncates their file meanwhile.

        Args:
            addresses: int64 [n], relative to `memory`. width: bytes per row.
        """
        return self.is_all_here and bool(floor.map_rows(self.memory, np.ascontiguousarray(addresses), width))

    def span(self, address: int, length: int) -> memoryview:
        """A read-only view of `length` bytes, which keeps the mapping; a copy if they are not mapped, or remote."""
        if self.is_all_here:
            return self.view[address : address + length]
        return self.spans(np.array([address]), np.array([length]))[0]

    def place_of(self, address: int) -> tuple[str, int] | None:
        """The file of an address, and the offset in it; None where bytes may have to be fetched first."""
        path = self.paths.get(address // self.slot)
        return None if path is None or not self.is_all_here else (path, address % self.slot)

    def spans(self, starts: Int64, lengths: Int64) -> list[memoryview]:
        """A view of each span as `span` returns, int64 [n]."""
        if not self.is_mapped or (self.reads_files and lengths.sum() < _COPIED):
            with self.held(starts, lengths):
                found, missing = self._unchecked.spans(starts, lengths)
            _raise_missing(missing)
            return found
        view, ends = self.view, (starts + lengths).tolist()
        spans = [view[first:last] for first, last in zip(starts.tolist(), ends, strict=True)]
        if self.block_source is None:
            return spans
        with self.held(starts, lengths):  # blocks may be evicted later, and views would show zeros
            return [memoryview(bytes(span)) for span in spans]

    # Reads from the files: bytes beyond the end of a file, or in a bad sector, are missing, without SIGBUS.

    def read_rows(self, addresses: Int64, width: int) -> tuple[Bytes, Bools | None]:
        """`gather` from the files: uint8 [n, width]; and the missing rows, bool [n], or None."""
        with self.held(addresses, width):
            return self._unchecked.rows(addresses, width)

    def read_columns(self, addresses: "Sequence[Int64]", widths: "Sequence[int]") -> tuple[list[Bytes], Bools | None]:
        """`read_rows` of several columns in one call. A row is missing if any of its parts is."""
        for column, width in zip(addresses, widths, strict=True):
            with self.held(column, width):  # one at a time: a remote reads ahead in columns that are read in order
                pass
        with self.held(np.concatenate(addresses), np.repeat(widths, len(addresses[0]))):
            return self._unchecked.columns(addresses, widths)

    def read_packed(self, starts: Int64, lengths: Int64) -> tuple[Bytes, Bools | None]:
        """Concatenated spans from the files; and the missing ones, bool [n], or None."""
        with self.held(starts, lengths):
            return self._unchecked.packed(starts, lengths)

    def read_span(self, address: int, length: int) -> memoryview | None:
        """One span from its file; None if it is incomplete."""
        if self.block_source is None:
            return self._unchecked.span(address, length)
        with self.held(np.array([address]), length):
            return self._unchecked.span(address, length)

    def release(self) -> None:
        """Close the open files. The mapping stays."""
        self._unchecked.release()


def _mapped_or_not(make: "Callable[[bool], AddressSpace]") -> AddressSpace:
    """A space that maps its chunks, or one without mapping if address space is insufficient."""
    try:
        return make(True)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        return make(False)


def _raise_missing(missing: Any) -> None:
    if missing is not None:
        raise Damaged(
            f"{np.count_nonzero(missing)} of {len(missing)} rows that were intact before are missing: a chunk was "
            "truncated while it was open; restore it from a copy"
        )
