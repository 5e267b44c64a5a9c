"""Key indices where a process may have little address space (`ulimit -v`)."""

import errno
from pathlib import Path

import numpy as np
import pytest
from tests.records.index.test_key_index import Column

from warmstore.records.index.sample_keys import as_keys
from warmstore.storage import files
from warmstore.storage.memory import mmap
from warmstore.storage.memory.mmap import GrowableMmap, OutgrownMapping

MB = 1 << 20


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The most bytes that can be reserved at once."""
    most = [MB]

    def reserve(length: int) -> int:
        if length > most[0]:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return files.reserve(length)

    monkeypatch.setattr(mmap, "reserve", reserve)
    monkeypatch.setattr(mmap, "_ROOMS", (1 << 36, 1 << 30, MB // 2))
    return most


def ids(kind: str, first: int, last: int) -> list[object]:
    return [number if kind == "int" else f"sample {number}" for number in range(first, last)]


@pytest.mark.parametrize("kind", ["int", "text"])
def test_an_index_that_outgrows_its_address_space_is_mapped_again(tmp_path: Path, little: list[int], kind: str) -> None:
    column = Column()
    index = column.index(tmp_path)
    for first in (0, *range(2000, 202_000, 40_000)):
        column.add(ids(kind, first, first + 40_000 if first else 2000))
        little[0] = MB if not first else 64 * MB  # files are mapped with room for four times their bytes
        index.catch_up(len(column))
        assert index.lookup(as_keys(ids(kind, 0, len(column)))).tolist() == list(range(len(column)))
    assert index.nbytes > MB


@pytest.mark.parametrize("kind", ["int", "text"])
def test_another_process_may_have_more_address_space(tmp_path: Path, little: list[int], kind: str) -> None:
    column = Column(ids(kind, 0, 2000))
    index = column.index(tmp_path)
    index.catch_up(len(column))
    little[0] = 1 << 40
    column.add(ids(kind, 2000, 200_000))
    column.index(tmp_path).catch_up(len(column))
    keys = as_keys(ids(kind, 0, len(column)))
    found = index.lookup(keys)  # some are beyond what this process has mapped
    assert ((found == np.arange(len(column))) | (found < 0)).all()
    index.catch_up(len(column))
    assert index.lookup(keys).tolist() == list(range(len(column)))


def test_a_rebuilt_index_has_room_for_its_rows(tmp_path: Path, little: list[int]) -> None:
    column = Column(ids("text", 0, 100_000))
    with pytest.raises(OSError, match="Cannot allocate"):
        column.index(tmp_path).catch_up(len(column))
    assert not list(tmp_path.glob("*.tmp"))
    little[0] = 64 * MB
    index = column.index(tmp_path)
    index.catch_up(len(column))
    assert index.lookup(as_keys(ids("text", 0, len(column)))).tolist() == list(range(len(column)))


def test_a_file_that_is_larger_than_its_mapping_says_so(tmp_path: Path, little: list[int]) -> None:
    table = GrowableMmap(tmp_path / "table", files.PLAIN, create=4096)
    assert len(table.memory) == MB // 2
    with pytest.raises(OutgrownMapping, match="address space"):
        table.allocate(2 * MB)
    assert table.size == 2 * MB
    assert table.has_outgrown
    little[0] = 64 * MB
    assert not GrowableMmap(tmp_path / "table", files.PLAIN).has_outgrown
