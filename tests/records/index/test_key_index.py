"""The key index against a dict, in the face of everything that can happen to its files."""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.faults.children import in_child, well
from tests.faults.seam import Counting, FullDisk, Killing, Refusing
from tests.slow import either, thinned

from warmstore.records.index import key_index
from warmstore.records.index.key_index import HEADER, KeyIndex, _hash
from warmstore.records.index.sample_keys import Keys, as_keys
from warmstore.storage.files import Files

pytestmark = pytest.mark.forks

STORE = "0" * 32


class Column:
    """The key column of a store, in memory: what the index is derived from."""

    def __init__(self, ids: Any = ()) -> None:
        self.halves = np.zeros((0, 2), np.uint64)
        self.add(ids)

    def add(self, ids: Any) -> None:
        self.halves = np.concatenate([self.halves, as_keys(ids).halves])

    def __len__(self) -> int:
        return len(self.halves)

    def read(self, first: int, last: int) -> tuple[Keys, Any]:
        return Keys.of_halves(self.halves[first:last]), np.arange(first, last)

    def index(self, folder: Path, **options: Any) -> KeyIndex:
        arguments = {"store": STORE, "generation": 1, "files": Files(), **options}
        return KeyIndex(folder, read_keys=self.read, **arguments)

    def last(self) -> dict[bytes, int]:
        return {key: row for row, key in enumerate(Keys(self.halves, False).packed)}

    def confirmed(self, keys: Keys, rows: Any) -> list[int]:
        """Rows as whoever reads them sees them: -1 where the row holds another key, or does not exist."""
        there = (rows >= 0) & (rows < len(self))
        safe = np.where(there, rows, 0)
        if not len(self):
            return [-1] * len(rows)
        right = there & (self.halves[safe] == keys.halves).all(axis=1)
        return np.where(right, rows, -1).tolist()  # type: ignore[no-any-return]

    def check(self, index: KeyIndex, ids: Any) -> None:
        """Each key's last row, or -1."""
        keys, last = as_keys(ids), self.last()
        assert index.lookup(keys).tolist() == [last.get(key, -1) for key in keys.packed]


ID = (
    st.integers(0, 30)
    | st.integers(-30, -1)
    | st.integers(0, 1 << 24)
    | st.sampled_from([1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 80, -(1 << 63)])
    | st.integers(0, 9).map(str)
)


