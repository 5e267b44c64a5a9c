"""The address space: spans of any length copied from anywhere, on one thread and on several."""

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmstore.records import address_space
from warmstore.records.address_space import AddressSpace
from warmstore.records.files import Files

SIZE = 1 << 16


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> AddressSpace:
    path: Path = tmp_path_factory.mktemp("space") / "file"
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    space = AddressSpace(Files())
    descriptor = os.open(path, os.O_RDONLY)
    space.map(0, descriptor)
    os.close(descriptor)
    return space


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(0, 40)), max_size=30),
    st.integers(1, 9),
    st.booleans(),
)
def test_spans_of_any_length(space: AddressSpace, spans: Any, block: int, parallel: bool) -> None:
    """Blocks so small that every way a span can lie in them comes up."""
    import torch

    assert torch.get_num_threads() > 0
    starts = np.array([start for start, _ in spans], np.int64)
    lengths = np.array([min(length, SIZE - start) for start, length in spans], np.int64)
    out = np.full(int(lengths.sum()), 255, np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(address_space, "_BLOCK", block)
        patch.setattr(address_space, "_PARALLEL_BLOCKS", 0 if parallel else 1 << 30)
        space.gather_spans(starts, lengths, out)
    whole = space.memory
    expected = [whole[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    assert out.tobytes() == b"".join(part.tobytes() for part in expected)


def test_large_spans_go_through_the_parallel_copy(space: AddressSpace) -> None:
    starts = np.random.default_rng(1).integers(0, SIZE - 20_000, 300)
    lengths = np.random.default_rng(2).integers(mmap.PAGESIZE, 20_000, 300)
    out = np.zeros(int(lengths.sum()), np.uint8)
    space.gather_spans(starts, lengths, out)
    expected = b"".join(space.memory[at : at + length].tobytes() for at, length in zip(starts, lengths, strict=True))
    assert out.tobytes() == expected
