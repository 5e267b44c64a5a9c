"""The hash table by itself: against a dict, with fingerprints that all want the same place."""

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slow import either, thinned

from warmstore._native import floor
from warmstore.records.index.key_table import BUCKET, PARTITIONS, SLOTS, KeyTable
from warmstore.records.index.sample_keys import Keys, as_keys

_FIRST, _SECOND, _ALL = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, (1 << 64) - 1


def with_fingerprints(prints: Any) -> Keys:
    """Keys that have these fingerprints: splitmix64's finaliser backwards."""

    def before(mixed: int) -> int:
        mixed = (mixed ^ mixed >> 31 ^ mixed >> 62) * pow(_SECOND, -1, 1 << 64) & _ALL
        mixed = (mixed ^ mixed >> 27 ^ mixed >> 54) * pow(_FIRST, -1, 1 << 64) & _ALL
        return mixed ^ mixed >> 30 ^ mixed >> 60

    low = np.array([before(int(one)) for one in prints], np.uint64)
    return Keys(np.stack((low, np.zeros_like(low)), axis=1), False)


def partitions_of(keys: Keys) -> Any:
    """How many keys go to each partition."""
    counts = np.zeros(PARTITIONS, np.int64)
    floor.count_partitions(keys.halves, counts)
    return counts


class Memory:
    """A table in plain memory."""

    def __init__(self, buckets: int = 1 << 14) -> None:
        self.directory = np.zeros(PARTITIONS, np.int64)
        self.counts = np.zeros(PARTITIONS, np.int64)
        self.words = np.zeros(buckets * BUCKET, np.uint64)
        self.buckets = 1
        self.table = KeyTable(self.directory, self.counts, self.words, lambda: self.buckets)

    def allocate(self, buckets: int) -> None:
        assert self.buckets <= buckets <= len(self.words) // BUCKET
        self.buckets = buckets

    def insert(self, prints: Any, values: Any) -> None:
        self.table.insert(with_fingerprints(prints), np.array(values, np.int64), self.allocate)
        assert not self.words[:BUCKET].any()  # bucket 0 belongs to nobody
        assert self.table.is_sound(int(self.counts.sum()))

    def lookup(self, prints: Any) -> list[int]:
        return self.table.lookup(with_fingerprints(prints), 0)[0].tolist()


PRINT = (
    st.integers(1, (1 << 64) - 1)
    | st.integers(1, 40)  # one partition, side by side
    | st.integers(0, 60).map(lambda one: (7 << 52) + (1 << 51) + one)  # one bucket
    | st.integers(0, 60).map(lambda one: (6 << 52) - 1 - one)  # the last bucket, whose next is the first
)


@given(st.lists(st.lists(PRINT, max_size=60), max_size=5), st.lists(PRINT, max_size=20))
@settings(max_examples=either(30, 60))
def test_is_a_dict(batches: list[list[int]], asked: list[int]) -> None:
    memory, known, value = Memory(), dict[int, int](), 0
    for batch in batches:
        values = list(range(value, value + len(batch)))
        value += len(batch)
        memory.insert(batch, values)
        known.update(zip(batch, values, strict=True))
        assert memory.lookup([*known]) == [*known.values()]
        assert memory.lookup(asked) == [known.get(one, -1) for one in asked]
        assert memory.counts.sum() == len(known)


@pytest.mark.parametrize("count", [1, SLOTS - 1, SLOTS, SLOTS + 1, 500])
def test_fingerprints_that_share_one_bucket_overflow_into_the_next(count: int) -> None:
    memory = Memory()
    prints = [(3 << 52) + (one << 30) for one in range(1, count + 1)]
    for one in range(count):
        memory.insert(prints[one : one + 1], [one])
    assert memory.lookup(prints) == list(range(count))
    assert memory.lookup([(3 << 52) + (one << 30) for one in range(count + 1, count + 9)]) == [-1] * 8


def test_counts_lost_in_a_crash_do_no_harm() -> None:
    memory = Memory()
    prints = np.random.default_rng(0).integers(1, 1 << 52, 3000, np.uint64)  # one partition
    for first in range(0, 3000, 100):
        memory.insert(prints[first : first + 100], np.arange(first, first + 100))
        memory.counts[:] = 0
    assert memory.lookup(prints) == list(range(3000))


@pytest.mark.slow
def test_places_that_partitions_left_are_used_again() -> None:
    """Keys that fill the table evenly: it has room for little more than what they need."""
    memory = Memory(1 << 17)
    rng = np.random.default_rng(0)
    prints = (np.arange(400_000, dtype=np.uint64) % PARTITIONS << 52) | rng.integers(1, 1 << 52, 400_000, np.uint64)
    for first in range(0, len(prints), 10_000):
        memory.insert(prints[first : first + 10_000], np.arange(first, first + 10_000))
    used = int((1 << (memory.directory & 0xFF)).sum())
    assert memory.buckets < 1.5 * used  # without use of what was left it would be about twice
    assert memory.lookup(prints[::7]) == list(range(0, 400_000, 7))


def test_what_lies_in_a_place_that_was_left_is_not_taken_for_keys() -> None:
    """A place is cleared before it is another's."""
    memory = Memory()
    for row in range(59):  # partition 0, which doubles several times
        memory.insert([row + 1], [row])
    left = memory.words.copy()
    memory.insert([(5 << 52) + 1], [59])
    start = int(memory.directory[5]) >> 8
    assert left[start * BUCKET : (start + 1) * BUCKET].any()  # it was partition 0's
    assert np.count_nonzero(memory.words[start * BUCKET : (start + 1) * BUCKET]) == 2
    assert memory.lookup([*range(1, 60), (5 << 52) + 1]) == list(range(60))


