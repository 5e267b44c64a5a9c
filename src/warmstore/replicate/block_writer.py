"""BlockWriter: checks and writes blocks of a remote while the next blocks arrive."""

import asyncio
from collections.abc import Callable
from typing import Any

from warmstore.storage.block_source import BLOCK

_PIECE = 1 << 20  # bytes that are checked and written together


class BlockWriter:
    """Collects the bytes of blocks from `first` on, and calls `write(first block, bytes)`.

    Pieces of 1 MB are written by another thread while the next bytes arrive. Less than that is written at once: to hand
    it over takes longer.
    """

    def __init__(self, write: Callable[[int, memoryview], None], first: int) -> None:
        self._write_blocks = write
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
            whole = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            data, first = memoryview(whole), self._next
            self._length -= length
            self._pieces = [data[length:]] if self._length else []
            self._next += -(-length // BLOCK)
            if length < _PIECE:
                self._write_blocks(first, data[:length])
                return
            loop = asyncio.get_running_loop()
            self._writing = loop.run_in_executor(None, self._write_blocks, first, data[:length])
