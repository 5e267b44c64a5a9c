"""Ranges of chunks that came with sidecars, which threads ask for while others add some."""

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from warmstore.records.log.log_entries import ENTRY
from warmstore.replicate.pinned_ranges import PinnedRanges
from warmstore.replicate.remote_chunk import PAGES, RemoteChunk
from warmstore.replicate.sidecar import Sidecar, name_of, sidecar_path
from warmstore.storage.block_source import BLOCK
from warmstore.storage.files import Files


@pytest.fixture
def ranges(tmp_path: Path) -> PinnedRanges:
    return PinnedRanges(tmp_path, Files())


def add(ranges: PinnedRanges, folder: Path, number: int) -> None:
    """A chunk of 100 bytes, of which the first 10 are pinned."""
    sidecar = Sidecar(np.zeros(0, ENTRY), b"", np.array([[0, 10]]), memoryview(bytes(10))).tobytes()
    sidecar_path(folder, number).write_bytes(sidecar)
    name = hashlib.sha256(b"%d" % number).hexdigest()
    assert ranges.add(number, RemoteChunk(name, 100, name_of(sidecar)), -1, write=False) == b""


def position(number: int) -> np.ndarray:
    return np.array([PAGES * BLOCK * number])


def test_ranges_are_found(ranges: PinnedRanges, tmp_path: Path) -> None:
    assert not ranges.hold(position(0), np.array([5])).any()
    for number in (3, 1):
        add(ranges, tmp_path, number)
        assert ranges.hold(position(number), np.array([10])).all()
        assert not ranges.hold(position(number), np.array([11])).any()
    assert not ranges.hold(position(2), np.array([5])).any()
    assert [*ranges.others(1, 5, 20)] == [(10, 20)]
    assert [*ranges.others(2, 5, 20)] == [(5, 20)]


@contextlib.contextmanager
def at_each_line(method: Callable[..., Any], call: Callable[[], object]) -> Iterator[None]:
    """Call a function before each line of a method, as another thread may."""

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is method.__code__:
            if event == "line":
                call()
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def test_threads_ask_while_others_add(ranges: PinnedRanges, tmp_path: Path) -> None:
    numbers = iter(range(100))
    with at_each_line(PinnedRanges.add, lambda: ranges.hold(position(0), np.array([5]))):
        add(ranges, tmp_path, next(numbers))
    with at_each_line(PinnedRanges.hold, lambda: add(ranges, tmp_path, next(numbers))):
        assert ranges.hold(position(0), np.array([5])).all()
    added = next(numbers)
    assert added > 3
    assert all(ranges.hold(position(number), np.array([10])).all() for number in range(added))
