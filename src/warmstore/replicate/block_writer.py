"""Blocks that arrive from a remote in order: received blocks are checked and written while the next ones arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from warmstore.storage.block_source import BLOCK

_PIECE = 1 << 20  # bytes that are checked and written together


class BlockWriter:
    """Collects the bytes of blocks from `first` on. Another thread calls `keep` with the number of the first block."""

    def __init__(self, keep: Callable[[int, memoryview], None], first: int) -> None:
        self._keep = keep
        self._next = first
        self._pieces: list[Any] = []
        self._length = 0
        self._writing: asyncio.Future[None] | None = None

    async def take(self, piece: Any) -> None:
        self._pieces.append(piece)
        self._length += len(piece)
        if self._length >= _PIECE:
            await self._write(self._length // BLOCK * BLOCK)

    async def finish(self) -> None:
        await self._write(self._length)
        if self._writing is not None:
            await self._writing

    async def _write(self, length: int) -> None:
        if self._writing is not None:
            await self._writing
            self._writing = None
        if length:
            data, first = memoryview(b"".join(self._pieces)), self._next
            self._length -= length
            self._pieces = [data[length:]] if self._length else []
            self._next += -(-length // BLOCK)
            loop = asyncio.get_running_loop()
            self._writing = loop.run_in_executor(None, self._keep, first, data[:length])
