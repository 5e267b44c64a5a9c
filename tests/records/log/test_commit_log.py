"""The log: what a torn tail is, and what is damage."""

import errno
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from tests.faults.seam import OneByte, Refusing
from tests.slow import thinned

from warmstore.errors import Damaged, NotAStore, WriteFailed
from warmstore.records.log import commit_log as log_module
from warmstore.records.log.commit_log import GenerationClosed, Log
from warmstore.records.log.log_entries import BATCH, CLOSED, ENTRY, new_entry
from warmstore.records.log.log_files import create_log
from warmstore.storage.files import Files

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


def without_copy(path: Path) -> Path:
    """As a log of formats 1 to 3."""
    path.with_name("log.copy").unlink()
    return path


@pytest.mark.parametrize("kept", range(SIZE))
def test_a_short_last_entry_is_a_torn_tail(path: Path, kept: int) -> None:
    data = without_copy(path).read_bytes()
    path.write_bytes(data[: (COUNT - 1) * SIZE + kept])
    assert rows(path) == [10, 11, 12, 13]
    append(path, 99)
    assert rows(path) == [10, 11, 12, 13, 99]
    assert path.read_bytes() == path.with_name("log.copy").read_bytes()


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("more", [SIZE, SIZE + 7, 7])
def test_zeros_at_the_end_are_a_torn_tail(path: Path, more: int, copied: bool) -> None:
    if not copied:
        without_copy(path)
    path.write_bytes(path.read_bytes() + bytes(more))
    assert rows(path) == [10, 11, 12, 13, 14]
    append(path, 99)
    assert rows(path) == [10, 11, 12, 13, 14, 99]


@pytest.mark.parametrize("name", ["log", "log.copy"])
def test_every_length_is_exact_by_the_other_file(path: Path, name: str) -> None:
    data = path.read_bytes()
    for length in range(len(data)):
        path.with_name(name).write_bytes(data[:length])
        assert rows(path) == [10, 11, 12, 13, 14]
    path.with_name(name).unlink()
    assert rows(path) == [10, 11, 12, 13, 14]
    append(path, 99)
    assert rows(path) == [10, 11, 12, 13, 14, 99]
    assert path.read_bytes() == path.with_name("log.copy").read_bytes()


@pytest.mark.parametrize("length", [0, 3, SIZE, 3 * SIZE + 9])
def test_the_next_writer_makes_up_for_a_cut(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])
    append(path, 99)
    assert rows(without_copy(path)) == [10, 11, 12, 13, 14, 99]


