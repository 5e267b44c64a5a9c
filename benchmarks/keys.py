"""What do a hundred million keys cost: to add, open and look up, and in memory? Do rows of many writers cost more?

A cache of 8-byte rows is filled as feature caches fill theirs, key column and index, but in batches large enough to
get there in minutes; then fresh processes open it, and it takes turns with one of a million keys. Run as a module
(`python -m benchmarks.keys FOLDER KIND COUNT`) this file is such a process.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import warmstore as ws
from benchmarks.gather import read_all
from benchmarks.private_memory import in_fresh_process, private_bytes
from benchmarks.report import Bar, Cell, Report, Table, broken_rows, timings
from benchmarks.settings import Settings
from benchmarks.side_by_side import Call, Contestant, Row, WrongValuesError, over, side_by_side
from warmstore.features.outputs.output_schema import KEY
from warmstore.records.index.sample_keys import as_keys
from warmstore.records.keyed_store import IndexedStore

BATCH = 256  # keys in a lookup, rows in a gather
ADDED = 1 << 18  # keys added at once
STEP = 1 << 20  # keys whose rate counts as one: as short a pause would be somebody else's
LEAF = "leaf/output"  # the field of an output that is one tensor
ROW = 2048  # bytes in a gathered row
WRITERS = 100
READS = 200  # by a fresh process
NAME = "keys"

Numbers = np.ndarray


def dense(numbers: Numbers, count: int) -> Any:
    return numbers


def shuffled(numbers: Numbers, count: int) -> Any:
    """The same ints in an order of no locality: the factor is prime to counts that are made of twos and fives."""
    return numbers * 61_803_399 % count + numbers // count * count


def scattered(numbers: Numbers, count: int) -> Any:
    """Ints all over the 64 bits: the multiples of an odd number are distinct there."""
    return (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def names(numbers: Numbers, count: int) -> Any:
    return [f"train/{number:09d}.jpg" for number in numbers.tolist()]


@dataclass(frozen=True)
class Kind:
    """A sort of ids: `ids_of(numbers, count)` are those of rows with these numbers; from `count` on they are absent."""

    name: str
    ids_of: Callable[[Numbers, int], Any]
    count: int
    bar: float  # million keys added a second


KINDS = (
    Kind("ints in order", dense, 100_000_000, 15.0),
    Kind("ints shuffled", shuffled, 100_000_000, 6.0),
    Kind("random 64-bit ints", scattered, 20_000_000, 6.0),
    Kind("strings", names, 20_000_000, 6.0),
)


def run(settings: Settings) -> Report:
    few = settings.pick(1_000_000, 20_000)
    settings.break_in_disk(settings.pick(6_000_000_000, 1 << 24))
    grown, opened, lookups, bars, broken = [], [], [], [], []
    for kind in KINDS:
        many = settings.pick(kind.count, 40_000)
        small, large = settings.folder / "few", settings.folder / "many"
        fill(small, kind, few)
        rate, slowest, size = fill(large, kind, many)
        grown.append((kind.name, many, rate / 1e6, slowest / 1e6, size / many))
        runs = [in_fresh_process(__name__, str(large), kind.name, str(many)) for _ in range(settings.pick(5, 1))]
        found = {what: [run[what] for run in runs] for what in ("open", "first", "bytes")}
        opening, first, own = (float(np.median(figures)) for figures in found.values())
        opened.append((kind.name, many, opening * 1e3, max(found["open"]) * 1e3, first * 1e3, own / 1e6))
        compared = looked_up(settings, kind, {small: few, large: many})
        lookups += [(f"{kind.name}: {what}", many, *compare(two)) for what, two in compared.items()]
        broken += [trouble for two in compared.values() for trouble in broken_rows(two)]
        present, absent = (two[1].ratio for two in list(compared.values())[:2])
        bars += [
            Bar.at_least(f"{kind.name}: million keys added a second, the slowest tenth", slowest / 1e6, kind.bar),
            Bar.at_most(f"{kind.name}: seconds to open, median", opening, 1.0),
            Bar.at_most(f"{kind.name}: private MB after lookups", own / 1e6, 100.0),
            Bar.at_most(f"{kind.name}: lookup of present keys among {many:,} over {few:,}", present, 2.0),
            Bar.at_most(f"{kind.name}: lookup of absent keys among {many:,} over {few:,}", absent, 2.0),
        ]
        shutil.rmtree(small)
        shutil.rmtree(large)
    gathers = gathered(settings)
    one, *hundred = (row for row in gathers if row.role == "warmstore")
    bars += [Bar.at_most(f"gather: {row.name} over {one.name}", over(row, one), 1.5) for row in hundred]
    return Report(
        "keys",
        f"Feature caches of 8-byte rows: keys added, opened, {BATCH} looked up. And {WRITERS} writers' rows gathered.",
        (
            Table(
                f"Adding keys to the index, after every {ADDED:,} rows",
                ("", "keys", "M keys/s", "slowest tenth, M keys/s", "bytes a key"),
                tuple(grown),
            ),
            Table(
                "A fresh process opens the cache, store and index, and reads",
                ("", "keys", "open, median ms", "open, worst ms", f"first {BATCH}, median ms", "private MB"),
                tuple(opened),
            ),
            Table(
                f"{BATCH} random keys at a time, in turn among {few:,} and among many",
                ("", "many", "few, median µs", "many, median µs", "many, p99 µs", "many over few", "note"),
                tuple(lookups),
            ),
            timings(f"Gathering {BATCH} random rows of {ROW:,} bytes", gathers),
        ),
        tuple(bars),
        (
            "Adding is the index's time alone, which includes reading the keys of the new rows; slowest tenth: of "
            f"steps of {STEP:,} keys. 20 million keys instead of 100 bound the time and the disk that this takes.",
            "Index: keys in hand to proposed rows. Values: ids to values, each key confirmed at its row.",
            f"Private: anonymous and private dirty memory gained from before opening to after {READS} reads.",
            f"The {WRITERS} writers are stores opened for writing in one process, each with a chunk of its own, that "
            "commit in turn. In the uneven one, commits have 200 to 600 rows.",
        ),
        (*broken, *broken_rows(gathers)),
    )


def fill(folder: Path, kind: Kind, count: int) -> tuple[float, float, int]:
    """Make a cache with `count` keys. Returns the index's keys a second, of all and in the slowest tenth, and its size.

    The first row goes through the cache, which makes the store; the others are what it would write.
    """
    with closing(ws.FeatureCache(folder, NAME)) as cache:
        cache.put_batch(kind.ids_of(np.arange(1), count), torch.zeros(1, dtype=torch.int64))
    added, seconds = [], []
    with closing(ws.RecordStore.open(folder / NAME, "a")) as store:
        index = IndexedStore(store, KEY).index
        for first in range(1, count, ADDED):
            numbers = np.arange(first, min(first + ADDED, count))
            store.extend({KEY: as_keys(kind.ids_of(numbers, count)).halves, LEAF: numbers})
            store.flush()
            began = time.perf_counter()
            index.catch_up(len(store))
            seconds.append(time.perf_counter() - began)
            added.append(len(numbers))
        size = index.nbytes
        index.sync()
        index.close()
    step = np.cumsum(added) // (STEP + 1)
    rates = np.bincount(step, added) / np.bincount(step, seconds)
    slowest = np.sort(rates)[: max(len(rates) // 10, 1)]
    return sum(added) / sum(seconds), float(slowest.mean()), size


def compare(rows: list[Row]) -> tuple[Cell, ...]:
    few, many = rows
    micro = [None if seconds is None else seconds * 1e6 for seconds in (few.median, many.median, many.p99)]
    return (*micro, many.ratio, many.trouble)


def looked_up(settings: Settings, kind: Kind, folders: dict[Path, int]) -> dict[str, list[Row]]:
    """Lookups in the small cache and in the large one, in turn."""
    rng = np.random.default_rng(0)
    turns, checked = settings.pick(2_000, 20), settings.pick(1 << 22, 1 << 16)  # which also maps what lookups touch

    def lookup(store: ws.RecordStore, count: int) -> Call:
        index = IndexedStore(store, KEY).index
        index.catch_up(len(store))
        for _ in range(0, checked, 1 << 16):
            numbers = rng.integers(0, count, min(1 << 16, count))
            if not np.array_equal(index.lookup(as_keys(kind.ids_of(numbers, count))), numbers):
                raise WrongValuesError("in the index")
        return index.lookup

    @contextmanager
    def opened_index(folder: Path) -> Iterator[Call]:
        with closing(ws.RecordStore.open(folder / NAME)) as store:
            call = lookup(store, folders[folder])
            yield lambda ask: (folder, call(ask[folder][1]))

    @contextmanager
    def opened_cache(folder: Path) -> Iterator[Call]:
        count = folders[folder]
        with closing(ws.FeatureCache(folder, NAME, read_only=True)) as cache:
            for _ in range(0, checked, 1 << 16):
                numbers = rng.integers(0, count, min(1 << 16, count))
                if not np.array_equal(cache.get_batch(kind.ids_of(numbers, count))[0], numbers):
                    raise WrongValuesError("in the cache")
            yield lambda ask: (folder, np.asarray(cache.get_batch(ask[folder][1])[0]))

    def compared(opened: Callable, prepared: Callable, first: int) -> list[Row]:
        def contestant(folder: Path, count: int, role: Any) -> Contestant:
            return Contestant(f"among {count:,}", lambda: opened(folder), role)

        asks = []
        for _ in range(turns):
            numbers = {folder: rng.integers(0, count, BATCH) for folder, count in folders.items()}
            asks.append(
                {
                    folder: (n, prepared(kind.ids_of(n + first * folders[folder], folders[folder])))
                    for folder, n in numbers.items()
                }
            )
        small, large = folders.items()
        return side_by_side(
            [contestant(*small, "limit"), contestant(*large, "warmstore")],
            asks,
            lambda ask, result: np.array_equal(result[1], np.full(BATCH, -1) if first else ask[result[0]][0]),
            reads=True,
        )

    return {
        "present, index": compared(opened_index, as_keys, 0),
        "absent, index": compared(opened_index, as_keys, 1),
        "present, values": compared(opened_cache, lambda ids: ids, 0),
    }


def gathered(settings: Settings) -> list[Row]:
    """Random rows of one writer's chunk, and of a hundred's."""
    count = settings.pick(400_000, 4_000)
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 1 << 62, (count, ROW // 8))
    commit = settings.pick(400, 20)
    even = np.arange(0, count + 1, commit)
    uneven = np.cumsum(rng.integers(commit // 2, commit + commit // 2, count // commit))
    uneven = np.concatenate(([0], uneven[uneven < count], [count]))

    @contextmanager
    def limit() -> Iterator[Call]:
        flat = torch.from_numpy(rows)
        yield lambda positions: torch.index_select(flat, 0, torch.from_numpy(positions)).numpy()

    def contestant(name: str, writers: int, commits: Numbers) -> Contestant:
        @contextmanager
        def setup() -> Iterator[Call]:
            folder = settings.folder / name
            write(folder, rows, writers, commits)
            with closing(ws.RecordStore.open(folder)) as store:
                read_all(lambda positions: store.gather(positions)["x"], rows)
                yield lambda positions: store.gather(positions)["x"]

        return Contestant(name, setup, "warmstore")

    return side_by_side(
        [
            Contestant("torch.index_select in RAM", limit, "limit"),
            contestant("1 writer", 1, even),
            contestant(f"{WRITERS} writers", WRITERS, even),
            contestant(f"{WRITERS} writers, uneven commits", WRITERS, uneven),
        ],
        [rng.integers(0, count, BATCH) for _ in range(settings.pick(2_000, 20))],
        lambda positions, result: np.array_equal(result, rows[positions]),
        reads=True,
    )


def write(folder: Path, rows: Numbers, writers: int, commits: Numbers) -> None:
    """Commit rows [commits[i], commits[i + 1]) by writer after writer in turn."""
    with ExitStack() as stack:
        stores = [stack.enter_context(ws.RecordStore.create(folder, {"x": ws.Array("int64", rows.shape[1:])}))]
        stores += [stack.enter_context(ws.RecordStore.open(folder, "a")) for _ in range(writers - 1)]
        for number, (first, last) in enumerate(pairwise(commits.tolist())):
            stores[number % writers].extend({"x": rows[first:last]})
            stores[number % writers].flush()


def main(folder: str, kind: str, count: str) -> None:
    """Prints {"open", "first", "bytes"}: seconds to open and for the first read, bytes gained after all reads."""
    ids_of = next(one.ids_of for one in KINDS if one.name == kind)
    rng = np.random.default_rng()
    before, began = private_bytes(), time.perf_counter()
    cache = ws.FeatureCache(folder, NAME)
    seconds = [time.perf_counter() - began]
    for _ in range(READS):
        numbers = rng.integers(0, int(count), BATCH)
        ids = ids_of(numbers, int(count))
        began = time.perf_counter()
        values, missing = cache.get_batch(ids)
        seconds.append(time.perf_counter() - began)
        assert len(missing) == 0, f"{len(missing)} keys missing"
        assert np.array_equal(np.asarray(values), numbers), "wrong values"
    print(json.dumps({"open": seconds[0], "first": seconds[1], "bytes": private_bytes() - before}))
    cache.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
