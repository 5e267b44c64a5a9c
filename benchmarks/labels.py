"""How fast are labels, 8 bytes each, added and gathered, where what a row costs is all there is?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from benchmarks.gather import read_all
from benchmarks.keepers import FLAT, FLUSH, Append, Gather, Keeper
from benchmarks.label_keepers import FLUSHES, ONE_BATCH, READ_PEERS, WRITERS
from benchmarks.report import Bar, Report, broken_rows, timings
from benchmarks.settings import Settings
from benchmarks.side_by_side import Contestant, Row, named, over, side_by_side

BATCH = 4096  # labels in a gather
LIMIT, TAKE = "torch.index_select in RAM", "numpy take in RAM"


def run(settings: Settings) -> Report:
    count = settings.pick(1_000_000, 10 * FLUSH)
    settings.break_in_disk(count * 1_500)
    calls, flushes = settings.pick(5, 2), settings.pick(100, 3)
    labels = np.random.default_rng(0).integers(0, 1 << 62, calls * count)
    at_once = written(settings, "at-once", np.split(labels, calls))
    flushed = written(settings, "flushed", np.split(labels[: flushes * FLUSH], flushes))
    kept = labels[:count]
    found = gathered(settings, kept)
    ours = named(at_once, "warmstore")
    return Report(
        "labels",
        f"{count:,} labels of 8 bytes.",
        (
            timings(f"Adding {count:,} in one call, on disk when it returns", at_once, unit="ms", records=count),
            timings(f"Adding {FLUSH:,} in one call, on disk when it returns", flushed, unit="ms", records=FLUSH),
            timings(f"Gathering {BATCH:,} random ones, in the page cache", found, records=BATCH),
        ),
        (
            Bar.at_least(
                f"warmstore's rows a second, {count:,} in one call",
                count / ours.median if ours.median else None,
                2_000_000.0,
            ),
            *(
                Bar.at_most(
                    f"gather over {TAKE}, written {how}", over(named(found, keeper.name), named(found, TAKE)), 1.2
                )
                for keeper, how in ((ONE_BATCH, "in one batch"), (FLUSHES, f"in flushes of {FLUSH:,}"))
            ),
        ),
        (
            "All labels of every contestant were read back and compared with the source.",
            'Only for the row "first read" did this process see no label before: warmstore then checks its hash.',
            "HF datasets cannot be appended to on disk and has no row there.",
        ),
        broken_rows(at_once) + broken_rows(flushed) + broken_rows(found),
    )


def written(settings: Settings, name: str, parts: list[np.ndarray]) -> list[Row]:
    """Every contestant appends every part."""
    labels = np.concatenate(parts)
    (settings.folder / name).mkdir()

    def contestant(keeper: Keeper) -> Contestant:
        @contextmanager
        def setup() -> Iterator[Append]:
            folder = settings.folder / name / keeper.writer.__name__
            folder.mkdir()
            with keeper.writer(folder) as append:
                yield append
            with keeper.reader(folder) as gather:
                read_all(gather, labels, 1 << 18)

        role = {FLAT.name: "limit", "warmstore": "warmstore"}.get(keeper.name, "peer")
        return Contestant(keeper.name, setup, role, keeper.note)

    return side_by_side(list(map(contestant, WRITERS)), parts, lambda ask, result: True)  # the clean-up reads back


def gathered(settings: Settings, labels: np.ndarray) -> list[Row]:
    """Every contestant reads the same random labels."""
    order = np.random.default_rng(1).permutation(len(labels))
    asks = np.split(order[: len(order) // BATCH * BATCH], len(order) // BATCH)  # none twice: a first read stays one

    @contextmanager
    def limit() -> Iterator[Gather]:
        flat = torch.from_numpy(labels)
        yield lambda positions: torch.index_select(flat, 0, torch.from_numpy(positions))

    @contextmanager
    def take() -> Iterator[Gather]:
        yield lambda positions: labels.take(positions)

    def contestant(keeper: Keeper, *, warm: bool = True) -> Contestant:
        @contextmanager
        def setup() -> Iterator[Gather]:
            folder = settings.folder / keeper.name.replace(" ", "-")
            if not folder.exists():
                keeper.keep(folder, labels)
            with keeper.reader(folder) as gather:
                if warm:
                    read_all(gather, labels, BATCH)
                yield gather

        role = "warmstore" if keeper in (ONE_BATCH, FLUSHES) else "peer"
        return Contestant(keeper.name + ("" if warm else ", first read"), setup, role, keeper.note)

    return side_by_side(
        [
            Contestant(LIMIT, limit, "limit"),
            Contestant(TAKE, take),
            *map(contestant, (ONE_BATCH, FLUSHES)),
            contestant(ONE_BATCH, warm=False),
            *map(contestant, READ_PEERS),
        ],
        asks,
        lambda positions, result: np.array_equal(result, labels[positions]),
        reads=True,
    )