def flipped(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("bit", thinned(8, range(8)))
def test_every_flipped_bit_is_exact_by_the_copy(path: Path, bit: int) -> None:
    for at in range(COUNT * SIZE):
        flipped(path, at, bit)
        assert rows(path) == [10, 11, 12, 13, 14]
        flipped(path, at, bit)


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_is_found_where_there_is_no_copy(path: Path, bit: int) -> None:
    without_copy(path)
    for at in range(bit, COUNT * SIZE, 8):
        flipped(path, at, bit)
        assert rows(path) == [10, 11, 12, 13, 14]
        flipped(path, at, bit)


@pytest.mark.parametrize("at", range(COUNT))
def test_two_wrong_bytes_in_both_files_are_damage(path: Path, at: int) -> None:
    for file in (path, path.with_name("log.copy")):
        flipped(file, at * SIZE + 3, 0)
        flipped(file, at * SIZE + 9, 0)
    with pytest.raises(Damaged, match=f"entry {at} of {COUNT}"):
        rows(path)
    log = Log(path, Files(), SEED, write=True, salvage=True)
    assert log.read(0)["rows"].tolist() == [0 if number == at else 10 + number for number in range(COUNT)]
    assert log.lost == [at]
    assert log.is_damaged
    log.close()


def test_what_is_lost_stays_so_when_later_entries_are_read_from_the_copy(path: Path) -> None:
    """The store then took edits, which everybody skips behind a lost entry."""
    for file in (path, path.with_name("log.copy")):
        flipped(file, SIZE + 3, 0)
        flipped(file, SIZE + 9, 0)
    log = Log(path, Files(), SEED, write=True, salvage=True)
    log.read(0)
    other = Log(path, Files(), SEED, write=True, salvage=True)
    other.append(new_entry(BATCH, 9, rows=99))
    other.close()
    for at in (3, 9):
        flipped(path, COUNT * SIZE + at, 0)
    assert log.read(COUNT)["rows"].tolist() == [99]
    assert log.lost == [1]
    log.close()


def test_each_entry_is_read_from_the_file_in_which_it_is_whole(path: Path) -> None:
    for number in range(COUNT):
        file = path.with_name("log.copy" if number % 2 else "log")
        flipped(file, number * SIZE + 8, 1)
        flipped(file, number * SIZE + 20, 1)
    assert rows(path) == [10, 11, 12, 13, 14]
    log = Log(path, Files(), SEED, write=True)
    assert log.read(0)["rows"].tolist() == [10, 11, 12, 13, 14]
    assert log.mend_copy()
    assert not log.mend_copy()
    log.close()
    assert path.read_bytes() == path.with_name("log.copy").read_bytes()


def test_a_damaged_log_is_not_written_over_its_whole_copy(path: Path) -> None:
    """Whoever mends the copy may not have read the log."""
    for at in (8, 9, 10):
        flipped(path, at, 1)
    log = Log(path, Files(), SEED, write=True)
    assert not log.mend_copy()
    log.close()
    assert rows(path) == [10, 11, 12, 13, 14]


def entries(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return [data[at : at + SIZE] for at in range(0, len(data), SIZE)]


@pytest.mark.parametrize("copied", thinned(4, [False, True]))
@pytest.mark.parametrize("first", range(COUNT))
@pytest.mark.parametrize("second", range(COUNT))
def test_entries_that_changed_places(path: Path, first: int, second: int, copied: bool) -> None:
    parts = entries(path)
    parts[first], parts[second] = parts[second], parts[first]
    path.write_bytes(b"".join(parts))
    if not copied:
        without_copy(path)
    if first == second or copied:
        assert rows(path) == [10, 11, 12, 13, 14]
    else:
        with pytest.raises(Damaged):
            rows(path)


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("at", thinned(2, range(COUNT)))
def test_an_entry_given_twice_removed_or_zeroed(path: Path, at: int, copied: bool) -> None:
    if not copied:
        without_copy(path)
    parts = entries(path)
    changes = []
    if at < COUNT - 1:
        changes = [
            [*parts[: at + 1], *parts[at:]][:COUNT],
            [*parts[:at], *parts[at + 1 :]],
            [*parts[:at], bytes(SIZE), *parts[at + 1 :]],
        ]
    for changed in changes:
        path.write_bytes(b"".join(changed))
        if copied:
            assert rows(path) == [10, 11, 12, 13, 14]
        else:
            with pytest.raises(Damaged):
                rows(path)


def test_garbage_at_the_end_is_damage_and_not_overwritten(path: Path) -> None:
    """It may be what was committed; the copy cannot say that it is not."""
    garbage = path.read_bytes() + b"\x01" * SIZE
    path.write_bytes(garbage)
    with pytest.raises(Damaged):
        rows(path)
    assert path.read_bytes() == garbage


def test_garbage_without_end_is_not_searched(path: Path) -> None:
    without_copy(path).write_bytes(b"\xa5" * SIZE * 3000)
    with (
        mock.patch.object(log_module, "matches", wraps=log_module.matches) as matching,
        pytest.raises(Damaged, match="entry 0 of 3000"),
    ):
        rows(path)
    assert matching.call_count < 10


# A copy that is longer: a writer died between the two, or the log was cut


def test_an_entry_in_the_copy_alone_counts(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-SIZE])
    assert rows(path) == [10, 11, 12, 13, 14]
    assert path.read_bytes() == data[:-SIZE], "a reader writes nothing"
    log = Log(path, Files(), SEED, write=True)
    with log.locked():
        assert path.read_bytes() == data
    log.close()


@pytest.mark.parametrize("tail", [bytes(SIZE), bytes(7), bytes(SIZE + 7), b"\x01" * 32])
def test_an_entry_in_the_copy_counts_for_all_where_it_is_torn_in_the_log(path: Path, tail: bytes) -> None:
    """A writer that has the log open does not take it back from who opened it since."""
    log = Log(path, Files(), SEED, write=True)
    assert len(log.read(0)) == COUNT
    data = path.read_bytes()
    path.write_bytes(data[:-SIZE] + tail)
    assert rows(path) == [10, 11, 12, 13, 14]
    log.append(new_entry(BATCH, 0, rows=99))
    log.close()
    assert rows(path) == [10, 11, 12, 13, 14, 99]


def closed(path: Path) -> bytes:
    """A log with the trace of a rebalance that died."""
    append(path, 99)
    log = Log(path, Files(), SEED, write=True)
    log.append(new_entry(CLOSED, 0))
    log.close()
    return path.read_bytes()


@pytest.mark.parametrize("kept", range(COUNT + 3))
def test_the_trace_of_a_rebalance_in_the_copy_alone_does_not_count(path: Path, kept: int) -> None:
    data = closed(path)
    path.write_bytes(data[: kept * SIZE])
    assert rows(path) == [10, 11, 12, 13, 14, 99]
    append(path, 100)
    assert rows(path) == [10, 11, 12, 13, 14, 99, 100]
    assert path.read_bytes() == path.with_name("log.copy").read_bytes()


def test_a_closed_log_is_closed_by_its_copy(path: Path) -> None:
    data = closed(path)
    path.write_bytes(data[: 2 * SIZE])
    log = Log(path, Files(), SEED, write=True, superseded=lambda: True)
    assert log.read(0)["kind"][-1] == CLOSED
    with pytest.raises(GenerationClosed):
        log.append(new_entry(BATCH, 0, rows=1))
    log.close()


def test_an_entry_that_a_dead_disk_left_in_the_copy_does_not_count(path: Path) -> None:
    """The disk refused the entry in the log, and to cut it off the copy: whoever waits with the rows writes them."""
    files = Refusing(errno.EIO, forever=True)
    log = Log(path, files, SEED, write=True)
    files.at = 1
    with pytest.raises(WriteFailed):
        log.append(new_entry(BATCH, 0, rows=99))
    assert files.refused == ["write", "truncate", "truncate"]
    files.at = None
    assert log.read(0)["rows"].tolist() == [10, 11, 12, 13, 14]
    log.append(new_entry(BATCH, 0, rows=100))
    log.close()
    assert rows(path) == [10, 11, 12, 13, 14, 100]


def test_a_write_of_single_bytes_commits_the_whole_entry(path: Path) -> None:
    append(path, 99, OneByte())
    assert rows(path)[-1] == 99


@pytest.mark.parametrize("operation", range(3))
def test_a_refused_entry_leaves_the_log_as_it_was(path: Path, operation: int) -> None:
    before = path.read_bytes()
    files = Refusing(errno.EIO)
    files.at = operation
    with pytest.raises(WriteFailed) as caught:
        append(path, 99, files)
    assert files.refused == [("write", "write", "sync")[operation]]
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == str(path)
    assert path.read_bytes() == path.with_name("log.copy").read_bytes() == before
    append(path, 100, files)
    assert rows(path) == [10, 11, 12, 13, 14, 100]


def test_knows_when_its_last_entry_was_taken_back(path: Path) -> None:
    log = Log(path, Files(), SEED, write=False)
    last = entries(path)[-1]
    assert log.ends_with(COUNT, last)
    append(path, 99)
    assert not log.ends_with(COUNT, last)
    assert log.continues(COUNT, last)
    for file in (path, path.with_name("log.copy")):
        file.write_bytes(b"".join(entries(file)[: COUNT - 1]))
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
