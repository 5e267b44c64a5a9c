"""How fast do flushes of rows reach the disk, beside the same bytes with one write and one fdatasync?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from benchmarks.gather import read_all
from benchmarks.keepers import FLAT, FLUSH, WARMSTORE, WIDTH, WRITE_PEERS, Append, Keeper
from benchmarks.report import Bar, Report, broken_rows, timings
from benchmarks.settings import Settings
from benchmarks.side_by_side import Contestant, named, side_by_side


def run(settings: Settings) -> Report:
    turns = settings.pick(60, 3)
    rows = np.random.default_rng(0).standard_normal((turns * FLUSH, WIDTH), dtype=np.float32)

    keepers = (FLAT, WARMSTORE, *WRITE_PEERS)
    settings.break_in_disk(len(keepers) * rows.nbytes * 3 // 2)

    def contestant(keeper: Keeper) -> Contestant:
        @contextmanager
        def setup() -> Iterator[Append]:
            folder = settings.folder / keeper.writer.__name__
            folder.mkdir()
            with keeper.writer(folder) as append:
                yield append
            with keeper.reader(folder) as gather:  # what was timed must also be there
                read_all(gather, rows)

        role = {FLAT.name: "limit", WARMSTORE.name: "warmstore"}.get(keeper.name, "peer")
        return Contestant(keeper.name, setup, role, keeper.note)

    found = side_by_side(
        [contestant(keeper) for keeper in keepers],
        np.split(rows, turns),
        lambda ask, result: True,  # each contestant's clean-up reads everything back
    )
    ours = named(found, WARMSTORE.name)
    return Report(
        "write",
        f"Flushes of {FLUSH:,} rows of {WIDTH * 4} bytes, each on disk before the next.",
        (timings("", found, unit="ms", megabytes=rows[:FLUSH].nbytes / 1e6),),
        (Bar.at_least("warmstore's rate over the limit's", 1 / ours.ratio if ours.ratio else None, 0.8),),
        ("All rows of every contestant were read back and compared with the source.",),
        broken_rows(found),
    )
