"""Measures random reads from a disk, past the page cache."""

import contextlib
import io
import mmap
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from warmstore.pipeline.profile.profile import Disk
from warmstore.storage.threads import ThreadPool, result_of

_BLOCK = 1 << 22
_ALIGNED = 4096


def measure_disk(folder: Path, requests: Sequence[int], seconds: float, most: int, readers: int) -> Disk:
    """Measure the disk of a folder at some request sizes in bytes.

    Args:
        seconds: total time. most: bytes to write, at most; the file is removed. readers: concurrent readers.

    Reads bypass the page cache if the file system can (O_DIRECT); otherwise the file is dropped from the cache first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".speed-{secrets.token_hex(4)}"
    with open(path, "w+b", buffering=0) as file:
        try:
            descriptor, direct = _opened(path)
        finally:
            path.unlink()  # its bytes are freed when this process ends
        try:
            size, write = _written(file, seconds / 3, most)
            spans = sorted({max(1, min(request, size // 4)) for request in requests})
            each = seconds * 2 / 3 / (2 * len(spans))
            rates = [[_rate(descriptor, direct, size, span, each, count) for count in (1, readers)] for span in spans]
        finally:
            os.close(descriptor)
    return Disk(tuple(spans), tuple(alone for alone, _ in rates), tuple(map(max, rates)), write)


def _opened(path: Path) -> tuple[int, bool]:
    with contextlib.suppress(OSError, AttributeError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT), True
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), False


def _written(file: io.FileIO, seconds: float, most: int) -> tuple[int, float]:
    """Write for some time; return the bytes written, and bytes a second with syncing."""
    block = os.urandom(_BLOCK)
    size, began = 0, time.perf_counter()
    while size < most and (not size or time.perf_counter() - began < seconds / 2):
        size += file.write(block[: most - size])
    os.fsync(file.fileno())
    return size, size / (time.perf_counter() - began)


def _rate(descriptor: int, direct: bool, size: int, span: int, seconds: float, readers: int) -> float:
    """Bytes a second of `readers` threads with random reads of `span` bytes."""
    if not direct and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    until = time.perf_counter() + seconds
    with ThreadPool(readers) as pool:
        began = time.perf_counter()
        futures = [pool.submit(_reads, descriptor, size, span, until, number) for number in range(readers)]
        return sum(map(result_of, futures)) / (time.perf_counter() - began)


def _reads(descriptor: int, size: int, span: int, until: float, number: int) -> int:
    """Requested bytes that were read by `until`. Whole blocks are read, as by the disk."""
    rng = np.random.default_rng(number)
    places = rng.integers(0, max(1, (size - span) // _ALIGNED), 4096)
    taken = 0
    length = -(-span // _ALIGNED) * _ALIGNED
    # Aligned, as direct reads must be.
    with mmap.mmap(-1, length + _ALIGNED) as buffer, memoryview(buffer) as view:
        for place in places.tolist():
            os.preadv(descriptor, [view[:length]], place * _ALIGNED)
            taken += span
            if time.perf_counter() > until:
                break
    return taken
