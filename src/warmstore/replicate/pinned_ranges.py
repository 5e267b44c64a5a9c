"""PinnedRanges: bytes of remote chunks that came with sidecars, and that no eviction takes from the local files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import numpy as np

from warmstore.errors import Damaged
from warmstore.replicate.remote_chunk import PAGES, RemoteChunk
from warmstore.replicate.sidecar import Sidecar, sidecar_path
from warmstore.storage.array_types import Bools, Int64
from warmstore.storage.block_source import BLOCK
from warmstore.storage.files import Files, read_whole, write_all

_NONE = np.zeros(0, np.int64)


class PinnedRanges:
    """The ranges of the chunks in one folder. A position is BLOCK times the index of a block, and the offset in it.

    Safe for several threads, without a lock: a forked child may use those of its parent.
    """

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder = folder
        self._files = files
        self._spans: dict[int, tuple[Int64, Int64]] = {}  # starts and ends by chunk; those of a chunk do not change
        self._all: tuple[int, Int64, Int64] = 0, _NONE, _NONE  # chunks, and all starts and ends, sorted

    def add(self, number: int, chunk: RemoteChunk, descriptor: int, *, write: bool) -> bytes | None:
        """Add the ranges of a chunk's local sidecar. Returns the hashes of its blocks; None without a sidecar.

        Args:
            descriptor: of the chunk's local file.
            write: write the bytes into the file. Otherwise an earlier call has done so.
        """
        sidecar = self._read(number, chunk)
        if sidecar is None:
            return None
        if write:
            for start, data in sidecar.pieces:
                write_all(self._files, descriptor, [data], start)
        base = PAGES * BLOCK * number
        order = np.argsort(sidecar.ranges[:, 0])
        starts = base + sidecar.ranges[order, 0]
        self._spans[number] = starts, starts + sidecar.ranges[order, 1]
        return sidecar.hashes

    def _read(self, number: int, chunk: RemoteChunk) -> Sidecar | None:
        if chunk.sidecar is None:
            return None
        with contextlib.suppress(OSError, Damaged):
            data = read_whole(self._files, sidecar_path(self._folder, number))
            return Sidecar.parse(data, chunk.sidecar, chunk.size)
        return None

    def hold(self, starts: Int64, lengths: Int64) -> Bools:
        """Which spans are in pinned ranges: bool [n], for positions and lengths int64 [n]."""
        count, firsts, ends = self._all
        if count != len(self._spans):
            spans = [span for _, span in sorted(self._spans.items(), key=itemgetter(0))]
            firsts, ends = (np.concatenate(parts) for parts in zip(*spans, strict=True))
            self._all = len(spans), firsts, ends
        if not len(firsts):
            return np.zeros(len(starts), bool)
        at = np.searchsorted(firsts, starts, side="right") - 1
        found: Bools = (at >= 0) & (starts + lengths <= ends[at])
        return found

    def others(self, number: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of the bytes [start, end) of a chunk that are not pinned."""
        base = PAGES * BLOCK * number
        starts, ends = (positions - base for positions in self._spans.get(number, (_NONE, _NONE)))
        overlapping = (starts < end) & (ends > start)
        for first, last in zip(starts[overlapping].tolist(), ends[overlapping].tolist(), strict=True):
            if first > start:
                yield start, first
            start = max(start, last)
        if start < end:
            yield start, end
