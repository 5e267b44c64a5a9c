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

from benchmarks.disk_readers import KEEPERS, ROW, InTurn, rows_of
from benchmarks.keepers import BATCH, Keeper
from benchmarks.private_memory import in_fresh_process
from benchmarks.report import Report
from benchmarks.settings import Settings


def run(settings: Settings) -> Report:
    count, batches, rounds = settings.pick(200_000, 65_536), settings.pick(60, 2), settings.pick(3, 1)
    question = (
        f"{BATCH} random rows of {ROW} bytes out of {count:,}, in a control group that allows half of their bytes, "
        "after a pass over all rows in order."
    )
    if why_not := MemoryCgroup.why_not():
        return Report("small_memory", question, (), notes=(why_not,))
    settings.break_in_disk(settings.pick(2_000_000_000, 1 << 24))

    def start(keeper: Keeper, folder: Path, _: int) -> dict[str, Any]:
        with MemoryCgroup.made() as group:
            group.leave(count * ROW // 2)
            return in_fresh_process(__name__, keeper.name, str(folder), str(count), str(batches), str(group.folder))

    measured = InTurn(settings.folder, rows_of(count), rounds, start)
    return Report(
        "small_memory",
        question,
        (measured.table(f"{batches} batches each, in {rounds} processes", (), lambda _: ()),),
        measured.bars("numpy memmap, rows.take", "LMDB", "Lance"),
        (
            "A page fault of a mapped file reads 64 KiB around a row, which takes the memory of as many rows that were "
            "there. warmstore reads rows from its files where memory cannot hold them.",
        ),
        measured.broken(),
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
