"""Reading past the mapping: the same bytes, and what is missing is marked."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.faults.children import in_child, well
from tests.slow import either

from warmstore.storage.files import Files
from warmstore.storage.memory.unchecked_reader import UncheckedReader

SLOT = 1 << 16


class Bad(Files):
    """Bytes from 8192 to 8200 of every file are in a bad sector."""

    def read_rows(self, descriptors: Any, offsets: Any, lengths: Any, out: Any, missing: Any, threads: int) -> int:
        super().read_rows(descriptors, offsets, lengths, out, missing, threads)
        missing |= (offsets < 8200) & (offsets + lengths > 8192)
        return int(missing.sum())


def reader(folder: Path, data: bytes, files: Files | None = None) -> UncheckedReader:
    paths = {slot: str(folder / f"{slot}") for slot in (0, 2)}
    for path in paths.values():
        Path(path).write_bytes(data)
    return UncheckedReader(files or Files(), SLOT, paths)


DATA = np.random.default_rng(0).integers(0, 256, 30_000, np.uint8).tobytes()
PLACES = st.lists(
    st.tuples(st.sampled_from([0, 2]), st.integers(0, 31_000), st.integers(0, 9_000)), min_size=1, max_size=30
)


@given(places=PLACES)
@settings(max_examples=either(30, 60))
def test_spans_equal_the_files_bytes(places: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    unchecked = reader(tmp_path_factory.mktemp("files"), DATA)
    starts = np.array([slot * SLOT + at for slot, at, _ in places])
    lengths = np.array([length for *_, length in places])
    spans, missing = unchecked.spans(starts, lengths)
    for number, (_, at, length) in enumerate(places):
        if at + length > len(DATA) and length:
            assert missing is not None
            assert missing[number]
        else:
            assert spans[number] == DATA[at : at + length]
            assert missing is None or not missing[number]
    for (slot, at, length), start in zip(places, starts.tolist(), strict=True):
        one = unchecked.span(start, length)
        assert one == (DATA[at : at + length] if at + length <= len(DATA) or not length else None), slot


@example(rows=[], width=8)
@given(rows=st.lists(st.integers(0, 1_900), max_size=40), width=st.sampled_from([1, 8, 13]))
@settings(max_examples=either(20, 40))
def test_rows_equal_the_files_bytes(rows: list[int], width: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    unchecked = reader(tmp_path_factory.mktemp("files"), DATA)
    found, missing = unchecked.rows(np.array(rows, np.int64) * width, width)
    assert missing is None
    assert [bytes(row) for row in found] == [DATA[row * width : (row + 1) * width] for row in rows]


def test_a_bad_sector_hides_the_rows_in_it_only(tmp_path: Path) -> None:
    unchecked = reader(tmp_path, DATA, Bad())
    starts = np.arange(0, 28_000, 1000)
    found, missing = unchecked.rows(starts, 500)
    assert missing is not None
    assert starts[missing].tolist() == [8000]
    for row, start, is_gone in zip(found, starts.tolist(), missing.tolist(), strict=True):
        assert is_gone or bytes(row) == DATA[start : start + 500]


@pytest.mark.parametrize("run", [2048, 1 << 20])
def test_rows_that_follow_each_other_are_read_as_long_as_they_may_be(
    tmp_path: Path, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmstore.storage.memory.unchecked_reader._RUN", run)
    asked: list[int] = []

    class Counting(Files):
        def read_rows(self, descriptors: Any, offsets: Any, lengths: Any, out: Any, missing: Any, threads: int) -> int:
            asked.append(len(descriptors))
            assert lengths.max() <= run + 500
            return super().read_rows(descriptors, offsets, lengths, out, missing, threads)

    unchecked = reader(tmp_path, DATA, Counting())
    starts = np.append(np.arange(0, 20_000, 500), 2 * SLOT + np.arange(1000, 3000, 500))
    found, missing = unchecked.rows(starts, 500)
    assert missing is None
    expected = np.concatenate([np.frombuffer(DATA[:20_000], np.uint8), np.frombuffer(DATA[1000:3000], np.uint8)])
    assert np.array_equal(found.reshape(-1), expected)
    assert asked == [2 + 20_000 // run + (1 if run == 2048 else 0)]


def test_of_a_run_that_a_cut_file_ends_the_rows_before_are_there(tmp_path: Path) -> None:
    unchecked = reader(tmp_path, DATA[:10_100])
    starts = np.append(np.arange(0, 20_000, 500), 2 * SLOT + np.arange(0, 5000, 500))
    found, missing = unchecked.rows(starts, 500)
    assert missing is not None
    assert np.flatnonzero(missing).tolist() == list(range(20, 40))
    for row, start in zip(found[~missing], starts[~missing].tolist(), strict=True):
        assert bytes(row) == DATA[start % SLOT : start % SLOT + 500]


def test_files_that_have_gone_are_read_from_the_mapping(tmp_path: Path) -> None:
    unchecked = reader(tmp_path, DATA)
    (tmp_path / "2").unlink()
    _, missing = unchecked.rows(np.array([2 * SLOT]), 10)
    assert missing is not None
    unchecked.mapping = memoryview(bytes(2 * SLOT) + DATA)
    found, missing = unchecked.rows(np.array([2 * SLOT + 3]), 10)
    assert missing is None
    assert bytes(found[0]) == DATA[3:13]


def test_descriptors_are_closed(tmp_path: Path) -> None:
    before = len(list(Path("/dev/fd").iterdir()))
    unchecked = reader(tmp_path, DATA)
    unchecked.rows(np.array([0, 2 * SLOT]), 10)
    assert len(list(Path("/dev/fd").iterdir())) == before + 2
    unchecked.release()
    assert len(list(Path("/dev/fd").iterdir())) == before
    found, _ = unchecked.rows(np.array([5]), 10)
    assert bytes(found[0]) == DATA[5:15]
    assert len(list(Path("/dev/fd").iterdir())) == before


@pytest.mark.forks
def test_a_forked_child_does_not_wait_for_a_thread_that_opens_a_file(tmp_path: Path) -> None:
    unchecked = reader(tmp_path, DATA)

    def child(say: Callable[[Any], None]) -> None:
        signal.alarm(60)
        say(bytes(unchecked.rows(np.array([100]), 16)[0]))

    with unchecked._lock:
        assert well(in_child(child)) == [DATA[100:116]]


class Releasing(Files):
    """Another thread releases a reader while it reads, and opens files, which get the lowest free descriptors."""

    released: UncheckedReader | None = None

    def __init__(self, other: Path) -> None:
        self.others: list[int] = []
        self._other = other

    def read_rows(self, descriptors: Any, *arguments: Any) -> int:
        if self.released is not None:
            self.released.release()
            self.others += [self.open(self._other) for _ in range(8)]
        return super().read_rows(descriptors, *arguments)


def test_files_are_closed_after_the_reads_that_use_them(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(bytes(30_000))
    files = Releasing(tmp_path / "other")
    unchecked = reader(tmp_path, DATA, files)
    before = descriptors()
    for released in (None, unchecked, unchecked):  # not yet, meanwhile, and before
        files.released = released
        rows, missing = unchecked.rows(np.array([100, 2 * SLOT + 200]), 16)
        assert missing is None
        assert rows.tobytes() == DATA[100:116] + DATA[200:216]
    for other in files.others:
        files.close(other)
    assert descriptors() == before


def descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))
