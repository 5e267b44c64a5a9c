"""The files of a generation's chunks: where each is mapped, how long it is, and what of its batches is whole.

Headers and bodies are read past the mapping here, by `pread`: a file that was cut short is damage and no SIGBUS.
"""

import errno
import logging
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import xxhash

from warmstore.records.log.byte_repair import with_one_byte_changed
from warmstore.records.log.commit_log import GenerationClosed
from warmstore.records.log.log_entries import Entries
from warmstore.storage.files import Files, advise
from warmstore.storage.memory.address_space import SLOT, AddressSpace

_log = logging.getLogger("warmstore")

_PIECE = 4 << 20
"""Bytes of a body that are read at once to be hashed."""


class Reload(Exception):
    """The log is to be read anew: a chunk's file has gone with an eviction or a merge, or outgrew its address space."""


class ChunkFiles:
    """Chunks by number. Not thread-safe; `space` is.

    space: where they are mapped. slots: by chunk, its slot there. sizes: by chunk, the bytes of its file when it was
    seen last, 0 where it is missing. mended: headers that have a wrong byte on the disk, by their hash.

    Args:
        superseded: whether the store has gone on to a later generation.
        gone: says which chunks were evicted or merged away by now.
    """

    def __init__(
        self, folder: Path, files: Files, superseded: Callable[[], bool], gone: Callable[[], frozenset[int]]
    ) -> None:
        self.space = AddressSpace.of(files, files.block_source(folder))
        self.slots: dict[int, int] = {}  # dense, as numbers of chunks that have gone are not
        self.sizes: dict[int, int] = {}
        self.mended: dict[int, bytes] = {}
        self._folder = folder
        self._prefix = f"{folder}{os.sep}"
        self._files = files
        self._superseded = superseded
        self._gone_by_now = gone
        self._scarce = False
        self._weighed = 0

    def map(self, chunks: list[int]) -> None:
        """Have chunks be mapped, and know the bytes they have now.

        Raises:
            GenerationClosed: they went with their generation, since the store is in a later one.
            Reload: they were evicted or merged by entries of the log that are not known yet, or outgrew their slots.
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
            space = space.unmapped()  # the system maps no more files
            sizes = self._mapped_into(space, sorted({*self.sizes, *chunks}))
        # A chunk of 1 GiB has its footer behind that, and what was appended to a file may be of any length.
        if min(max(sizes.values(), default=0), SLOT) > space.slot:
            raise Reload(str(self._folder))
        self.sizes.update(sizes)
        self.space = space  # with everything in it: other threads may be gathering
        taken = sum(self.sizes.values())
        if taken > 2 * self._weighed:  # asking the system costs as much as reading a batch
            self._weighed = taken
            self._scarce = 2 * taken > psutil.virtual_memory().available

    def _mapped_into(self, space: AddressSpace, chunks: list[int]) -> dict[int, int]:
        """Have chunks be mapped; returns the bytes of their files, 0 for those that are missing."""
        sizes = {}
        slots, name, paths, source, add = self.slots, self._name, space.paths, space.block_source, space.map
        for chunk in chunks:
            slot = slots[chunk]
            if slot in paths:
                sizes[chunk] = self._size_of(chunk)
                continue
            if source is not None:
                source.base_index(chunk)  # makes the file of one that comes from a remote
            try:
                sizes[chunk] = add(slot, name(chunk), chunk)
            except FileNotFoundError:
                sizes[chunk] = self._missing(chunk)
        return sizes

    def _size_of(self, chunk: int) -> int:
        """Bytes of a chunk's file, 0 where it is missing."""
        if self.space.block_source is not None:
            self.space.block_source.base_index(chunk)
        try:
            return os.stat(self._name(chunk)).st_size  # noqa: PTH116 - thousands of them
        except FileNotFoundError:
            return self._missing(chunk)

    def _missing(self, chunk: int) -> int:
        """0, for a chunk whose file is missing, where nothing says why it has gone."""
        if self._superseded():
            raise GenerationClosed(str(self._folder))
        if chunk in self._gone_by_now():
            raise Reload(self._name(chunk))
        return 0

    @property
    def scarce(self) -> bool:
        """Whether the chunks are too large to expect them in memory, so that reading around a row is a waste."""
        return self._scarce

    def file_size(self, chunk: int) -> int:
        """Bytes of a chunk's file when it was seen last; 0 where it is missing."""
        return self.sizes.get(chunk, 0)

    def _name(self, chunk: int) -> str:
        return f"{self._prefix}{chunk:06d}.arrow"

    def path(self, chunk: int) -> Path:
        return self._folder / f"{chunk:06d}.arrow"

    def drop_pages(self) -> None:
        """Give back the pages of what was read, to this process; the page cache keeps them."""
        for chunk, slot in self.slots.items():
            if self.space.is_mapped and slot in self.space.paths:
                length = min(self.file_size(chunk), self.space.slot)
                advise(self.space.address + slot * self.space.slot, length, mmap.MADV_DONTNEED)

    def address(self, entry: Any) -> int:
        """Where the header of a batch lies in `space`."""
        return self.slots[int(entry["chunk"])] * self.space.slot + int(entry["offset"])

    def header(self, entry: Any) -> bytes | None:
        """A batch's header, or None when it is damaged beyond one byte."""
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
        prefix = b"\xff\xff\xff\xff" + (len(header) - 8).to_bytes(4, "little")
        mended = with_one_byte_changed(header, lambda data: xxhash.xxh3_64_intdigest(data) == known, known=prefix)
        if mended is not None:
            where = self.path(int(entry["chunk"]))
            _log.warning("%s: a header has a wrong byte and is read without it; verify(repair=True) mends it", where)
            self.mended[known] = mended
        return mended

    def is_whole(self, entry: Any) -> bool:
        """Whether a batch is there and matches its hashes, or has one wrong byte in its header."""
        end = int(entry["offset"]) + int(entry["header"]) + int(entry["body"])
        there = end <= self.file_size(int(entry["chunk"]))
        return there and self.header(entry) is not None and self.body_is_whole(entry)

    def has_mended_header(self, entry: Any) -> bool:
        """Whether the header of a batch has a wrong byte on the disk."""
        start = self.address(entry)
        header = self.space.read_span(start, int(entry["header"]))
        return header is None or xxhash.xxh3_64_intdigest(header) != int(entry["header_hash"])

    def footer_is_whole(self, sealed: Any, batches: Entries) -> bool:
        """Whether what stands before the first and behind the last batch of a sealed chunk matches its hashes."""
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
        """Whether a batch's body matches its hash, read from the disk and past the mapping."""
        start = self.address(entry) + int(entry["header"])
        digest, body = xxhash.xxh3_64(), int(entry["body"])
        for first in range(0, body, _PIECE):
            part = self.space.read_span(start + first, min(_PIECE, body - first))
            if part is None:
                return False
            digest.update(part)
        return digest.intdigest() == int(entry["body_hash"])
