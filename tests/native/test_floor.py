"""The native floor: the compiled part does what its twin in NumPy does, and refuses what that refuses."""

import mmap
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.slow import either

from warmstore._native import chosen, twin, twin_table
from warmstore.storage.array_types import Bytes

try:
    from warmstore._native import compiled
except ImportError:
    compiled = None

MEMORY = np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8)
SEEDS = st.integers(0, 2**64 - 1)
both = pytest.mark.parametrize("floor", [pytest.param(compiled, id="compiled"), pytest.param(twin, id="twin")])


@pytest.fixture(autouse=True)
def _there(request: pytest.FixtureRequest) -> None:
    if compiled is None and "floor" in request.fixturenames and request.getfixturevalue("floor") is None:
        pytest.skip("the floor was not compiled here")


def test_it_is_compiled_where_it_can_be() -> None:
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.exists() or shutil.which("cc") is None:
        pytest.skip("there is no C compiler, or Python's headers are missing")
    assert compiled is not None


@pytest.mark.parametrize("variable", ["0", "1"])
def test_the_variable_chooses(variable: str) -> None:
    code = "from warmstore._native import floor, is_compiled; print(floor.__name__, is_compiled)"
    env = {**os.environ, "WARMSTORE_NATIVE": variable}
    said = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout
    is_compiled = variable == "1" and compiled is not None
    assert said.split() == [f"warmstore._native.{'compiled' if is_compiled else 'twin'}", str(is_compiled)]


def test_what_was_not_built_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "warmstore._native.compiled", None)
    monkeypatch.delattr("warmstore._native.compiled", raising=False)
    monkeypatch.delenv("WARMSTORE_NATIVE", raising=False)
    assert chosen._choose() is twin
    assert len(caplog.messages) == 1
    assert "C compiler" in caplog.messages[0]


@both
@given(data=st.data())
def test_rows_are_what_lies_at_their_addresses(floor: Any, data: Any) -> None:
    size = data.draw(st.integers(0, len(MEMORY)))
    width = data.draw(st.integers(0, min(size, 5000)))
    addresses = np.array(data.draw(st.lists(st.integers(0, size - width), max_size=40)), np.int64)
    out = np.full((len(addresses), width), 7, np.uint8)
    floor.gather(MEMORY[:size], addresses, width, out, data.draw(st.integers(1, 4)))
    for row, at in zip(out, addresses, strict=True):
        assert row.tobytes() == MEMORY[at : at + width].tobytes()


@both
@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 12, 16, 100, 2048, 20_000])
@pytest.mark.parametrize("threads", [1, 3])
def test_many_rows_of_every_width(floor: Any, width: int, threads: int) -> None:
    addresses = np.random.default_rng(width).integers(0, len(MEMORY) - width + 1, 3000)
    out = np.empty((3000, width), np.uint8)
    floor.gather(MEMORY, addresses, width, out, threads)
    assert (out == np.lib.stride_tricks.sliding_window_view(MEMORY, width)[addresses]).all()


@both
@given(
    st.lists(
        st.tuples(st.integers(0, len(MEMORY)), st.one_of(st.integers(0, 50), st.integers(0, 60_000))), max_size=20
    ),
    st.integers(1, 4),
)
def test_spans_come_one_after_the_other(floor: Any, spans: list[tuple[int, int]], threads: int) -> None:
    starts = np.array([start for start, _ in spans], np.int64)
    lengths = np.array([min(length, len(MEMORY) - start) for start, length in spans], np.int64)
    out = np.full(int(lengths.sum()), 7, np.uint8)
    floor.gather_spans(MEMORY, starts, lengths, out, threads)
    expected = [MEMORY[start : start + length].tobytes() for start, length in zip(starts, lengths, strict=True)]
    assert out.tobytes() == b"".join(expected)


@both
@given(st.integers(0, 600), st.integers(0, 50), SEEDS, st.booleans())
def test_checksums_of_rows_are_those_of_xxhash(floor: Any, width: int, count: int, seed: int, each: bool) -> None:
    rows = MEMORY[: count * width].reshape(count, width)
    seeds = np.full(1, seed, np.uint64)
    if each:
        seeds = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(seed)
    sums = np.zeros(count, np.uint64)
    floor.checksums(rows, width, seeds, sums, 2)
    all_seeds = np.broadcast_to(seeds, count).tolist()
    assert sums.tolist() == [
        xxhash.xxh3_64_intdigest(row.tobytes(), one) for row, one in zip(rows, all_seeds, strict=True)
    ]


