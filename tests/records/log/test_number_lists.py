"""Lists of positions: in both files at one place, and read from the one in which they are whole."""

from pathlib import Path

import numpy as np
import pytest
from tests.faults.seam import Counting, FullDisk

from warmstore.records.log.log_entries import DELETED, Entries, new_entry
from warmstore.records.log.number_lists import Numbers
from warmstore.storage.files import Files

SEED = 5
LISTS = [np.array([3, 1, -1]), np.array([2**62]), np.arange(40), np.zeros(0, np.int64)]


def append(folder: Path, numbers: np.ndarray, files: Files | None = None) -> Entries:
    return new_entry(DELETED, 0, **Numbers(folder, files or Files(), SEED).append(numbers))


def read(folder: Path, entries: list[Entries]) -> list[list[int] | None]:
    found = Numbers(folder, Files(), SEED).read(np.concatenate(entries))
    return [None if numbers is None else numbers.tolist() for numbers in found]


@pytest.fixture
def entries(tmp_path: Path) -> list[Entries]:
    return [append(tmp_path, numbers) for numbers in LISTS]


@pytest.mark.parametrize("name", ["numbers", "numbers.copy"])
def test_every_byte_and_length_is_exact_by_the_other_file(tmp_path: Path, entries: list[Entries], name: str) -> None:
    path = tmp_path / name
    data = path.read_bytes()
    expected = [numbers.tolist() for numbers in LISTS]
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        assert read(tmp_path, entries) == expected
        path.write_bytes(data[:at])
        assert read(tmp_path, entries) == expected
    path.unlink()
    assert read(tmp_path, entries) == expected


def test_a_list_that_is_damaged_in_both_is_none(tmp_path: Path, entries: list[Entries]) -> None:
    for name in ("numbers", "numbers.copy"):
        data = bytearray((tmp_path / name).read_bytes())
        data[25] ^= 1
        (tmp_path / name).write_bytes(data)
    assert read(tmp_path, entries) == [LISTS[0].tolist(), None, *(numbers.tolist() for numbers in LISTS[2:])]


@pytest.mark.parametrize("length", [0, 3, 24, 33, None])
@pytest.mark.parametrize("name", ["numbers", "numbers.copy"])
def test_what_is_added_behind_a_cut_has_two_copies(
    tmp_path: Path, entries: list[Entries], name: str, length: int | None
) -> None:
    path, other = tmp_path / name, tmp_path / ("numbers.copy" if name == "numbers" else "numbers")
    if length is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:length])
    added = append(tmp_path, np.array([7, 8, 9]))
    whole = other.read_bytes()
    other.unlink()
    assert read(tmp_path, [added]) == [[7, 8, 9]]
    other.write_bytes(whole)
    everything = np.concatenate([*entries, added])
    numbers = Numbers(tmp_path, Files(), SEED)
    assert numbers.damaged(everything) == [name]
    numbers.mend(everything)
    assert not numbers.damaged(everything)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("room", [0, 5, 24, 30])
def test_what_a_full_disk_refused_is_in_nobodys_way(tmp_path: Path, entries: list[Entries], room: int) -> None:
    with pytest.raises(OSError, match="No space"):
        append(tmp_path, np.arange(3), FullDisk(room))
    added = append(tmp_path, np.array([7, 8, 9]))
    for name in ("numbers", "numbers.copy"):
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        assert read(tmp_path, [*entries, added]) == [*(numbers.tolist() for numbers in LISTS), [7, 8, 9]]
        (tmp_path / name).write_bytes(data)


def test_lists_are_on_the_disk_with_their_files_names(tmp_path: Path) -> None:
    counting = Counting()
    append(tmp_path, np.arange(3), counting)
    assert counting.seen == [*["create", "sync_folder"] * 2, "write", "write", "sync"]
