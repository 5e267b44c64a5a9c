"""BlockCache: the chunks of a remote as sparse local files, whose blocks are fetched when they are read.

A block is compared with its hash before it is written. A memory-mapped table holds one byte per block, its state, and
is shared by all processes. A full cache evicts blocks that were not read lately, unless any block is pinned.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from warmstore.errors import BadArtifact, BadBudget, Damaged, RemoteUnavailable
from warmstore.records.format.chunk_names import chunk_numbers, chunk_path
from warmstore.remote.objects import Objects
from warmstore.replicate.block_states import (
    ABSENT,
    COMING,
    HEADER,
    PRESENT,
    UNSURE,
    USED,
    hashes_path,
    is_present,
    local_hashes,
)
from warmstore.replicate.block_writer import BlockWriter
from warmstore.replicate.fetch_process import FetchProcess
from warmstore.replicate.pinned_ranges import PinnedRanges
from warmstore.replicate.remote_chunk import PAGES, RemoteChunk
from warmstore.replicate.sidecar import Sidecar, sidecar_path
from warmstore.storage.array_types import Bools, Bytes, Int64
from warmstore.storage.atomic import replace_file
from warmstore.storage.block_source import BLOCK
from warmstore.storage.boot import boot_id
from warmstore.storage.files import Files, open_or_create, opened, write_all
from warmstore.storage.memory.mmap import GrowableMmap
from warmstore.storage.rw_lock import RWLock

_NEAR = 4  # a gap of up to this many blocks is fetched along: one more request costs more
_RANGE = 1024  # the most blocks of one request
_AHEAD = 128  # the most blocks that are read ahead
_SMALL = 16  # blocks: chunks up to this size are fetched whole
_TRIES = 3
_LOOK = 5.0  # seconds between two looks at the sizes of this host's own chunks
_SIDECAR = 64 << 20  # bytes of a sidecar besides those of its chunk, at most


class BlockCache:
    """The chunks of one folder that come from a remote. Safe for several threads and processes.

    Args:
        folder: of the chunks' files, NNNNNN.arrow, and of the table.
        chunks: by number.
        max_size: the most bytes of blocks, and of chunks in the folder that are not remote; None for no bound.
        more: returns the current chunks; called for an unknown chunk.
        elsewhere: fetches in another process, for a forked one, which cannot use a remote.
    """

    def __init__(
        self,
        folder: Path,
        chunks: Mapping[int, RemoteChunk],
        objects: Objects,
        files: Files,
        max_size: int | None,
        more: Callable[[], Mapping[int, RemoteChunk]] = dict,
        elsewhere: FetchProcess | None = None,
    ) -> None:
        self.folder = folder
        self.chunks = dict(chunks)
        self.max_size = max_size
        self._most = None if max_size is None else max(1, max_size // BLOCK)
        self._objects = objects
        self._files = files
        self._hashes: dict[int, bytes] = {}
        self._pinned = PinnedRanges(folder, files)
        self._ahead: dict[int, tuple[int, int]] = {}  # by chunk: end of the fetched blocks, blocks read ahead
        self._table_lock = RWLock(folder / "pages.lock", files)
        self._lock = threading.Lock()
        self._more = more
        self._elsewhere = elsewhere
        self._process = os.getpid()
        self._table = self._open_table()
        self._hand = 0
        self._own = 0.0, 0  # when `_own_blocks` looks again, and what it found

    @property
    def is_own(self) -> bool:
        """Whether this process created the cache. In a forked child, threads of the parent may hold its locks."""
        return self._process == os.getpid()

    def _open_table(self) -> GrowableMmap:
        path = self.folder / "pages"
        try:
            table = GrowableMmap(path, self._files, create=HEADER)
        except FileExistsError:
            table = GrowableMmap(path, self._files, minimum=0)
        with self._table_lock.alone():
            table.allocate(HEADER + PAGES * (max(self.chunks, default=0) + 1))
            stored_boot, boot = table.memory[:40], np.frombuffer(boot_id().ljust(40, b"\0"), np.uint8)
            states = table.memory[HEADER : table.size]
            has_rebooted = bool((stored_boot != boot).any())
            if has_rebooted:
                states[states > ABSENT] = UNSURE  # a power failure may have lost written blocks
                stored_boot[:] = boot
            for number, chunk in self.chunks.items():
                self._make_file(number, chunk, states, rewrite=has_rebooted)
        return table

    def _make_file(self, number: int, chunk: RemoteChunk, states: Bytes, *, rewrite: bool = False) -> None:
        descriptor = open_or_create(self.path(number), self._files)
        try:
            is_new = self._files.size(descriptor) != chunk.size
            if is_new:
                states[PAGES * number : PAGES * (number + 1)] = ABSENT
            hashes = chunk.hashes(self._pinned.add(number, chunk, descriptor, write=is_new or rewrite))
            if hashes is not None:
                self._hashes[number] = hashes
            if is_new:  # after the pinned ranges, which are in every file of full size
                self._files.truncate(descriptor, chunk.size)
        finally:
            self._files.close(descriptor)

    def path(self, number: int) -> Path:
        """The path of a chunk's file."""
        return chunk_path(self.folder, number)

    def base_index(self, number: int) -> int:
        """The index of a chunk's first block in the table; -1 for a chunk that is not remote."""
        if number not in self.chunks:
            new_chunks = {other: chunk for other, chunk in self._more().items() if other not in self.chunks}
            if new_chunks:
                self.add(new_chunks)
        return PAGES * number if number in self.chunks else -1

    @property
    def nbytes(self) -> int:
        """Bytes of the cached blocks."""
        return int(np.count_nonzero(self._states)) * BLOCK

    @property
    def _states(self) -> Bytes:
        return self._table.memory[HEADER : HEADER + PAGES * (max(self.chunks, default=0) + 1)]

    def add(self, chunks: Mapping[int, RemoteChunk]) -> None:
        """Add remote chunks."""
        with self._lock:
            known = {**self.chunks, **chunks}
            with self._table_lock.alone():
                self._table.allocate(HEADER + PAGES * (max(known, default=0) + 1))
                for number, chunk in chunks.items():
                    self._make_file(number, chunk, self._table.memory[HEADER : self._table.size])
            self.chunks = known

    def are_pinned(self, starts: Int64, lengths: Int64) -> Bools:
        return self._pinned.hold(starts, lengths)

    @contextlib.contextmanager
    def pin(self, pages: Int64) -> Iterator[None]:
        """Fetch blocks that are absent, and keep all of them for as long as the context is held.

        Args:
            pages: int64 [n], indices in the table: PAGES times a chunk's number, plus the number of a block.

        Raises:
            RemoteUnavailable, RemoteRefused: a block is missing and cannot be fetched, or the folder was removed.
            Damaged: the remote's bytes do not match their hashes.
            BadBudget: more blocks than the cache may hold.
        """
        while True:
            with self._table_lock.inside():
                states = self._states
                if is_present(states[pages]).all():
                    states[pages] = USED
                    yield
                    return
            try:
                self.fetch(np.unique(pages), ahead=True)
            except FileNotFoundError:
                if self.folder.exists():
                    raise
                raise RemoteUnavailable(
                    f"{self.folder} is gone, and blocks of it are needed: other processes of this machine have opened "
                    "two later states of the store, which was rebalanced. Call refresh(), or open it again"
                ) from None

    def fetch_chunk(self, number: int, advance: Callable[[int], object]) -> None:
        """Fetch all blocks of a chunk. `advance` is called with numbers of bytes, first of the blocks present."""
        self.fetch(PAGES * number + np.arange(self.chunks[number].blocks), advance=advance)

    def fetch(self, pages: Int64, *, ahead: bool = False, advance: Callable[[int], object] | None = None) -> None:
        """Fetch the blocks that are absent, in few requests.

        Args:
            pages: sorted block indices, without duplicates.
            ahead: also fetch the blocks that are likely to be read next.
            advance: called with the bytes of present blocks, and of fetched blocks as they arrive.
        """
        if self._most is not None and len(pages) > self._most:
            raise BadBudget(
                f"one read needs {len(pages) * BLOCK:,} bytes of {self.folder}, and cache_size allows "
                f"{self.max_size:,}; allow more, or read fewer records at once"
            )
        if self._elsewhere is not None and not self._objects.works_here:
            self._elsewhere.fetch(self.folder, pages, ahead=ahead)
            return
        self._objects.check_process()  # before the lock: in a forked child a thread of the parent may hold it forever
        wanted = [(number, self._widened(number, blocks) if ahead else blocks) for number, blocks in _by_chunk(pages)]
        with self._lock:
            states = self._states
            absent = []
            for number, blocks in wanted:
                present = is_present(states[PAGES * number + blocks])
                if advance is not None:
                    advance(sum(self._length(number, block) for block in blocks[present].tolist()))
                if not present.all():
                    absent.append((number, blocks[~present]))
            fresh = np.concatenate([PAGES * number + blocks for number, blocks in absent] or [np.zeros(0, np.int64)])
            fresh = fresh[states[fresh] == ABSENT]
            self._make_room(len(fresh), pages)
            states[fresh] = COMING
        try:
            self._objects.run(self._fetch(absent, advance))
        except BaseException:
            with self._table_lock.inside():
                unfetched = fresh[self._states[fresh] == COMING]
                self._states[unfetched] = ABSENT
            raise

    def _widened(self, number: int, blocks: Int64) -> Int64:
        """The blocks to fetch when `blocks` are read: the whole chunk if it is small or most of it is read."""
        chunk = self.chunks[number]
        room = chunk.blocks if self._most is None else self._most // 4
        states = self._states[PAGES * number : PAGES * number + chunk.blocks]
        missing = int((states[blocks] == ABSENT).sum())
        if chunk.blocks <= min(_SMALL, room) or (4 * missing > chunk.blocks and chunk.blocks <= room):
            return np.arange(chunk.blocks)
        # Sequential reads double the read-ahead, as the page cache of Linux does.
        expected, count = self._ahead.get(number, (-1, 0))
        count = min(2 * max(count, _NEAR), _AHEAD) if expected in blocks else 0
        stop = int(blocks[-1]) + 1
        end = min(stop + min(count, room), chunk.blocks)
        self._ahead[number] = (end, count)
        return np.concatenate((blocks, np.arange(stop, end)))

    def _length(self, number: int, block: int) -> int:
        return min(BLOCK, self.chunks[number].size - block * BLOCK)

    def _make_room(self, count: int, keep: Int64) -> None:
        """Evict blocks that were not read lately, by the CLOCK algorithm (Corbato, 1968), but none of `keep`."""
        if self._most is None:
            return
        most = max(self._most - self._own_blocks(), len(keep))
        if np.count_nonzero(self._states) + count <= most:
            return
        with self._table_lock.alone():
            states = self._states
            cached = np.flatnonzero(states != ABSENT)  # few: the table may cover terabytes
            excess = len(cached) + count + most // 32 - most
            order = np.roll(cached, -int(np.searchsorted(cached, self._hand)))
            order = order[~np.isin(order, keep)]
            for state in (UNSURE, PRESENT, USED, COMING):
                if state == USED:  # no other blocks are left: those read lately are evicted too
                    states[cached[states[cached] == USED]] = PRESENT
                    state = PRESENT
                evicted = order[states[order] == state][: max(excess, 0)]
                if len(evicted):
                    self._hand = int(evicted[-1]) + 1
                    states[evicted] = ABSENT
                    for number, blocks in _by_chunk(np.sort(evicted)):
                        with opened(self.path(number), self._files, write=True) as descriptor:
                            for first, last in _runs(blocks, 0):
                                for start, end in self._pinned.others(number, first * BLOCK, last * BLOCK):
                                    self._files.punch(descriptor, start, end - start)
                    excess -= len(evicted)
            states[cached[states[cached] == USED]] = PRESENT

    def _own_blocks(self) -> int:
        """Blocks of the chunks that this host has written, which count and are not evicted; looked up now and then."""
        if time.monotonic() > self._own[0]:
            size = 0
            for number in set(chunk_numbers(self.folder)).difference(self.chunks):
                with contextlib.suppress(FileNotFoundError):  # another process has merged or evicted it
                    size += self.path(number).stat().st_size
            self._own = time.monotonic() + _LOOK, -(-size // BLOCK)
        return self._own[1]

    async def _fetch(self, absent: list[tuple[int, Int64]], advance: Callable[[int], object] | None) -> None:
        await self._objects.each(self._load_hashes, [number for number, _ in absent if number not in self._hashes])
        ranges = [
            (number, first, last)
            for number, blocks in absent
            for start, stop in _runs(blocks, _NEAR)
            for first, last in ((at, min(at + _RANGE, stop)) for at in range(start, stop, _RANGE))
        ]
        wanted = {number: set(blocks.tolist()) for number, blocks in absent}

        async def fetch_part(part: tuple[int, int, int]) -> None:
            number, first, last = part
            size = await self._fetch_range(number, first, last, wanted[number])
            if advance is not None:
                advance(size)

        await self._objects.each(fetch_part, ranges)

    async def _load_hashes(self, number: int) -> None:
        chunk = self.chunks[number]
        if chunk.sidecar is not None:
            data = await fetch_sidecar(self._objects, chunk)
            hashes = chunk.hashes(Sidecar.parse(data, chunk.sidecar, chunk.size).hashes)
            if hashes is None:
                raise self._damaged(chunk.hashes_object, False)
            self._hashes[number] = hashes
            replace_file(sidecar_path(self.folder, number), data, durable=False, files=self._files)
            return
        hashes = local_hashes(self.folder, number, chunk, self._files)
        if hashes is not None:
            self._hashes[number] = hashes
            return
        path = hashes_path(self.folder, number)
        found: bytes | None = b""
        for _ in range(_TRIES):
            try:
                found = await self._objects.get_async(chunk.hashes_object, most=chunk.hash_size * chunk.blocks)
            except BadArtifact:
                continue  # it has more bytes than hashes
            hashes = chunk.hashes(found)
            if hashes is not None:
                self._hashes[number] = hashes
                replace_file(path, hashes, durable=False, files=self._files)
                return
        raise self._damaged(chunk.hashes_object, found is None)

    async def _fetch_range(self, number: int, first: int, last: int, wanted: set[int]) -> int:
        """Fetch blocks [first, last), write the wanted ones, and return how many bytes these have."""
        chunk = self.chunks[number]
        loop = asyncio.get_running_loop()
        todo = {block for block in range(first, last) if block in wanted}
        size = sum(self._length(number, block) for block in todo)
        if (self._states[PAGES * number + np.array([*todo])] == UNSURE).any():
            await loop.run_in_executor(None, self._confirm, number, todo)
            if not todo:
                return size
        data: bytes | None = None
        for _ in range(_TRIES):
            writer = BlockWriter(partial(self._write, number, todo=todo), min(todo))
            end = (max(todo) + 1) * BLOCK
            # The whole object is requested without a range: some servers are slow at ranges.
            stop = end if end < chunk.size else None
            data = await self._objects.get_async(chunk.object, min(todo) * BLOCK, stop, take=writer.take)
            await writer.finish()
            if not todo:
                return size
        raise self._damaged(chunk.object, data is None)

    def _confirm(self, number: int, todo: set[int]) -> None:
        """Remove from `todo` the blocks that were fetched before the last boot and still match their hashes."""
        states = self._states
        unsure = [block for block in todo if states[PAGES * number + block] == UNSURE]
        with opened(self.path(number), self._files) as descriptor, self._table_lock.inside():
            for block in unsure:
                data = self._files.read(descriptor, self._length(number, block), block * BLOCK)
                if self.chunks[number].is_block(self._hashes[number], block, data):
                    states[PAGES * number + block] = USED
                    todo.discard(block)

    def _write(self, number: int, first: int, view: memoryview, todo: set[int]) -> None:
        """Write the received blocks from `first` on that match their hashes, and remove them from `todo`."""
        hashes = self._hashes[number]
        good = []
        for block in range(first, first - (-len(view) // BLOCK)):
            if block not in todo:
                continue
            start, length = (block - first) * BLOCK, self._length(number, block)
            part = view[start : start + length]
            if len(part) == length and self.chunks[number].is_block(hashes, block, part):
                good.append(block)
        # Under the lock, so that no block is evicted between its write and its new state.
        with opened(self.path(number), self._files, write=True) as descriptor, self._table_lock.inside():
            for start, stop in _runs(np.array(good, np.int64), 0):
                part = view[(start - first) * BLOCK : (stop - first) * BLOCK]
                write_all(self._files, descriptor, [part], start * BLOCK)
            self._states[PAGES * number + np.array(good, np.int64)] = USED
        todo.difference_update(good)

    def _damaged(self, name: str, missing: bool) -> Damaged:
        where = self._objects.location.url
        problem = "is missing" if missing else "does not match its checksum"
        return Damaged(f"{where}/{name} {problem}; push the store again, with verify=True, from an undamaged copy")


async def fetch_sidecar(objects: Objects, chunk: RemoteChunk) -> bytes:
    """The bytes of a chunk's sidecar, which match its name.

    Raises:
        Damaged: it is missing or damaged.
        RemoteUnavailable, RemoteRefused: it cannot be fetched.
    """
    assert chunk.sidecar is not None
    for left in reversed(range(_TRIES)):  # bytes that were damaged in transit may arrive undamaged on a retry
        try:
            data = await objects.get_async(chunk.hashes_object, most=2 * chunk.size + _SIDECAR)
            if data is None:
                break
            Sidecar.parse(data, chunk.sidecar, chunk.size)
            return data
        except (Damaged, BadArtifact):
            if not left:
                break
    raise Damaged(f"{objects.location.url}/{chunk.hashes_object} is missing or damaged; push the cache again")


def _by_chunk(pages: Int64) -> list[tuple[int, Int64]]:
    """Chunk numbers, and the numbers of blocks in each."""
    numbers = pages // PAGES
    return [(number, pages[numbers == number] % PAGES) for number in np.unique(numbers).tolist()]


def _runs(blocks: Int64, near: int) -> Iterator[tuple[int, int]]:
    """Runs [first, last) of blocks, joined where at most `near` blocks lie between them."""
    if len(blocks):
        breaks = np.flatnonzero(np.diff(blocks) > near + 1)
        firsts = blocks[np.concatenate(([0], breaks + 1))]
        lasts = blocks[np.append(breaks, len(blocks) - 1)] + 1
        yield from zip(firsts.tolist(), lasts.tolist(), strict=True)