@both
@given(st.lists(st.tuples(st.integers(0, len(MEMORY)), st.integers(0, 70_000)), max_size=20), SEEDS)
def test_checksums_of_spans_are_those_of_xxhash(floor: Any, spans: list[tuple[int, int]], seed: int) -> None:
    starts = np.array([start for start, _ in spans], np.int64)
    lengths = np.array([min(length, len(MEMORY) - start) for start, length in spans], np.int64)
    sums = np.zeros(len(spans), np.uint64)
    floor.span_checksums(MEMORY, starts, lengths, np.full(1, seed, np.uint64), sums, 3)
    assert sums.tolist() == [
        xxhash.xxh3_64_intdigest(MEMORY[start : start + length].tobytes(), seed)
        for start, length in zip(starts, lengths, strict=True)
    ]


IDS = st.lists(st.text() | st.integers(-(1 << 63), (1 << 64) - 1), max_size=20)


@given(IDS)
def test_keys_are_those_of_the_twin(ids: list[Any]) -> None:
    if compiled is None:
        pytest.skip("the floor was not compiled here")
    mine, theirs = np.zeros((2, len(ids), 2), np.uint64)
    said = twin.keys(ids, theirs)
    assert compiled.keys(ids, mine) == said
    assert (mine == theirs).all()
    assert said == (len(ids), all(isinstance(one, int) and one < 1 << 63 for one in ids))


@both
@pytest.mark.parametrize("other", [None, 1.0, True, 1 << 64, -(1 << 63) - 1, b"a", chr(0xD800), np.int64(1), (1,)])
def test_ids_that_are_no_keys_stop_it(floor: Any, other: Any) -> None:
    assert floor.keys([1, "a", other, 2], np.zeros((4, 2), np.uint64))[0] == 2


class _Table:
    """A table in plain memory, by one floor."""

    def __init__(self, floor: Any) -> None:
        self.floor = floor
        self.directory, self.counts = np.zeros((2, 4096), np.int64)
        self.words = np.zeros(32 * 2000, np.uint64)
        self.buckets = 1

    def insert(self, keys: Any, rows: Any) -> int:
        return int(self.floor.insert(self.directory, self.counts, self.words, self.buckets, keys, rows))

    def lookup(self, keys: Any) -> tuple[list[int], int, bool]:
        rows = np.zeros(len(keys), np.int64)
        nothing = np.zeros(0, np.int64)
        said = self.floor.lookup(self.directory, self.words, self.buckets, nothing, 0, keys, rows)
        return rows.tolist(), *said

    def grow(self, partitions: Any, level: int) -> bool:
        entries = (self.buckets + (np.arange(len(partitions)) << level)) << 8 | level
        self.buckets += len(partitions) << level
        return bool(self.floor.grow(self.directory, self.words, self.buckets, partitions, entries))

    def state(self) -> bytes:
        return b"".join(one.tobytes() for one in (self.directory, self.counts, self.words))


@settings(max_examples=either(15, 30))
@given(st.integers(0, 2**32), st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(0, 2))
def test_tables_are_those_of_the_twin(seed: int, sizes: list[int], level: int) -> None:
    """Byte for byte, so that processes with and without the compiled part share one index."""
    if compiled is None:
        pytest.skip("the floor was not compiled here")
    tables = _Table(compiled), _Table(twin)
    random = np.random.default_rng(seed)
    every = random.integers(0, 2**64, (60, 2), np.uint64)
    few = np.zeros(4096, np.int64)
    tables[1].floor.count_partitions(every, few)
    counted = np.zeros(4096, np.int64)
    compiled.count_partitions(every, counted)
    assert (few == counted).all()
    for step, size in enumerate(sizes):
        keys, rows = every[random.integers(0, 60, size)], random.integers(-5, 1000, size)
        if step % 2 == 0:
            partitions = random.permutation(np.flatnonzero(few))[: 1 + step]
            assert tables[0].grow(partitions, level + step) == tables[1].grow(partitions, level + step)
        assert tables[0].insert(keys, rows) == tables[1].insert(keys, rows)
        assert tables[0].lookup(every) == tables[1].lookup(every)
        assert tables[0].state() == tables[1].state()


