"""The log: what a torn tail is, and what is damage."""

import errno
from pathlib import Path

import numpy as np
import pytest
from tests.faults.seam import OneByte, Refusing

from warmstore.errors import Damaged, NotAStore, WriteFailed
from warmstore.records.files import Files
from warmstore.records.log import BATCH, ENTRY, Log, create_log, new_entry

SIZE = ENTRY.itemsize
COUNT = 5
SEED = 77


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_log(tmp_path, Files())
    log = Log(tmp_path / "log", Files(), SEED, write=True)
    for number in range(COUNT):
        log.append(new_entry(BATCH, number, rows=10 + number))
    log.close()
    return tmp_path / "log"


def rows(path: Path) -> list[int]:
    log = Log(path, Files(), SEED, write=False)
    try:
        return log.read(0)["rows"].tolist()
    finally:
        log.close()


def append(path: Path, number: int, files: Files | None = None) -> None:
    log = Log(path, files or Files(), SEED, write=True)
    try:
        log.append(new_entry(BATCH, 0, rows=number))
    finally:
        log.close()


def test_an_entry_takes_64_bytes() -> None:
    assert SIZE == 64


def test_entries_come_back_in_order(path: Path) -> None:
    assert rows(path) == [10, 11, 12, 13, 14]
    log = Log(path, Files(), SEED, write=False)
    assert log.read(3)["chunk"].tolist() == [3, 4]
    assert len(log.read(COUNT)) == 0
    assert log.read(0)["sequence"].tolist() == list(range(COUNT))


@pytest.mark.parametrize("kept", range(SIZE))
def test_a_short_last_entry_is_a_torn_tail(path: Path, kept: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: (COUNT - 1) * SIZE + kept])
    assert rows(path) == [10, 11, 12, 13]
    append(path, 99)
    assert rows(path) == [10, 11, 12, 13, 99]


def test_an_all_zero_last_entry_is_a_torn_tail(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(SIZE))
    assert rows(path) == [10, 11, 12, 13, 14]
    append(path, 99)
    assert rows(path) == [10, 11, 12, 13, 14, 99]


def test_zeros_and_a_short_end_are_a_torn_tail(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(SIZE + 7))
    assert rows(path) == [10, 11, 12, 13, 14]
    append(path, 99)
    assert rows(path) == [10, 11, 12, 13, 14, 99]


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_is_damage(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    for at in range(len(data)):
        data[at] ^= 1 << bit
        path.write_bytes(data)
        data[at] ^= 1 << bit
        with pytest.raises(Damaged, match=f"entry {at // SIZE} of {COUNT}"):
            rows(path)


def entries(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return [data[at : at + SIZE] for at in range(0, len(data), SIZE)]


@pytest.mark.parametrize("first", range(COUNT))
@pytest.mark.parametrize("second", range(COUNT))
def test_entries_that_changed_places_are_damage(path: Path, first: int, second: int) -> None:
    parts = entries(path)
    parts[first], parts[second] = parts[second], parts[first]
    path.write_bytes(b"".join(parts))
    if first == second:
        assert len(rows(path)) == COUNT
    else:
        with pytest.raises(Damaged):
            rows(path)


@pytest.mark.parametrize("at", range(COUNT))
def test_an_entry_given_twice_removed_or_zeroed_is_damage(path: Path, at: int) -> None:
    parts = entries(path)
    changes = [[*parts[: at + 1], *parts[at:]]]
    if at < COUNT - 1:
        changes += [[*parts[:at], *parts[at + 1 :]], [*parts[:at], bytes(SIZE), *parts[at + 1 :]]]
    for changed in changes:
        path.write_bytes(b"".join(changed))
        with pytest.raises(Damaged):
            rows(path)


def test_garbage_at_the_end_is_damage_and_not_overwritten(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\x01" * SIZE)
    with pytest.raises(Damaged):
        rows(path)


def test_a_write_of_single_bytes_commits_the_whole_entry(path: Path) -> None:
    append(path, 99, OneByte())
    assert rows(path)[-1] == 99


@pytest.mark.parametrize("operation", [0, 1])
def test_a_refused_entry_leaves_the_log_as_it_was(path: Path, operation: int) -> None:
    before = path.read_bytes()
    files = Refusing(errno.EIO)
    files.at = operation
    with pytest.raises(WriteFailed) as caught:
        append(path, 99, files)
    assert files.refused == [("write", "sync")[operation]]
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == str(path)
    assert path.read_bytes() == before
    append(path, 100, files)
    assert rows(path) == [10, 11, 12, 13, 14, 100]


def test_knows_when_its_last_entry_was_taken_back(path: Path) -> None:
    log = Log(path, Files(), SEED, write=False)
    last = entries(path)[-1]
    assert log.ends_with(COUNT, last)
    append(path, 99)
    assert not log.ends_with(COUNT, last)
    assert log.continues(COUNT, last)
    path.write_bytes(b"".join(entries(path)[: COUNT - 1]))
    assert not log.continues(COUNT, last)
    append(path, 99)
    assert not log.continues(COUNT, last)
    assert not log.ends_with(COUNT, last)


def test_a_missing_log_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="incomplete"):
        Log(tmp_path / "log", Files(), SEED, write=False)


def test_new_entries_are_held_only_once_committed(path: Path) -> None:
    log = Log(path, Files(), SEED, write=True)
    entry = new_entry(BATCH, 0, rows=1)
    assert not log.holds(entry)
    log.append(entry)
    assert log.holds(entry)
    path.write_bytes(path.read_bytes()[:-SIZE])
    assert not log.holds(entry)
    assert entry.dtype == ENTRY
    assert isinstance(entry, np.ndarray)
