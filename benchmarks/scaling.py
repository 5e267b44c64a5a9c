"""Do a flush, a gather and the memory of a process stay the same as a store grows from a thousand rows to millions?

One store and one cache grow through the sizes. At each, a few flushes and many gathers are timed beside the limit, and
a line is fitted to log(time) over log(rows): a slope of 0 is constant, 1 grows with the store.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

import warmstore as ws
from benchmarks.keepers import BATCH, flat_writer
from benchmarks.private_memory import in_fresh_process, private_bytes
from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings

WIDTH = 64  # float32 values in a row: 256 bytes
FLUSH = 256
FLUSHES, GATHERS = 12, 300
COLUMNS = ("rows", "plain flush ms", "store flush ms", "cache flush ms", "limit µs", "store gather µs", "cache hits µs")


def run(settings: Settings) -> Report:
    sizes = (1_024, 8_192) if settings.quick else (1_024, 8_192, 65_536, 524_288, 2_097_152)
    settings.break_in_disk(sizes[-1] * 4 * WIDTH * 5)
    store = ws.RecordStore.create(settings.folder / "store", {"x": ws.Array("float32", (WIDTH,))})
    cache = ws.FeatureCache(settings.folder / "cache", "rows", flush_every=FLUSH)
    (settings.folder / "plain").mkdir()
    rows, memory = [], []
    with flat_writer(settings.folder / "plain") as plain, closing(store), closing(cache):

        def add_to_store(numbers: np.ndarray) -> None:
            store.extend({"x": values_of(numbers)})
            store.flush()

        def add_to_cache(numbers: np.ndarray) -> None:
            cache.put_batch(names_of(numbers), torch.from_numpy(values_of(numbers)))
            cache.flush()

        # The first flush of a process also imports: not what is asked here.
        add_to_store(np.arange(FLUSH))
        add_to_cache(np.arange(FLUSH))
        plain(values_of(np.arange(FLUSH)))
        written = FLUSH
        for size in sizes:
            bulk = max(written, size - FLUSHES * FLUSH)
            for first in range(written, bulk, 65_536):  # growing there is not what is timed
                numbers = np.arange(first, min(first + 65_536, bulk))
                add_to_store(numbers)
                add_to_cache(numbers)
            asks = np.split(np.arange(bulk, size), max(1, (size - bulk) // FLUSH))
            writes = in_turn([lambda n: plain(values_of(n)), add_to_store, add_to_cache], asks)
            written = size
            reads = in_turn(*_gathers(settings.folder, size, cache))
            rows.append((size, *(1e3 * seconds for seconds in writes), *(1e6 * seconds for seconds in reads)))
            told = [in_fresh_process(__name__, str(settings.folder), kind, str(size)) for kind in OPENERS]
            memory.append((size, *(each["bytes"] / 2**20 for each in told)))
    slopes = [slope([row[0] for row in rows], [row[number] for row in rows]) for number in range(1, len(COLUMNS))]
    plain_slope, store_slope, cache_slope, limit_slope, gather_slope, hits_slope = slopes
    return Report(
        "scaling",
        f"One store and one cache (string keys) of {WIDTH * 4}-byte rows, from {sizes[0]:,} to {sizes[-1]:,} rows.",
        (
            Table(
                f"Medians: flushes of {FLUSH} rows, gathers of {BATCH}", COLUMNS, (*rows, ("slope (log-log)", *slopes))
            ),
            Table(
                "Private memory of a new process that opens and reads", ("rows", "store MiB", "cache MiB"), (*memory,)
            ),
        ),
        (
            Bar.at_most("slope of a store's flush, above the plain write's", store_slope - plain_slope, 0.1),
            Bar.at_most("slope of a cache's flush, above the plain write's", cache_slope - plain_slope, 0.1),
            Bar.at_most("slope of a store's gather, above the limit's", gather_slope - limit_slope, 0.1),
            Bar.at_most("slope of a cache's hits, above the limit's", hits_slope - limit_slope, 0.1),
        ),
        ("The limit's own slope is that of the processor's caches: few rows fit into them, many do not.",),
    )


def in_turn(calls: list[Callable], asks: list[np.ndarray]) -> list[float]:
    """The median seconds of each call, one after the other for every ask."""
    spent: list[list[float]] = [[] for _ in calls]
    for ask in asks:
        for call, times in zip(calls, spent, strict=True):
            began = time.perf_counter()
            call(ask)
            times.append(time.perf_counter() - began)
    return [float(np.median(times)) for times in spent]


def slope(sizes: list[int], times: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def values_of(numbers: np.ndarray) -> np.ndarray:
    return numbers[:, None].astype(np.float32) + np.arange(WIDTH, dtype=np.float32) / WIDTH


def names_of(numbers: np.ndarray) -> list[str]:
    return [f"train/{number:08d}.jpg" for number in numbers.tolist()]


def _gathers(folder: Path, size: int, cache: ws.FeatureCache) -> tuple[list[Callable], list]:
    """The limit, a store's gather and a cache's hits, and random asks for them; all checked once."""
    flat = torch.from_numpy(values_of(np.arange(size)))
    reader = ws.RecordStore.open(folder / "store")
    asks = [(numbers, names_of(numbers)) for numbers in np.random.default_rng(0).integers(0, size, (GATHERS, BATCH))]
    calls = [
        lambda ask: torch.index_select(flat, 0, torch.from_numpy(ask[0])),
        lambda ask: reader.gather(ask[0], fields=["x"])["x"],
        lambda ask: cache.get_batch(ask[1])[0],
    ]
    # The check also reads every row a first time, which is dearer (hashes are compared) and not the question here.
    for first in range(0, size, 8 * BATCH):
        numbers = np.arange(first, min(first + 8 * BATCH, size))
        for call in calls:
            assert np.array_equal(np.asarray(call((numbers, names_of(numbers)))), values_of(numbers)), "wrong values"
    return calls, asks


def open_store(folder: Path, numbers: np.ndarray) -> None:
    ws.RecordStore.open(folder / "store").gather(numbers, fields=["x"])


def open_cache(folder: Path, numbers: np.ndarray) -> None:
    ws.FeatureCache(folder / "cache", "rows").get_batch(names_of(numbers))


OPENERS = {"store": open_store, "cache": open_cache}


def main(folder: str, kind: str, size: str) -> None:
    """Print the private memory that opening and one gather cost this process."""
    before = private_bytes()
    OPENERS[kind](Path(folder), np.random.default_rng(0).integers(0, int(size), BATCH))
    print(json.dumps({"bytes": private_bytes() - before}))


if __name__ == "__main__":
    main(*sys.argv[1:])