def test_keys_are_found_while_their_partitions_move_and_their_places_are_taken() -> None:
    """Two threads look up what is there while a third one adds."""
    memory = Memory(1 << 16)
    rng = np.random.default_rng(0)
    prints = rng.integers(1, 1 << 58, 60_000, np.uint64)  # 64 partitions, which move often
    keys, rows = with_fingerprints(prints), np.arange(len(prints))
    stored, misses = [200], list[Any]()
    memory.table.insert(Keys(keys.halves[:200], False), rows[:200], memory.allocate)

    def look() -> None:
        reader = KeyTable(memory.directory, memory.counts, memory.words, lambda: memory.buckets)
        while (count := stored[0]) < len(prints):
            found, _ = reader.lookup(Keys(keys.halves[:count], False), len(prints))
            if not np.array_equal(found, rows[:count]):
                misses.append((count, np.flatnonzero(found != rows[:count])[:5]))

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for first in range(200, len(prints), 100):
            memory.table.insert(
                Keys(keys.halves[first : first + 100], False), rows[first : first + 100], memory.allocate
            )
            stored[0] = first + 100
    finally:
        stored[0] = len(prints)
        for reader in readers:
            reader.join()
    assert not misses


def soundly(change: Any) -> bool:
    memory = Memory()
    memory.insert(np.random.default_rng(0).integers(1, 1 << 63, 2000, np.uint64), range(2000))
    used = np.flatnonzero(memory.directory)
    change(memory, int(used[0]), int(used[1]))
    return memory.table.is_sound(2000)


@pytest.mark.parametrize("bit", thinned(4, range(64)))
def test_a_flipped_bit_of_a_place_is_seen_or_does_no_harm(bit: int) -> None:
    """A place may become that of unused room; never one outside the memory, or another partition's."""

    def flip(memory: Memory, one: int, two: int) -> None:
        memory.directory.view(np.uint64)[one] ^= np.uint64(1 << bit)
        changed.append((memory, one))

    changed: list[Any] = []
    if soundly(flip):
        memory, one = changed[0]
        entry = int(memory.directory[one])
        own = set(range(entry >> 8, (entry >> 8) + (1 << (entry & 0xFF))))
        assert max(own) < memory.buckets
        for other in np.flatnonzero(memory.directory).tolist():
            there = int(memory.directory[other])
            assert other == one or not own & set(range(there >> 8, (there >> 8) + (1 << (there & 0xFF))))


def test_what_is_not_sound() -> None:
    def nothing(memory: Memory, one: int, two: int) -> None: ...

    def twice(memory: Memory, one: int, two: int) -> None:
        memory.directory[one] = memory.directory[two]

    def outside(memory: Memory, one: int, two: int) -> None:
        memory.directory[one] = memory.buckets << 8

    def empty(memory: Memory, one: int, two: int) -> None:
        memory.directory[one] = 3  # in bucket 0

    def negative(memory: Memory, one: int, two: int) -> None:
        memory.counts[one] = -1

    def many(memory: Memory, one: int, two: int) -> None:
        memory.counts[one] = 2001

    assert soundly(nothing)
    assert not any(map(soundly, (twice, outside, empty, negative, many)))


def test_keys_are_spread() -> None:
    for ids in (np.arange(1 << 16), np.arange(1 << 16) << 40, [str(number) for number in range(1 << 16)]):
        counts = partitions_of(as_keys(ids)).reshape(16, -1).sum(axis=1)
        assert counts.min() > 0.8 * (1 << 16) / 16
    alike = Keys(np.array([[7, 7]], np.uint64), False)  # both halves alike mix to nothing, which is no fingerprint
    memory = Memory()
    memory.table.insert(alike, np.array([5]), memory.allocate)
    assert memory.table.lookup(alike, 6)[0].tolist() == [5]
    assert memory.lookup([1]) == [5]


@pytest.mark.parametrize(
    ("rows", "limit", "expected"),
    [([0, 1], 2, True), ([0, 2], 2, False), ([0, 1], 1, False), ([0], 2, False), ([], 0, True)],
)
def test_whether_all_are_there_below_a_limit(rows: list[int], limit: int, expected: bool) -> None:
    memory = Memory()
    keys = with_fingerprints([1 << 52, 2 << 52])
    if rows:
        memory.table.insert(Keys(keys.halves[: len(rows)], False), np.array(rows), memory.allocate)
    else:
        keys = Keys(keys.halves[:0], False)
    found, are_all = memory.table.lookup(keys, limit)
    assert found[: len(rows)].tolist() == rows
    assert are_all is expected


def test_small_ints_are_looked_for_in_the_direct_table_first() -> None:
    memory = Memory()
    keys = as_keys([0, 1, 2, 3, -1, "0"])
    memory.table.insert(keys, np.arange(6) + 100, memory.allocate)
    direct = np.array([1, 0, 3, 9, 9], np.int64)
    found, _ = memory.table.lookup(keys, 0, direct, 3)
    assert found.tolist() == [0, 101, 2, 103, 104, 105]


def test_another_process_made_the_table_larger() -> None:
    memory = Memory()
    memory.insert([1, 2], [0, 1])
    reader = KeyTable(memory.directory, memory.counts, memory.words, lambda: memory.buckets)
    keys = with_fingerprints(np.random.default_rng(0).integers(1, 1 << 63, 3000, np.uint64))
    for first in range(0, 3000, 500):
        part = Keys(keys.halves[first : first + 500], False)
        memory.table.insert(part, np.arange(first, first + 500), memory.allocate)
        assert reader.lookup(part, 3000)[1]
    assert reader.lookup(keys, 3000)[0].tolist() == list(range(3000))
