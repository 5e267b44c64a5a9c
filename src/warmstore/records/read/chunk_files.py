"""The files of a generation's chunks: their mapping and sizes, and checks of their batches.

Headers and bodies are read with `pread` here, not through the mapping: a file that was cut short is damage, not SIGBUS.
"""

import errno
import logging
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

from warmstore.records.format.chunk_names import chunk_path
from warmstore.records.log.byte_repair import with_one_byte_changed
from warmstore.records.log.commit_log import GenerationClosed
from warmstore.records.log.log_entries import Entries
from warmstore.storage.files import Files, advise, lies_in_memory
from warmstore.storage.memory.address_space import SLOT, AddressSpace
from warmstore.storage.memory.memory_limits import available_memory

_log = logging.getLogger("warmstore")

_PIECE = 4 << 20
"""Bytes of a body that are read and hashed at once."""
_SMALL = 1 << 24
"""Bytes of chunks below which memory is taken for sufficient."""
_WEIGHED_FOR = 1.0
"""Seconds for which the available memory is cached."""


class Reload(Exception):
    """The log must be read again: a chunk's file was evicted or merged, or has outgrown its address space."""


class ChunkFiles:
    """Chunks by number. Not thread-safe; `space` is.

    space: the address space that they are mapped into. slots: the slot of each chunk. sizes: the bytes of each chunk's
    file at the last look, 0 for a missing file. mended: repaired headers that have a wrong byte on the disk, by hash.

    Args:
        superseded: whether the store continues in a later generation.
        gone: returns the chunks that have been evicted or merged away.
    """

    def __init__(
        self, folder: Path, files: Files, superseded: Callable[[], bool], gone: Callable[[], frozenset[int]]
    ) -> None:
        self.space = AddressSpace.of(files, files.block_source(folder))
        self.slots: dict[int, int] = {}  # slots are consecutive, chunk numbers are not
        self.sizes: dict[int, int] = {}
        self.mended: dict[int, bytes] = {}
        self._folder = folder
        self._prefix = f"{folder}{os.sep}"
        self._files = files
        self._superseded = superseded
        self._gone_by_now = gone
        self._lies_in_memory = lies_in_memory(folder)
        self.scarce = False  # whether the chunks may exceed the page cache: reading ahead around a row is a waste
        self._taken = 0
        self._weighed_until = 0.0

    def map(self, chunks: list[int]) -> None:
        """Map chunks, and note the sizes of their files.

        Raises:
            GenerationClosed: their generation was removed; the store is in a later one.
            Reload: entries of the log that were not read yet evicted or merged them, or they have outgrown their slots.
        """
        for chunk in chunks:
            self.slots.setdefault(chunk, len(self.slots))
        space = self.space
        if not space.is_mapped and not self.sizes:
            largest = max(map(self._size_of, chunks), default=0)
            space = AddressSpace.compact(self._files, space.block_source, len(chunks), largest)
        if len(self.slots) > space.slots:
            space = space.grown(len(self.slots))
            chunks = sorted({*self.sizes, *chunks})
        try:
            sizes = self._mapped_into(space, chunks)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            space = space.unmapped()  # the system refuses further mappings
            sizes = self._mapped_into(space, sorted({*self.sizes, *chunks}))
        # A full chunk has its footer beyond 1 GiB, and other programs may have appended to a file.
        if min(max(sizes.values(), default=0), SLOT) > space.slot:
            raise Reload(str(self._folder))
        self.sizes.update(sizes)
        if space is not self.space:
            self._weighed_until = 0.0
        self.space = space  # only when complete: other threads may be gathering
        self._taken = sum(self.sizes.values())
        self.weigh()

    def weigh(self) -> None:
        """Compare the chunks with the available memory, at most once a second: it costs as much as reading a batch.

        Rows of chunks that memory cannot hold are read from the files, also after their first read. Files that lie in
        memory are there, whatever is left of it.
        """
        if self._taken < _SMALL or self._lies_in_memory or time.monotonic() < self._weighed_until:
            return
        self._weighed_until = time.monotonic() + _WEIGHED_FOR
        available = available_memory()
        self.scarce = 2 * self._taken > available
        self.space.reads_files = not self.space.is_mapped or self._taken > available

    def _mapped_into(self, space: AddressSpace, chunks: list[int]) -> dict[int, int]:
        """Map chunks into `space`. Returns the bytes of their files, 0 for a missing one."""
        sizes = {}
        slots, name, paths, source, add = self.slots, self._name, space.paths, space.block_source, space.map
        for chunk in chunks:
            slot = slots[chunk]
            if slot in paths:
                sizes[chunk] = self._size_of(chunk)
                continue
            if source is not None:
                source.base_index(chunk)  # creates the file of a chunk that comes from a remote
            try:
                sizes[chunk] = add(slot, name(chunk), chunk)
            except FileNotFoundError:
                sizes[chunk] = self._missing(chunk)
        return sizes

    def _size_of(self, chunk: int) -> int:
        """Bytes of a chunk's file; 0 if it is missing."""
        if self.space.block_source is not None:
            self.space.block_source.base_index(chunk)
        try:
            return os.stat(self._name(chunk)).st_size  # noqa: PTH116 - thousands of them
        except FileNotFoundError:
            return self._missing(chunk)

    def _missing(self, chunk: int) -> int:
        """Returns 0 for a chunk whose file is missing without a reason in the log."""
        if self._superseded():
            raise GenerationClosed(str(self._folder))
        if chunk in self._gone_by_now():
            raise Reload(self._name(chunk))
        return 0

    def file_size(self, chunk: int) -> int:
        """Bytes of a chunk's file at the last look; 0 if it is missing."""
        return self.sizes.get(chunk, 0)

    def _name(self, chunk: int) -> str:
        return f"{self._prefix}{chunk:06d}.arrow"

    def path(self, chunk: int) -> Path:
        return chunk_path(self._folder, chunk)

    def drop_pages(self) -> None:
        """Unmap the pages that were read from this process. They stay in the page cache."""
        for chunk, slot in self.slots.items():
            if self.space.is_mapped and slot in self.space.paths:
                length = min(self.file_size(chunk), self.space.slot)
                advise(self.space.address + slot * self.space.slot, length, mmap.MADV_DONTNEED)

    def address(self, entry: Any) -> int:
        """The address of a batch's header in `space`."""
        return self.slots[int(entry["chunk"])] * self.space.slot + int(entry["offset"])

    def header(self, entry: Any) -> bytes | None:
        """A batch's header, repaired if one byte is wrong; None if more bytes are wrong."""
        start = self.address(entry)
        known = int(entry["header_hash"])
        if known in self.mended:
            return self.mended[known]
        found = self.space.read_span(start, int(entry["header"]))
        if found is None:
            return None
        header = bytes(found)
        if xxhash.xxh3_64_intdigest(header) == known:
            return header
        if len(header) < 8:
            return None
        prefix = b"\xff\xff\xff\xff" + (len(header) - 8).to_bytes(4, "little")
        mended = with_one_byte_changed(header, lambda data: xxhash.xxh3_64_intdigest(data) == known, known=prefix)
        if mended is not None:
            path = self.path(int(entry["chunk"]))
            _log.warning("%s: a wrong byte of a header was corrected in memory; verify(repair=True) repairs it", path)
            self.mended[known] = mended
        return mended

    def is_whole(self, entry: Any) -> bool:
        """Whether a batch is complete and matches its hashes, or has only one wrong byte in its header."""
        end = int(entry["offset"]) + int(entry["header"]) + int(entry["body"])
        is_complete = end <= self.file_size(int(entry["chunk"]))
        return is_complete and self.header(entry) is not None and self.body_is_whole(entry)

    def has_mended_header(self, entry: Any) -> bool:
        """Whether the header of a batch has a wrong byte on the disk."""
        start = self.address(entry)
        header = self.space.read_span(start, int(entry["header"]))
        return header is None or xxhash.xxh3_64_intdigest(header) != int(entry["header_hash"])

    def footer_is_whole(self, sealed: Any, batches: Entries) -> bool:
        """Whether the bytes before the first batch and after the last batch of a sealed chunk match their hashes."""
        chunk, offset = int(sealed["chunk"]), int(sealed["offset"])
        first = int(batches["offset"][batches["chunk"] == chunk].min(initial=offset))
        start = self.slots[chunk] * self.space.slot
        lead, footer = self.space.read_span(start, first), self.space.read_span(start + offset, int(sealed["body"]))
        return (
            lead is not None
            and footer is not None
            and xxhash.xxh3_64_intdigest(lead) == int(sealed["header_hash"])
            and xxhash.xxh3_64_intdigest(footer) == int(sealed["body_hash"])
        )

    def body_is_whole(self, entry: Any) -> bool:
        """Whether a batch's body, read from the file, matches its hash."""
        start = self.address(entry) + int(entry["header"])
        digest, body = xxhash.xxh3_64(), int(entry["body"])
        for first in range(0, body, _PIECE):
            part = self.space.read_span(start + first, min(_PIECE, body - first))
            if part is None:
                return False
            digest.update(part)
        return digest.intdigest() == int(entry["body_hash"])