@settings(max_examples=either(50, 100))
@given(st.integers(0, 2**32), st.integers(0, 400))
@example(65536, 315)  # a slot behind free ones is taken
def test_a_damaged_table_harms_nobody(seed: int, count: int) -> None:
    """Both floors find the same in it, and neither reads or writes elsewhere."""
    if compiled is None:
        pytest.skip("the floor was not compiled here")
    tables = _Table(compiled), _Table(twin)
    random = np.random.default_rng(seed)
    keys = random.integers(0, 2**64, (50, 2), np.uint64)
    counted = np.zeros(4096, np.int64)
    compiled.count_partitions(keys, counted)
    partitions = np.flatnonzero(counted)
    for table in tables:
        assert table.grow(partitions, 1)
        table.insert(keys, np.arange(50))
    places = random.integers(0, len(tables[0].state()), count)
    for table in tables:
        state = np.frombuffer(table.state(), np.uint8).copy()
        state[places] ^= np.arange(count).astype(np.uint8) | 1
        for part in (table.directory, table.counts, table.words):
            part.view(np.uint8)[:], state = state[: part.nbytes], state[part.nbytes :]
    damaged = tables[0].directory[partitions] & 0xFF
    if damaged.max(initial=0) > 12:
        return  # the twin would look at each of a partition's many buckets
    assert tables[0].lookup(keys) == tables[1].lookup(keys)
    assert tables[0].insert(keys, np.arange(50)) == tables[1].insert(keys, np.arange(50))
    assert tables[0].state() == tables[1].state()
    for partition in partitions:
        assert tables[0].grow(partition[None], 1) == tables[1].grow(partition[None], 1)
    assert tables[0].state() == tables[1].state()


def _int64(*values: int) -> Any:
    return np.array(values, np.int64)


ONE = np.zeros(1, np.uint64)
DIRECTORY, WORDS = np.zeros(4096, np.int64), np.zeros(64, np.uint64)
_NO_TABLE = WORDS, 2, np.zeros(0, np.int64), 0
REFUSED = {
    "before the memory": (IndexError, "gather", lambda: (MEMORY, _int64(0, -1), 8, np.zeros(16, np.uint8), 1)),
    "behind the memory": (IndexError, "gather", lambda: (MEMORY[:100], _int64(93), 8, np.zeros(8, np.uint8), 1)),
    "far away": (IndexError, "gather", lambda: (MEMORY, _int64(2**63 - 1), 8, np.zeros(8, np.uint8), 1)),
    "little room": (ValueError, "gather", lambda: (MEMORY, _int64(0, 1), 8, np.zeros(15, np.uint8), 1)),
    "too much room": (ValueError, "gather", lambda: (MEMORY, _int64(0), 8, np.zeros(16, np.uint8), 1)),
    "negative width": (ValueError, "gather", lambda: (MEMORY, _int64(0), -8, np.zeros(0, np.uint8), 1)),
    "wide": (ValueError, "gather", lambda: (MEMORY[:4], _int64(), 8, np.zeros(0, np.uint8), 1)),
    "span behind": (IndexError, "gather_spans", lambda: (MEMORY[:9], _int64(5), _int64(5), np.zeros(5, np.uint8), 1)),
    "span that wraps": (
        IndexError,
        "gather_spans",
        lambda: (MEMORY, _int64(5), _int64(2**63 - 1), np.zeros(5, np.uint8), 1),
    ),
    "negative length": (IndexError, "gather_spans", lambda: (MEMORY, _int64(5), _int64(-1), np.zeros(0, np.uint8), 1)),
    "spans longer than out": (
        ValueError,
        "gather_spans",
        lambda: (MEMORY, _int64(0, 0), _int64(5, 5), np.zeros(9, np.uint8), 1),
    ),
    "fewer lengths": (ValueError, "gather_spans", lambda: (MEMORY, _int64(0, 0), _int64(5), np.zeros(5, np.uint8), 1)),
    "fewer rows": (ValueError, "checksums", lambda: (MEMORY[:15], 8, ONE, np.zeros(2, np.uint64), 1)),
    "other seeds": (
        ValueError,
        "checksums",
        lambda: (MEMORY[:24], 8, np.zeros(2, np.uint64), np.zeros(3, np.uint64), 1),
    ),
    "hashed behind": (
        IndexError,
        "span_checksums",
        lambda: (MEMORY[:9], _int64(5), _int64(5), ONE, np.zeros(1, np.uint64), 1),
    ),
    "another directory": (
        ValueError,
        "lookup",
        lambda: (_int64(0), *_NO_TABLE, np.zeros((1, 2), np.uint64), _int64(0)),
    ),
    "few words": (
        ValueError,
        "lookup",
        lambda: (DIRECTORY, WORDS, 3, _int64(), 0, np.zeros((1, 2), np.uint64), _int64(0)),
    ),
    "few in the direct table": (
        ValueError,
        "lookup",
        lambda: (DIRECTORY, WORDS, 2, _int64(0), 2, np.zeros((1, 2), np.uint64), _int64(0)),
    ),
    "fewer keys than rows": (
        ValueError,
        "insert",
        lambda: (DIRECTORY, DIRECTORY.copy(), WORDS, 2, np.zeros((1, 2), np.uint64), _int64(0, 0)),
    ),
    "no such partition": (IndexError, "grow", lambda: (DIRECTORY, WORDS, 2, _int64(4096), _int64(1 << 8))),
    "fewer keys than ids": (ValueError, "keys", lambda: ([1, 2], np.zeros((1, 2), np.uint64))),
    "mapped behind": (IndexError, "map_rows", lambda: (MEMORY[:9], _int64(0, 5), 5)),
    "mapped before": (IndexError, "map_rows", lambda: (MEMORY[:9], _int64(-1), 1)),
    "mapped backwards": (ValueError, "map_rows", lambda: (MEMORY[:9], _int64(0), -1)),
    "fewer spans": (
        ValueError,
        "span_checksums",
        lambda: (MEMORY, _int64(5), _int64(5), ONE, np.zeros(2, np.uint64), 1),
    ),
}