@given(batches=st.lists(st.lists(ID, max_size=12), max_size=6), asked=st.lists(ID, max_size=12))
@settings(max_examples=either(75, 150))
def test_is_a_dict(tmp_path_factory: pytest.TempPathFactory, batches: list[list[Any]], asked: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("index")
    column = Column()
    index = column.index(folder)
    for batch in batches:
        column.add(batch)
        index.catch_up(len(column))
        assert index.covered == len(column)
        column.check(index, batch)
    everything = [one for batch in batches for one in batch] + asked
    others = column.index(folder), column.index(folder.joinpath("fresh"))
    folder.joinpath("fresh").mkdir()
    for one in (index, *others):
        one.catch_up(len(column))
        column.check(one, everything)
        column.check(one, asked)
        for single in everything:
            column.check(one, [single])


@pytest.mark.parametrize(
    "ids",
    thinned(
        2,
        [
            np.arange(300_000),
            np.random.default_rng(0).permutation(300_000),
            np.arange(200_000) * 1000 + 5,
            -np.arange(1, 100_000),
            np.arange(100_000, dtype=np.uint64) + np.uint64(1 << 63),
            [str(number) for number in range(100_000)],
            np.arange(3_000_000, 3_100_000),
            np.repeat(np.arange(50_000), 3),
        ],
    ),
    ids=["dense", "shuffled", "sparse", "negative", "uint64", "str", "far", "repeated"],
)
@pytest.mark.parametrize("batch", thinned(2, [7_001, 1 << 20]))
def test_many_keys_over_all_partitions(tmp_path: Path, ids: Any, batch: int) -> None:
    column = Column()
    index = column.index(tmp_path)
    for first in range(0, len(ids), batch):
        column.add(ids[first : first + batch])
        index.catch_up(len(column))
    column.check(index, ids)
    column.check(column.index(tmp_path), [])
    assert index.nbytes < 120 * len(ids) + (20 << 20)
    absent = as_keys([f"no {number}" for number in range(1000)])
    assert column.confirmed(absent, index.lookup(absent)) == [-1] * 1000


def test_an_int_is_found_from_any_batch(tmp_path: Path) -> None:
    """Ints alone take the direct table, ints beside other ids the same one."""
    column = Column([5, 6, 7])
    index = column.index(tmp_path)
    index.catch_up(3)
    column.check(index, [5, "a", 1 << 80])
    column.add([6, "a"])
    index.catch_up(5)
    column.check(index, [5, 6, 7])
    column.check(index, [6, "a", 1 << 63])


def grown(ids: Any, folder: Path, batch: int) -> tuple[Column, KeyIndex]:
    column = Column()
    index = column.index(folder)
    for first in range(0, len(ids), batch):
        column.add(ids[first : first + batch])
        index.catch_up(len(column))
    return column, index


def test_ints_that_turn_out_dense_are_found_in_either_table(tmp_path: Path) -> None:
    """Shuffled ids above the always direct ones are sparse at first, and stay in the hash table."""
    ids = np.random.default_rng(0).permutation(3_000_000)
    _, index = grown(ids, tmp_path, 1 << 15)
    opened = index._opened
    assert opened is not None
    early = int((ids[: 1 << 18] >= 1 << 21).sum())
    assert early > 10_000  # there were such
    direct, left = int(opened.header["direct"][0]), int(opened.table._counts.sum())
    assert direct >= len(ids)
    assert left >= early
    keys = as_keys(np.arange(len(ids)))
    assert (ids[index.lookup(keys)] == np.arange(len(ids))).all()


def test_ints_that_came_before_they_were_dense_and_again_after(tmp_path: Path) -> None:
    """They are found at their newest row, and strings beside them."""
    shuffled = np.random.default_rng(0).permutation(2_600_000).tolist()
    names = [f"id {number}" for number in range(30_000)]
    ids = [*names, *shuffled[:30_000], *shuffled[:500], *shuffled[30_000:], *shuffled[:200], *names[:100]]
    column, index = grown(ids, tmp_path, 30_000)
    keys = Keys.of_halves(column.halves)
    place = {one: row for row, one in enumerate(ids)}
    assert index.lookup(keys).tolist() == [place[one] for one in ids]


def open_and_check(column: Column, folder: Path, ids: Any) -> None:
    index = column.index(folder)
    index.catch_up(len(column))
    assert index.covered == len(column)
    column.check(index, ids)


IDS = [*range(40), *(f"id {number}" for number in range(60)), *range(-20, 0)]


@pytest.fixture
def made(tmp_path: Path) -> tuple[Column, Path]:
    column = Column(IDS)
    open_and_check(column, tmp_path, IDS)
    return column, tmp_path


def files_of(folder: Path) -> dict[str, Path]:
    return {path.suffix: path for path in folder.iterdir()}


@pytest.mark.parametrize("suffix", [".index", ".direct", ".lock"])
@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "half", "one page"])
def test_is_rebuilt(made: tuple[Column, Path], suffix: str, damage: str) -> None:
    column, folder = made
    path = files_of(folder)[suffix]
    size = path.stat().st_size
    if damage == "missing":
        path.unlink()
    else:
        content = {"empty": b"", "garbage": b"\xa5" * size, "half": path.read_bytes()[: size // 2]}
        path.write_bytes(content.get(damage, path.read_bytes()[:4096]))
    open_and_check(column, folder, IDS)
    assert sorted(files_of(folder)) == [".direct", ".index", ".lock"]  # no drafts left


@pytest.mark.parametrize("options", [{"store": "1" * 32}, {"generation": 2}], ids=str)
def test_an_index_of_another_store_is_not_used(made: tuple[Column, Path], options: dict[str, Any]) -> None:
    _, folder = made
    other = Column(["id 3", 7])
    index = other.index(folder, **options)
    index.catch_up(2)
    other.check(index, IDS)


def change_header(folder: Path, **values: Any) -> None:
    path = files_of(folder)[".index"]
    data = bytearray(path.read_bytes())
    header = np.frombuffer(data, HEADER, 1)
    for name, value in values.items():
        header[name] = value
    header["hash"] = _hash(header)
    path.write_bytes(data)


def test_an_index_of_another_boot_is_used_only_where_it_was_synced(made: tuple[Column, Path]) -> None:
    column, folder = made
    reads = []

    def counting(first: int, last: int) -> Any:
        reads.append((first, last))
        return column.read(first, last)

    def catch_up() -> KeyIndex:
        index = KeyIndex(folder, STORE, 1, counting, Files())
        index.catch_up(len(column))
        column.check(index, IDS)
        return index

    change_header(folder, boot=b"another")
    index = catch_up()
    assert reads == [(0, len(column))]
    index.sync()
    reads.clear()
    change_header(folder, boot=b"another")
    catch_up()
    assert not reads
    catch_up()
    assert not reads


@pytest.mark.parametrize("buckets", [-1, 0, 63, 1 << 20, 1 << 58])
def test_an_index_that_says_it_has_other_buckets_than_its_file_is_rebuilt(
    made: tuple[Column, Path], buckets: int
) -> None:
    column, folder = made
    before = files_of(folder)[".index"].stat().st_ino
    change_header(folder, buckets=buckets)
    open_and_check(column, folder, IDS)
    assert files_of(folder)[".index"].stat().st_ino != before


def test_a_direct_table_that_fills_in_order_has_little_room_to_spare(tmp_path: Path) -> None:
    _, index = grown(np.arange(6_000_000), tmp_path, 1 << 18)
    assert files_of(tmp_path)[".direct"].stat().st_size <= 8 * 6_000_000 + 2 * key_index._STEP
    assert index.lookup(as_keys([0, 5_999_999, 6_000_000])).tolist() == [0, 5_999_999, -1]


def test_two_files_of_different_builds_are_not_used_together(made: tuple[Column, Path], tmp_path: Path) -> None:
    column, folder = made
    direct = files_of(folder)[".direct"]
    shutil.copy(direct, direct.with_suffix(".kept"))
    index = column.index(folder)
    index.start_over(len(column))
    direct.with_suffix(".kept").rename(direct)
    open_and_check(column, folder, IDS)


def test_an_index_that_claims_too_much_is_started_over(made: tuple[Column, Path]) -> None:
    column, folder = made
    index = column.index(folder)
    index.catch_up(len(column))
    fewer = Column(IDS[:50])
    stale = fewer.index(folder)
    stale.catch_up(50)
    assert stale.covered > 50
    keys = as_keys(IDS)
    last = fewer.last()
    assert fewer.confirmed(keys, stale.lookup(keys)) == [last.get(key, -1) for key in keys.packed]
    stale.start_over(50)
    assert stale.covered == 50
    fewer.check(stale, IDS)


def test_closed_or_new_it_finds_nothing(made: tuple[Column, Path]) -> None:
    column, folder = made
    index = column.index(folder)
    assert index.lookup(as_keys([1, 2])).tolist() == [-1, -1]
    assert index.covered == 0
    index.catch_up(len(column))
    index.close()
    assert index.lookup(as_keys([1, 2])).tolist() == [-1, -1]
    index.sync()


def test_lookups_in_another_process_while_one_inserts(tmp_path: Path) -> None:
    ids = [*range(3000), *(str(number) for number in range(3000))] * 2
    column = Column(ids)
    writer = column.index(tmp_path)
    writer.catch_up(1)

    def insert(say: Callable[[Any], None]) -> None:
        index = column.index(tmp_path)
        for covered in range(1, len(ids) + 1, 37):
            index.catch_up(covered)
        index.catch_up(len(ids))

    ended: list[Any] = []
    thread = threading.Thread(target=lambda: ended.append(in_child(insert)))
    keys = as_keys(ids)
    packed = keys.packed
    thread.start()
    while not ended:
        covered = writer.covered
        rows = writer.lookup(keys)
        found = column.confirmed(keys, rows)
        # What was covered before the lookup is found: where it was, or where the key came again since.
        for at in range(0, covered, 11):
            assert found[at] >= 0
            assert packed[found[at]] == packed[at]
    thread.join()
    well(ended[0])
    column.check(writer, ids)


def test_processes_that_catch_up_at_once(tmp_path: Path) -> None:
    ids = [*range(5000), *(str(number) for number in range(5000))]
    column = Column(ids)
    ended: list[Any] = []

    def work(say: Callable[[Any], None]) -> None:
        index = column.index(tmp_path)
        for covered in range(0, len(ids) + 1, 500):
            index.catch_up(covered)
        column.check(index, ids)

    threads = [threading.Thread(target=lambda: ended.append(in_child(work))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in ended:
        well(one)
    open_and_check(column, tmp_path, ids)


STEPS = (20, 300, 4000)


def grow(column: Column, folder: Path, files: Files, say: Callable[[Any], None] = lambda _: None) -> None:
    index = column.index(folder, files=files)
    for covered in STEPS:
        index.catch_up(covered)
        say(covered)
    index.sync()


@pytest.fixture(scope="module")
def growing() -> Column:
    return Column([*(f"id {number}" for number in range(2000)), *range(10_000, 12_000)])


OPERATIONS = 14


def test_the_killed_scenario_has_so_many_operations(growing: Column, tmp_path: Path) -> None:
    counting = Counting()
    grow(growing, tmp_path, counting)
    assert len(counting.seen) == OPERATIONS, counting.seen


@pytest.mark.parametrize("at", thinned(4, range(OPERATIONS)))
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_any_operation_the_next_process_goes_on(
    growing: Column, tmp_path: Path, at: int, moment: str
) -> None:
    live = growing.index(tmp_path)
    ended = in_child(lambda say: grow(growing, tmp_path, Killing(at, moment), say))
    assert ended.signal == 9
    ids = [f"id {number}" for number in range(0, 2000, 7)] + list(range(10_000, 12_000, 7))
    for index in (live, growing.index(tmp_path)):
        index.catch_up(len(growing))
        growing.check(index, ids)


@pytest.mark.parametrize("at", range(OPERATIONS))
def test_refused_at_any_operation_it_is_right_afterwards(growing: Column, tmp_path: Path, at: int) -> None:
    files = Refusing()
    files.at = at
    index = growing.index(tmp_path, files=files)
    for _ in range(3):
        for covered in STEPS:
            try:
                index.catch_up(covered)
                index.sync()
            except OSError:
                assert files.refused
    assert files.refused
    ids = [f"id {number}" for number in range(0, 2000, 7)] + list(range(10_000, 12_000, 7))
    growing.check(index, ids)
    open_and_check(growing, tmp_path, ids)


def scramble(path: Path, rng: np.random.Generator, first: int, last: int, count: int) -> None:
    data = np.frombuffer(bytearray(path.read_bytes()), np.uint8)
    places = rng.integers(first, min(last, len(data)), count)
    data[places] = rng.integers(0, 256, count)
    path.write_bytes(data.tobytes())


PARTS = {
    "header": (".index", 0, HEADER.itemsize, 3),
    "directory": (".index", 4096, 4096 + 8 * 4096, 300),
    "counts": (".index", 4096 + 8 * 4096, 4096 + 16 * 4096, 300),
    "one count": (".index", 4096 + 8 * 4096, 4096 + 16 * 4096, 1),
    "buckets": (".index", 4096 + 16 * 4096, 1 << 40, 5000),
    "all buckets": (".index", 4096 + 16 * 4096, 1 << 40, 5_000_000),
    "directory and buckets": (".index", 4096, 1 << 40, 500_000),
    "direct": (".direct", 4096, 1 << 40, 30_000),
    "token": (".direct", 0, 8, 2),
}


@pytest.mark.parametrize("part", thinned(4, PARTS))
@pytest.mark.parametrize("seed", range(4))
def test_garbage_in_the_files_is_a_miss_or_the_right_row(tmp_path: Path, part: str, seed: int) -> None:
    """Looking up and inserting on damaged files: no wrong row, no crash, no disk filled, and no endless loop."""
    ids = [*range(500), *(f"id {number}" for number in range(3000))]
    column = Column(range(500))
    open_and_check(column, tmp_path, ids[:500])
    column.add(ids[500:])
    open_and_check(column, tmp_path, ids)
    suffix, first, last, count = PARTS[part]
    scramble(files_of(tmp_path)[suffix], np.random.default_rng(seed), first, last, count)
    more = [*range(400, 600), *(f"more {number}" for number in range(3000))]

    def work(say: Callable[[Any], None]) -> None:
        index = column.index(tmp_path)
        index.catch_up(len(column))
        for ids_now in (ids, [*ids, *more]):
            keys = as_keys(ids_now)
            packed, last = keys.packed, column.last()
            found = column.confirmed(keys, index.lookup(keys))
            assert all(row in (-1, last[packed[at]]) or packed[row] == packed[at] for at, row in enumerate(found))
            if ids_now is ids:
                column.add(more)
                index.catch_up(len(column))
        say(index.nbytes)

    (size,) = well(in_child(work))
    assert size < 100 << 20
    index = column.index(tmp_path)
    index.start_over(len(column))


def test_a_full_disk_is_an_error_and_nothing_worse(tmp_path: Path) -> None:
    class Full(FullDisk):
        def allocate(self, descriptor: int, offset: int, length: int) -> None:
            if self.room is not None:
                raise OSError(28, os.strerror(28))
            super().allocate(descriptor, offset, length)

    files = Full()
    column = Column(range(100))
    index = column.index(tmp_path, files=files)
    index.catch_up(100)
    files.room = 0
    column.add([str(number) for number in range(5000)])
    with pytest.raises(OSError, match="No space"):
        index.catch_up(len(column))
    assert index.covered == 100
    column.check(index, range(100))
    files.room = None
    index.catch_up(len(column))
    column.check(index, [5, "17"])


@pytest.mark.parametrize("write", [True, False])
def test_a_folder_that_cannot_be_written_gets_an_index_elsewhere(seen_by_all: Path, write: bool) -> None:
    tmp_path = seen_by_all
    column = Column(IDS)
    open_and_check(column, tmp_path, IDS)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}

    def visit(say: Callable[[Any], None]) -> None:
        shared = column.index(tmp_path, write=write)
        shared.catch_up(len(column))
        column.check(shared, IDS)
        assert shared.path.parent == tmp_path
        column.add(["new", 1, 1000])
        shared.catch_up(len(column))
        column.check(shared, [*IDS, "new", 1000])
        assert shared.path.parent != tmp_path
        column.add(["newer"])
        shared.catch_up(len(column))
        column.check(shared, [*IDS, "newer"])
        shared.sync()
        say(str(shared.path.parent))
        shared.close()

    (elsewhere,) = well(in_child(visit, user=65534))
    shutil.rmtree(elsewhere, ignore_errors=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("reads", [0, 1])
def test_a_private_index_whose_build_was_interrupted_is_built_again(
    tmp_path: Path, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the store was opened again, each lookup was an AssertionError."""

    class Interrupted(Column):
        left = reads

        def read(self, first: int, last: int) -> tuple[Keys, Any]:
            self.left -= 1
            if self.left == -1:
                raise KeyboardInterrupt
            return super().read(first, last)

    monkeypatch.setattr(key_index, "_BLOCK", len(IDS) // 2)
    column = Interrupted(IDS)
    index = column.index(tmp_path, write=False)
    with pytest.raises(KeyboardInterrupt):
        index.catch_up(len(column))
    index.catch_up(len(column))
    column.check(index, IDS)
    index.close()
    assert not list(tmp_path.iterdir())


def test_the_header_has_no_holes() -> None:
    assert sum(HEADER[name].itemsize for name in HEADER.names or ()) == HEADER.itemsize
    assert HEADER.itemsize <= key_index._PAGE


class Unwritable(Files):
    """No file may be opened for writing, for now."""

    is_refusing = True

    def open(self, path: Any, **options: Any) -> int:
        if self.is_refusing and options.get("write"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return super().open(path, **options)


def test_files_that_could_not_be_written_once_are_opened_again_before_rows_are_added(tmp_path: Path) -> None:
    """They were mapped read-only then, where writing ends the process."""
    column = Column(range(10))
    column.index(tmp_path).catch_up(10)

    def work(say: Callable[[Any], None]) -> None:
        files = Unwritable()
        index = column.index(tmp_path, files=files)
        index.catch_up(10)
        files.is_refusing = False
        more = ["a", "b"]
        column.add(more)
        index.catch_up(12)
        column.check(index, [*range(10), *more])

    well(in_child(work))
