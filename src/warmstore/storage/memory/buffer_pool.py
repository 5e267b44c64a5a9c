"""Memory for large results, reused once no array or tensor refers to it.

The allocator returns many megabytes to the system when they are freed, and the next allocation has a page fault for
every page. This takes longer than copying the bytes (9.7 ms against 1.9 for 25 MB). So the memory of a dropped batch is
used for a later one.
"""

import functools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from warmstore.storage.array_types import Bytes

Allocate = Callable[[int], Bytes]
"""Returns memory, uint8 [length]."""

LARGE = 1 << 20
"""The least bytes of a pooled block. The allocator keeps smaller blocks itself."""

_KEPT = 128 << 20
_IDLE = 5.0
"""Seconds after which a free block is dropped that no result has used. Its page faults then take no noticeable time."""


class Lease:
    """Owns a block of memory for the arrays over it, and returns it to the pool after the last of them."""

    _owner: "BufferPool | None" = None  # also where the constructor was interrupted

    def __init__(self, block: Bytes, length: int, owner: "BufferPool") -> None:
        self._block = block
        self._owner = owner
        data = (block.ctypes.data, False)
        self.__array_interface__ = {"data": data, "shape": (length,), "typestr": "|u1", "version": 3}

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._owner is not None and not _ending():  # at the end the names of this module are gone
            self._owner.give_back(self._block)


class BufferPool:
    """Free blocks of memory that were used lately, at most `kept` bytes. Safe to use from several threads.

    A block that has been free for some seconds goes when memory is next taken or given back: a process that has once
    read much does not keep its memory.
    """

    def __init__(self, kept: int = _KEPT, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept = kept
        self._clock = clock
        self._free: list[tuple[Bytes, float]] = []  # oldest first, each with the time at which it is dropped
        self._due = math.inf  # when the first of them is
        self._lock = threading.Lock()

    def take(self, length: int) -> Bytes:
        """uint8 [length], not initialised."""
        if length < LARGE:
            if self._clock() > self._due and self._lock.acquire(blocking=False):
                try:
                    self._drop()
                finally:
                    self._lock.release()
            return np.empty(length, np.uint8)
        block = None
        with self._lock:
            # The smallest block that is large enough, but at most twice as large as needed.
            fitting = [at for at, (free, _) in enumerate(self._free) if length <= len(free) <= 2 * length]
            if fitting:
                block, _ = self._free.pop(min(fitting, key=lambda at: len(self._free[at][0])))
            self._drop()
        if block is None:
            try:
                # A quarter more, for a larger batch: untouched pages cost nothing.
                block = np.empty(length + length // 4, np.uint8)
            except MemoryError:
                with self._lock:
                    self._free.clear()
                    self._drop()
                block = np.empty(length, np.uint8)
        return np.asarray(Lease(block, length, self))

    def give_back(self, block: Bytes) -> None:
        """Return a block to the pool, unless the pool is full."""
        # Without waiting: the garbage collector may call this in a thread that holds the lock, or in a forked child.
        if self._lock.acquire(blocking=False):
            try:
                self._free.append((block, self._clock() + _IDLE))
                while sum(len(free) for free, _ in self._free) > self._kept:
                    self._free.pop(0)
                self._drop()
            finally:
                self._lock.release()

    def _drop(self) -> None:
        """Drop what has been free for too long. The lock is held."""
        now = self._clock()
        while self._free and self._free[0][1] < now:
            self._free.pop(0)
        self._due = self._free[0][1] if self._free else math.inf


class Arena:
    """Memory that arrays are copied into one after the other, so that `together` joins them without another copy. It is
    allocated in pieces of `size` bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._memory: Bytes = np.empty(0, np.uint8)
        self._used = 0
        self._lock = threading.Lock()

    def copy(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A contiguous copy of an array."""
        size = array.nbytes
        with self._lock:
            start = self._used
            if start + size > len(self._memory) or start % array.itemsize:
                self._memory, start = take(max(size, self._size)), 0
            memory, self._used = self._memory, start + size
        copied: np.ndarray[Any, Any] = memory[start : start + size].view(array.dtype).reshape(array.shape)
        np.copyto(copied, array)
        return copied


def together(parts: Sequence[np.ndarray[Any, Any]]) -> Bytes | None:
    """The memory of arrays that are adjacent in one `Arena`, uint8 [bytes], without a copy; None for other arrays."""
    memory = parts[0].base
    if type(memory) is not np.ndarray or memory.ndim != 1 or memory.dtype != np.uint8:
        return None
    begin = _address(memory)
    start = end = _address(parts[0])
    for part in parts:
        if part.base is not memory or not part.flags.c_contiguous or _address(part) != end:
            return None
        end += part.nbytes
    return memory[start - begin : end - begin]


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def take(length: int) -> Bytes:
    """uint8 [length], not initialised, from the pool of this process."""
    return _pool(os.getpid()).take(length)


@functools.lru_cache(maxsize=1)
def _pool(pid: int) -> BufferPool:
    return BufferPool()