@both
@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(floor: Any, case: str) -> None:
    error, name, arguments = REFUSED[case]
    with pytest.raises(error):
        getattr(floor, name)(*arguments())


@both
@settings(max_examples=either(30, 60))
@given(data=st.data(), in_order=st.booleans(), threads=st.sampled_from([1, 32]))
def test_reading_marks_what_is_not_there(floor: Any, files: Any, data: Any, in_order: bool, threads: int) -> None:
    spans = data.draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, SIZE + 50), st.integers(0, 3000)), max_size=30)
    )
    if in_order:  # rows that follow each other are read as one
        spans = [(0, 100 * at, 100) for at in range(data.draw(st.integers(0, 60)))]
    numbers, offsets, lengths = (np.array(column, np.int64) for column in zip(*spans, strict=True)) if spans else (
        np.zeros(0, np.int64),
    ) * 3  # fmt: skip
    out = np.full(int(lengths.sum()), 7, np.uint8)
    missing = np.zeros(len(spans), np.uint8)
    descriptors = np.array([files[number] for number in numbers], np.int32)
    said = floor.read(descriptors, offsets, lengths, out, missing, threads)
    ends = np.cumsum(lengths)
    for number, offset, length, end, gone in zip(numbers, offsets, lengths, ends, missing, strict=True):
        there = (number < 2 and offset + length <= SIZE) or length == 0
        assert bool(gone) != there
        expected = MEMORY[offset : offset + length].tobytes() if there else bytes(int(length))
        assert out[end - length : end].tobytes() == expected
    assert said == missing.sum()


def kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split(".")[:2])


@both
def test_only_rows_in_the_page_cache_are_mapped(floor: Any, tmp_path: Path) -> None:
    page, path = mmap.PAGESIZE, tmp_path / "file"
    can_map = floor is compiled and sys.platform == "linux" and kernel() >= (5, 14)
    path.write_bytes(bytes(4 * page))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 4 * page, prot=mmap.PROT_READ) as mapped:
        memory = np.frombuffer(mapped, np.uint8)

        def maps(*addresses: int, width: int = page, memory: Bytes = memory) -> bool:
            return bool(floor.map_rows(memory, np.array(addresses, np.int64), width))

        assert maps() == maps(0, 5, 2 * page + 1) == maps(0, width=4 * page) == can_map
        os.truncate(path, 3 * page)
        assert maps(0, 2 * page) == can_map
        assert not maps(0, 3 * page)
        assert not maps(0, 2 * page + 1)
        del maps, memory  # a map with views cannot be closed


