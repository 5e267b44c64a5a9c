"""How fast are random rows read that nobody has read since the machine started: from the disk, and checked?

Each contestant has a fresh process; before it starts, what the page cache holds of its files is dropped. It then reads
batches of rows of which none comes twice. Run as a module (`python -m benchmarks.cold NAME FOLDER COUNT SEED BATCHES`)
this file is such a process.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.disk_readers import KEEPERS, ROW, InTurn, drop_pages, rows_of
from benchmarks.keepers import BATCH, Keeper
from benchmarks.private_memory import in_fresh_process
from benchmarks.report import Report
from benchmarks.settings import Settings


def run(settings: Settings) -> Report:
    count, batches, rounds = settings.pick(400_000, 2_048), settings.pick(60, 2), settings.pick(3, 1)
    settings.break_in_disk(settings.pick(4_000_000_000, 1 << 24))

    def start(keeper: Keeper, folder: Path, seed: int) -> dict[str, Any]:
        return in_fresh_process(__name__, keeper.name, str(folder), str(count), str(seed), str(batches))

    measured = InTurn(settings.folder, rows_of(count), rounds, start)
    return Report(
        "cold",
        f"{BATCH} random rows of {ROW} bytes out of {count:,}, none of them in the page cache, by a fresh process.",
        (
            measured.table(
                f"{batches} batches each, in {rounds} processes",
                ("opening, ms",),
                lambda found: (float(np.median([each["open"] for each in found])) * 1e3,),
            ),
        ),
        measured.bars("LMDB", "Lance", "Vortex"),
        (
            "A mapped file reads around each row, 64 KiB or more: it reads most of this file within the first batches, "
            "which for one larger than memory is no way. warmstore and pread read the rows alone.",
            "warmstore compares each row with its checksum, which it reads too.",
            "Opening comes before the first batch: imports are not in it.",
        ),
        measured.broken(),
    )


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
