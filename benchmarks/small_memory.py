"""How fast are random rows read of a file that memory cannot hold, once all of it was read?

Each contestant is a fresh process in a control group that allows half of what the file has. It reads all rows in order,
then random batches. Run as a module (`python -m benchmarks.small_memory NAME FOLDER COUNT BATCHES GROUP`) this file is
such a process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.faults.memory_cgroup import MemoryCgroup

from benchmarks.cold import KEEPERS, LIMIT, ROW, in_turn, rows_of
from benchmarks.keepers import BATCH, WARMSTORE, Keeper
from benchmarks.private_memory import in_fresh_process
from benchmarks.report import Bar, Cell, Report, Table
from benchmarks.settings import Settings


def run(settings: Settings) -> Report:
    count, batches, rounds = settings.pick(200_000, 65_536), settings.pick(60, 2), settings.pick(3, 1)
    question = (
        f"{BATCH} random rows of {ROW} bytes out of {count:,}, in a control group that allows half of their bytes, "
        "after a pass over all rows in order."
    )
    try:
        with MemoryCgroup.made():
            pass
    except OSError as error:
        return Report("small_memory", question, (), notes=(f"no control groups of memory can be made: {error}",))
    settings.break_in_disk(settings.pick(2_000_000_000, 1 << 24))

    def start(keeper: Keeper, folder: Path, _: int) -> dict[str, Any]:
        with MemoryCgroup.made() as group:
            group.leave(count * ROW // 2)
            return in_fresh_process(__name__, keeper.name, str(folder), str(count), str(batches), str(group.folder))

    found, troubles = in_turn(settings.folder, rows_of(count), rounds, start)
    seconds = {name: [one for each in all_ for one in each["seconds"]] for name, all_ in found.items()}
    rates = {name: len(all_) * BATCH / sum(all_) for name, all_ in seconds.items()}

    def row(name: str, note: str) -> tuple[Cell, ...]:
        if name not in rates:
            return (name, None, None, None, None, None, troubles[name])
        each = np.array(seconds[name]) * 1e3
        figures = float(np.median(each)), float(each.mean()), float(np.percentile(each, 99))
        return (name, *figures, rates[name], rates[name] / rates[LIMIT.name], note)

    ours = rates.get(WARMSTORE.name)
    peers = [name for name in ("numpy memmap, rows.take", "LMDB", "Lance") if name in rates]
    return Report(
        "small_memory",
        question,
        (
            Table(
                f"{batches} batches each, in {rounds} processes",
                ("", "median ms", "mean ms", "p99 ms", "rows/s", "of the limit", "note"),
                tuple(row(keeper.name, keeper.note) for keeper in KEEPERS),
            ),
        ),
        (
            Bar.at_least("warmstore's rate over the limit's", ours and ours / rates[LIMIT.name], 0.8),
            *(Bar.at_least(f"warmstore's rate over {name}'s", ours and ours / rates[name], 1.0) for name in peers),
        ),
        (
            "A page fault of a mapped file reads 64 KiB around a row, which takes the memory of as many rows that were "
            "there. warmstore reads rows from its files where memory cannot hold them.",
        ),
        tuple(f"{WARMSTORE.name}: {troubles[WARMSTORE.name]}" for _ in (0,) if WARMSTORE.name in troubles),
    )


def read_twice(name: str, folder: Path, count: int, batches: int, group: Path) -> dict[str, object]:
    """What a fresh process measures; every batch is compared with the source, between the timed ones."""
    keeper = next(one for one in KEEPERS if one.name == name)
    source = rows_of(count)
    asks = np.random.default_rng(0).permutation(count)[: batches * BATCH].reshape(batches, BATCH)
    (group / "cgroup.procs").write_text(str(os.getpid()))
    seconds = []
    with keeper.reader(folder) as gather:
        for first in range(0, count, BATCH):
            gather(np.arange(first, min(first + BATCH, count)))
        for ask in asks:
            began = time.perf_counter()
            rows = gather(ask)
            seconds.append(time.perf_counter() - began)
            if not np.array_equal(rows, source[ask]):
                raise SystemExit("wrong values")
    return {"seconds": seconds}


if __name__ == "__main__":
    name, folder, count, batches, group = sys.argv[1:]
    print(json.dumps(read_twice(name, Path(folder), int(count), int(batches), Path(group))))