SIZE = 5000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two files of the first bytes of MEMORY, and a descriptor of none."""
    path = tmp_path_factory.mktemp("files") / "file"
    path.write_bytes(MEMORY[:SIZE].tobytes())
    opened = [os.open(path, os.O_RDONLY) for _ in range(2)]
    yield [*opened, -1]
    for one in opened:
        os.close(one)


@both
@settings(max_examples=either(50, 100))
@given(data=st.data(), is_even=st.booleans(), width=st.sampled_from([1, 8, 16, 100]))
def test_rows_of_batches(floor: Any, data: Any, is_even: bool, width: int) -> None:
    """Batches lie anywhere in memory, some outside of it, and not all of their rows may be there yet."""
    counts = data.draw(st.lists(st.integers(1, 9), max_size=6))
    if is_even and counts:
        counts = [counts[0]] * len(counts)
    first_row = np.cumsum([0, *counts])[:-1].astype(np.int64)
    starts = data.draw(st.lists(st.integers(-50, len(MEMORY)), min_size=len(counts), max_size=len(counts)))
    bases = np.array(starts, np.int64) - first_row * width
    rows = np.array(data.draw(st.lists(st.integers(-1, sum(counts)), max_size=12)), np.int64)
    span = counts[0] if is_even and counts else 0
    limit = data.draw(st.integers(0, sum(counts) + 1))
    expected = []
    for row in rows.tolist():
        batch = int(np.searchsorted(first_row, row, side="right")) - 1 if counts else -1
        address = starts[batch] + (row - int(first_row[batch])) * width if batch >= 0 else -1
        is_there = 0 <= address <= len(MEMORY) - width and row < (min(limit, sum(counts)) if span else limit)
        expected.append(MEMORY[address : address + width].tobytes() if is_there else None)
    out = np.full((len(rows), width), 7, np.uint8)
    there = floor.gather_rows(MEMORY, bases, first_row, span, limit, rows, width, out, 1)
    assert there is (None not in expected)
    if there:
        assert [row.tobytes() for row in out] == expected


@both
@pytest.mark.parametrize("span", [1, 3, 7, 49, 1000, 2047, 2048, 4999])
def test_every_row_of_batches_of_one_length(floor: Any, span: int) -> None:
    """Where batches end is found without a division."""
    memory = np.random.default_rng(span).integers(0, 256, 300_000, np.uint8)
    batches = len(memory) // span
    first_row = np.arange(batches) * span
    starts = np.random.default_rng(0).permutation(batches) * span
    rows = np.arange(batches * span)
    out = np.empty(len(rows), np.uint8)
    assert floor.gather_rows(memory, starts - first_row, first_row, span, len(rows), rows, 1, out, 1)
    assert (out.reshape(batches, span) == memory[: batches * span].reshape(batches, span)[starts // span]).all()


@both
@settings(max_examples=either(25, 50))
@given(data=st.data(), width=st.integers(1, 100))
def test_what_is_fetched_carries_its_key(floor: Any, data: Any, width: int) -> None:
    """A table of 20 keys proposes rows, of which not all are there or hold the key; two columns lie in two batches."""
    keys = np.random.default_rng(0).integers(0, 2**64, (20, 2), np.uint64)
    keys[:5] = [(number, twin_table.SIGNED) for number in range(5)]  # as ids they may also stand in the direct table
    table = _Table(floor)
    partitions = sorted({twin_table.fingerprint_of(low, high) >> 52 for low, high in keys.tolist()})
    assert table.grow(np.array(partitions), 0)
    rows = data.draw(st.permutations(range(24)))[:20]
    assert table.insert(keys[3:], np.array(rows[3:])) == 17
    direct = np.array([rows[0] + 1, rows[1] + 1, rows[2] + 1, 0], np.int64)
    limit, wrong = data.draw(st.integers(15, 24)), data.draw(st.sets(st.integers(0, 23), max_size=4))
    memory = np.random.default_rng(1).integers(0, 256, 24 * (16 + width) + 3, np.uint8)
    own, values = memory[3 : 3 + 24 * 16].reshape(24, 16), memory[3 + 24 * 16 :].reshape(24, width)
    for number, row in enumerate(rows):
        if row not in wrong:
            own[row] = keys[number].view(np.uint8)
    first_row = np.array([0, 10], np.int64)
    asked = data.draw(st.lists(st.integers(0, 19), max_size=12))
    out, second = np.zeros((len(asked), width), np.uint8), np.zeros((len(asked), 16), np.uint8)
    columns = (np.full(2, 3 + 24 * 16), width, out), (np.full(2, 3), 16, second)
    where = table.directory, table.words, table.buckets, direct, len(direct)
    done, is_beyond = floor.fetch(*where, keys[asked], memory, np.full(2, 3), first_row, 0, limit, columns, 2)
    assert done is all(rows[one] < limit and rows[one] not in wrong for one in asked)
    assert not is_beyond
    if done:
        assert (out == values[[rows[one] for one in asked]]).all()
        assert (second == own[[rows[one] for one in asked]]).all()
    assert floor.fetch(*where[:2], 1, *where[3:], keys[3:4], memory, *[np.full(2, 3)] * 2, 0, 24, (), 1) == (
        False,
        True,
    )


@both
def test_columns_that_cannot_be_fetched_are_refused(floor: Any) -> None:
    table = _Table(floor)
    keys, numbers = np.zeros((2, 2), np.uint64), np.zeros(1, np.int64)
    where = table.directory, table.words, 1, numbers, 0, keys, MEMORY, numbers, numbers, 0, 9
    for column in ((numbers, 8, np.zeros(8, np.uint8)), (numbers, 0, np.zeros(0, np.uint8)), (numbers, 8)):
        with pytest.raises((ValueError, TypeError)):
            floor.fetch(*where, ((numbers, 8, np.zeros(16, np.uint8)), column), 1)


@given(n=st.integers(1, 2**62), count=st.integers(0, 40), seed=st.integers(0, 2**32))
def test_permutations_are_those_of_the_twin(n: int, count: int, seed: int) -> None:
    if compiled is None:
        pytest.skip("the floor was not compiled here")
    rng = np.random.default_rng(seed)
    places, keys = rng.integers(0, n, count, np.uint64), rng.integers(0, 2**64, 8, np.uint64)
    side = min(max(int(n**0.5) + 1 + int(rng.integers(0, 1000)), 1), 2**32 - 1)
    other_side = -(-n // side)
    found = [np.empty_like(places), np.empty_like(places)]
    for floor, out in zip((compiled, twin), found, strict=True):
        floor.permute(places, n, side, other_side, keys, out)
    assert found[0].tolist() == found[1].tolist()
    assert all(out < n for out in found[0].tolist())


@both
@pytest.mark.parametrize(
    ("places", "sides", "error"),
    [
        ([5, 10], (4, 3), IndexError),
        ([5], (3, 3), ValueError),
        ([5], (0, 9), ValueError),
        ([5], (2**32, 9), ValueError),
    ],
)
def test_places_and_sides_that_are_no_permutation_are_refused(
    floor: Any, places: list[int], sides: tuple[int, int], error: type[Exception]
) -> None:
    asked = np.array(places, np.uint64)
    with pytest.raises(error):
        floor.permute(asked, 10, *sides, np.zeros(8, np.uint64), np.empty_like(asked))


@both
def test_values_of_dicts_are_compared_by_their_addresses(floor: Any) -> None:
    one, other = {"a": object(), "b": 3}, {1: "x"}
    held = np.array([*one.values(), *other.values()], object)
    addresses, sizes = np.frombuffer(held, np.uint64), np.array([2, 1])

    def changed(*dicts: Any, sizes: Any = sizes) -> Any:
        return floor.changed_dicts([*dicts], sizes, addresses)

    assert changed(one, other) == []
    assert changed(other, one) == [0, 1]
    assert changed({}, one, {}, other, sizes=np.array([0, 2, 0, 1])) == []
    assert changed(one, {**other, 2: None}) == [1]
    assert changed(one, {}) == [1]
    assert changed({}, other) == [0]
    assert changed({"c": 5, **one}, other) == [0]
    assert changed(one, other, sizes=np.array([-1, 1])) == [0, 1]
    assert floor.changed_dicts([], sizes[:0], addresses[:0]) == []
    one["a"] = object()
    assert changed(one, other) == [0]
    one["a"] = held[0]
    assert changed(one, other) == []
    one["c"] = one.pop("b")  # another name, the same object
    assert changed(one, other) == []
    with pytest.raises(TypeError, match="dicts must be a list of dicts"):
        changed([3], other)
    with pytest.raises(ValueError, match="fewer addresses"):
        changed(one, other, sizes=np.array([2, 2]))
    with pytest.raises(ValueError, match="sizes"):
        changed(one)
    if floor is compiled:
        with pytest.raises(TypeError):
            floor.changed_dicts((one,), sizes, addresses)
