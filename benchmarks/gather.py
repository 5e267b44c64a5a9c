"""How fast are 256 random rows of 2 KiB read, and how near is that to the same rows in one flat array in RAM?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from benchmarks.keepers import (
    BATCH,
    FLUSH,
    READ_PEERS,
    WARMSTORE,
    WIDTH,
    Gather,
    Keeper,
    npy_reader,
    npy_take_reader,
)
from benchmarks.report import Bar, Report, broken_rows, timings
from benchmarks.settings import Settings
from benchmarks.side_by_side import Contestant, Row, WrongValuesError, named, over, side_by_side

LIMIT = "torch.index_select in RAM"
MEMMAP_READERS = (npy_reader, npy_take_reader)


def run(settings: Settings) -> Report:
    threads = torch.get_num_threads()
    count = settings.pick(400_000, 8_192)
    rows = np.random.default_rng(0).standard_normal((count, WIDTH), dtype=np.float32)
    # One permutation cut into batches: no row comes twice, so that "first read" stays a first read to the end.
    order = np.random.default_rng(1).permutation(count)
    asks = np.split(order[: count // BATCH * BATCH], count // BATCH)[:1000]

    @contextmanager
    def limit() -> Iterator[Gather]:
        flat = torch.from_numpy(rows)
        yield lambda positions: torch.index_select(flat, 0, torch.from_numpy(positions))

    def contestant(keeper: Keeper, *, warm: bool = True) -> Contestant:
        @contextmanager
        def setup() -> Iterator[Gather]:
            folder = settings.folder / (keeper.fill or keeper.writer).__name__
            if not folder.exists():
                keeper.keep(folder, rows)
            with keeper.reader(folder) as gather:
                if warm:
                    read_all(gather, rows)
                yield gather

        role = "warmstore" if keeper is WARMSTORE else "peer"
        return Contestant(keeper.name + ("" if warm else ", first read"), setup, role, keeper.note)

    def race(*contestants: Contestant) -> list[Row]:
        def right(positions: np.ndarray, result: np.ndarray) -> bool:
            return np.array_equal(result, rows[positions])

        return side_by_side([Contestant(LIMIT, limit, "limit"), *contestants], asks, right, reads=True)

    ours_and_first = (contestant(WARMSTORE), contestant(WARMSTORE, warm=False))
    found = race(*ours_and_first, *map(contestant, READ_PEERS))
    torch.set_num_threads(1)
    alone = race(*ours_and_first, *(contestant(keeper) for keeper in READ_PEERS if keeper.reader in MEMMAP_READERS))
    ours = named(found, WARMSTORE.name)
    memmaps = [named(found, keeper.name) for keeper in READ_PEERS if keeper.reader in MEMMAP_READERS]
    return Report(
        "gather",
        f"{BATCH} random rows of {WIDTH * 4} bytes out of {count:,}, in the page cache.",
        (
            timings(f"torch with {threads} threads", found),
            timings("torch with one thread, as in a DataLoader's workers", alone),
        ),
        (
            Bar.at_most("warmstore's gather over the limit's", ours.ratio, 1.6),
            *(Bar.at_most(f"warmstore's gather over {row.name}", over(ours, row), 1.0) for row in memmaps),
        ),
        (
            f"warmstore's rows were written in flushes of {FLUSH:,}.",
            "Where other work keeps the cores busy, torch's parallel calls suffer more than those of one thread: "
            "compare warmstore with the memmap in the second table then.",
            "Every contestant read every row once before, and was compared with the source; only for the row "
            '"first read" did this process see no row before: warmstore then checks each row\'s hash.',
        ),
        broken_rows(found) + broken_rows(alone),
    )


def read_all(gather: Gather, rows: np.ndarray, step: int = FLUSH) -> None:
    """Bring every row into the page cache, and see that it is the right one; `step` rows at a time."""
    for first in range(0, len(rows), step):
        positions = np.arange(first, min(first + step, len(rows)))
        if not np.array_equal(gather(positions), rows[positions]):
            raise WrongValuesError(f"within rows {first} to {first + step}")
