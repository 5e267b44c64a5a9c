"""How fast are random rows read that nobody has read since the machine started: from the disk, and checked?

Each contestant has a fresh process; before it starts, what the page cache holds of its files is dropped. It then reads
batches of rows of which none comes twice. Run as a module (`python -m benchmarks.cold NAME FOLDER COUNT SEED BATCHES`)
this file is such a process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.keepers import BATCH, READ_PEERS, WARMSTORE, WIDTH, Gather, Keeper, npy_fill
from benchmarks.private_memory import in_fresh_process
from benchmarks.report import Bar, Cell, Report, Table
from benchmarks.settings import Settings
from benchmarks.side_by_side import describe
from warmstore._native import floor

THREADS = 32
HEADER = 128  # bytes before the rows in a .npy file
ROW = 4 * WIDTH


@contextmanager
def pread_reader(folder: Path) -> Iterator[Gather]:
    """Threads of Python that read a file's rows, as one would write it by hand."""
    file = os.open(folder / "rows.npy", os.O_RDONLY)
    with ThreadPoolExecutor(THREADS) as pool:

        def gather(positions: np.ndarray) -> np.ndarray:
            rows, offsets = np.empty((len(positions), WIDTH), np.float32), (HEADER + positions * ROW).tolist()

            def read(first: int) -> None:
                for at in range(first, len(offsets), THREADS):
                    os.preadv(file, [rows[at].data], offsets[at])

            list(pool.map(read, range(THREADS)))
            return rows

        yield gather
    os.close(file)


@contextmanager
def native_pread_reader(folder: Path) -> Iterator[Gather]:
    """As many threads of C, which have nothing else to do: no keys, no checksums, one file."""
    file = os.open(folder / "rows.npy", os.O_RDONLY)

    def gather(positions: np.ndarray) -> np.ndarray:
        rows, missing = np.empty((len(positions), WIDTH), np.float32), np.zeros(len(positions), np.uint8)
        files, lengths = np.full(len(positions), file, np.int32), np.full(len(positions), ROW)
        floor.read(files, HEADER + positions * ROW, lengths, rows, missing, THREADS)
        return rows

    yield gather
    os.close(file)


LIMIT = Keeper(f"{THREADS} threads of pread, in C", native_pread_reader, fill=npy_fill)
KEEPERS = (
    LIMIT,
    WARMSTORE,
    Keeper(f"{THREADS} threads of pread, in Python", pread_reader, fill=npy_fill),
    *(one for one in READ_PEERS if one.name in ("numpy memmap, rows.take", "LMDB", "ArrayRecord", "Lance", "Vortex")),
)


def run(settings: Settings) -> Report:
    count, batches, rounds = settings.pick(400_000, 2_048), settings.pick(60, 2), settings.pick(3, 1)
    settings.break_in_disk(settings.pick(4_000_000_000, 1 << 24))

    def start(keeper: Keeper, folder: Path, seed: int) -> dict[str, Any]:
        return in_fresh_process(__name__, keeper.name, str(folder), str(count), str(seed), str(batches))

    found, troubles = in_turn(settings.folder, rows_of(count), rounds, start)
    seconds = {name: [one for each in all_ for one in each["seconds"]] for name, all_ in found.items()}
    rates = {name: len(all_) * BATCH / sum(all_) for name, all_ in seconds.items()}

    def row(keeper: Keeper) -> tuple[Cell, ...]:
        if keeper.name not in rates:
            return (keeper.name, None, None, None, None, None, None, troubles[keeper.name])
        taken = np.array(seconds[keeper.name]) * 1e3
        figures = np.median(taken), taken.mean(), np.percentile(taken, 99)
        share = rates[keeper.name] / rates[LIMIT.name]
        opening = np.median([each["open"] for each in found[keeper.name]]) * 1e3
        return (keeper.name, *map(float, figures), rates[keeper.name], share, float(opening), keeper.note)

    ours = rates.get(WARMSTORE.name)
    peers = [name for name in ("LMDB", "Lance", "Vortex") if name in rates]
    return Report(
        "cold",
        f"{BATCH} random rows of {ROW} bytes out of {count:,}, none of them in the page cache, by a fresh process.",
        (
            Table(
                f"{batches} batches each, in {rounds} processes",
                ("", "median ms", "mean ms", "p99 ms", "rows/s", "of the limit", "opening, ms", "note"),
                tuple(map(row, KEEPERS)),
            ),
        ),
        (
            Bar.at_least("warmstore's rate over the limit's", ours and ours / rates[LIMIT.name], 0.8),
            *(Bar.at_least(f"warmstore's rate over {name}'s", ours and ours / rates[name], 1.0) for name in peers),
        ),
        (
            "A mapped file reads around each row, 64 KiB or more: it reads most of this file within the first batches, "
            "which for one larger than memory is no way. warmstore and pread read the rows alone.",
            "warmstore compares each row with its checksum, which it reads too.",
            "Opening comes before the first batch: imports are not in it.",
        ),
        tuple(f"{WARMSTORE.name}: {troubles[WARMSTORE.name]}" for _ in (0,) if WARMSTORE.name in troubles),
    )


def in_turn(
    folder: Path, rows: np.ndarray, rounds: int, start: Callable[[Keeper, Path, int], dict[str, Any]]
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """Let each keeper measure, in turn: disks have neighbours too.

    Args:
        start: runs a keeper's fresh process over the folder of its files, in a round.

    Returns:
        By keeper what its processes found, and the last trouble that it had.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    troubles: dict[str, str] = {}
    for number in range(rounds):
        for keeper in KEEPERS:
            place = folder / (keeper.fill or keeper.writer).__name__
            try:
                if not place.exists():
                    keeper.keep(place, rows)
                drop_pages(place)
                found.setdefault(keeper.name, []).append(start(keeper, place, number))
            except Exception as error:
                troubles[keeper.name] = describe(error)
    return {name: all_ for name, all_ in found.items() if all_}, troubles


def rows_of(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, WIDTH), dtype=np.float32)


def drop_pages(folder: Path) -> None:
    """Have nothing of a folder's files in the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def read_cold(name: str, folder: Path, count: int, seed: int, batches: int) -> dict[str, object]:
    """What a fresh process measures; every batch is compared with the source once all are timed."""
    keeper = next(one for one in KEEPERS if one.name == name)
    order = np.random.default_rng(seed).permutation(count)
    asks, seconds, sums = np.split(order[: batches * BATCH], batches), [], []
    with keeper.reader(folder):
        pass  # imports
    drop_pages(folder)
    began = time.perf_counter()
    with keeper.reader(folder) as gather:
        opening = time.perf_counter() - began
        for ask in asks:
            began = time.perf_counter()
            rows = gather(ask)
            seconds.append(time.perf_counter() - began)
            sums.append(rows.sum(axis=1, dtype=np.float64))
    source = rows_of(count)
    if not all(
        np.array_equal(source[ask].sum(axis=1, dtype=np.float64), one) for ask, one in zip(asks, sums, strict=True)
    ):
        raise SystemExit("wrong values")
    return {"open": opening, "seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(read_cold(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))))
