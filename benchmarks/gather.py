"""How fast are 256 random rows of 2 KiB read, and how near is that to the same rows in one flat array in RAM?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

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
from benchmarks.side_by_side import Contestant, Row, WrongValuesError, busy_processes, named, over, side_by_side

LIMIT = "torch.index_select in RAM"
MEMMAP_READERS = (npy_reader, npy_take_reader)
LOOP = 200
"""Calls in a row of one contestant, where a loop is measured: longer than the threads of the one before stay awake."""
PAUSE = 0.002
"""Seconds of other work between two calls."""


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
            folder = settings.folder / keeper.reader.__name__  # each has its own, and finds nothing that others read
            if not folder.exists():
                keeper.keep(folder, rows)
            with keeper.reader(folder) as gather:
                if warm:
                    read_all(gather, rows)
                yield gather

        role = "warmstore" if keeper is WARMSTORE else "peer"
        return Contestant(keeper.name + ("" if warm else ", first read"), setup, role, keeper.note)

    def race(*contestants: Contestant, pause: float = 0, loop: int = 1, times: int = 1) -> list[Row]:
        def right(positions: np.ndarray, result: np.ndarray) -> bool:
            return np.array_equal(result, rows[positions])

        everyone = [Contestant(LIMIT, limit, "limit"), *contestants]
        return side_by_side(everyone, asks * times, right, reads=True, pause=pause, loop=loop)

    maps = [keeper for keeper in READ_PEERS if keeper.reader in MEMMAP_READERS]
    few = (contestant(WARMSTORE), *map(contestant, maps))
    loop = race(*few, loop=LOOP)
    found = race(contestant(WARMSTORE), contestant(WARMSTORE, warm=False), *map(contestant, READ_PEERS))
    between = race(*few, pause=PAUSE)
    with busy_processes(threads):
        # One call in fifty waits 4 ms for its processor: many calls make a mean.
        busy, busy_between = race(*few, times=5), race(*few, pause=PAUSE, times=2)
    torch.set_num_threads(1)
    alone = race(contestant(WARMSTORE), contestant(WARMSTORE, warm=False), *map(contestant, maps))
    ours, best = named(loop, WARMSTORE.name), _best(loop, maps)
    take = next(keeper.name for keeper in maps if keeper.reader is npy_take_reader)
    hard = {f"{PAUSE * 1e3:.0f} ms between": between, "busy": busy, "busy, with pauses": busy_between}
    return Report(
        "gather",
        f"{BATCH} random rows of {WIDTH * 4} bytes out of {count:,}, in the page cache.",
        (
            timings(f"in a loop, torch with {threads} threads", loop),
            timings("call by call", found),
            timings(f"{PAUSE * 1e3:.0f} ms between two calls", between),
            timings(f"beside {threads} busy processes", busy),
            timings(f"beside {threads} busy processes, {PAUSE * 1e3:.0f} ms between two calls", busy_between),
            timings("torch with one thread, as in a DataLoader's workers", alone),
        ),
        (
            Bar.at_most("warmstore's gather over the limit's", ours.ratio, 1.1),
            Bar.at_most(f"warmstore's gather over {best.name}", over(ours, best), 0.7),
            *(
                Bar.at_most(f"{name}: warmstore's {figure} over {take}'s", _over(rows_, take, figure), most)
                for name, rows_ in hard.items()
                for figure, most in (("mean", 1.05), ("p99", 1.5))
            ),
            Bar.at_most(f"one thread: warmstore's gather over {take}", _over(alone, take, "median"), 1.05),
        ),
        (
            f"warmstore's rows were written in flushes of {FLUSH:,}.",
            "With pauses, threads that would have waited for more have gone to sleep. Busy processes count, as many as "
            "there are processors.",
            "Every contestant read every row once before, and was compared with the source; only for the row "
            '"first read" did this process see no row before: warmstore then checks each row\'s hash.',
        ),
        broken_rows(loop) + broken_rows(found) + broken_rows(alone),
    )


def _best(rows: list[Row], keepers: Sequence[Keeper]) -> Row:
    return min((named(rows, keeper.name) for keeper in keepers), key=lambda row: row.median or np.inf)


def _over(rows: list[Row], name: str, figure: Literal["median", "mean", "p99"]) -> float | None:
    return over(named(rows, WARMSTORE.name), named(rows, name), figure)


def read_all(gather: Gather, rows: np.ndarray, step: int = FLUSH) -> None:
    """Bring every row into the page cache, and see that it is the right one; `step` rows at a time."""
    for first in range(0, len(rows), step):
        positions = np.arange(first, min(first + step, len(rows)))
        if not np.array_equal(gather(positions), rows[positions]):
            raise WrongValuesError(f"within rows {first} to {first + step}")
