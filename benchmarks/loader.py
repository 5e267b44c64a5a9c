"""How fast do shuffled batches come out of a loader, and how near is that to the bare gather of their rows?"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.feeders import (
    BATCH,
    GRAIN,
    GRAIN_BY_HAND,
    LIMIT,
    LOADERX,
    LOADERX_FEEDERS,
    OTHERS,
    OURS,
    OURS_IN_TORCH,
    TAKE,
    TORCH,
    Epoch,
    Feeder,
)
from benchmarks.gather import PAUSE
from benchmarks.keepers import WIDTH, Keeper
from benchmarks.report import Bar, Report, broken_rows, timings
from benchmarks.settings import Settings
from benchmarks.side_by_side import (
    Call,
    Contestant,
    Role,
    Row,
    WrongValuesError,
    busy_processes,
    named,
    over,
    side_by_side,
)

SMALL = 32 * BATCH  # rows of the data that every contestant's epoch is checked on
SETTLE = 8  # batches: as many as any contestant makes ahead
LOOP = 64  # batches in a row of one contestant, where batches are timed one by one


def run(settings: Settings) -> Report:
    data = Data(settings, _numbered(settings.pick(1562 * BATCH, SMALL)))
    together, few = settings.pick(64, 2), settings.pick(8, 2)
    found = raced(data, (LIMIT, OURS, OURS_IN_TORCH, *TORCH, *LOADERX_FEEDERS), together, settings.pick(18, 3))
    slow = raced(data, (LIMIT, OURS, *GRAIN_BY_HAND, *GRAIN), few, settings.pick(5, 2))
    data.drop(LOADERX)
    others = raced(data, (LIMIT, OURS, *OTHERS), together, settings.pick(12, 3))
    begun = started(data, (LIMIT, OURS, OURS_IN_TORCH, TORCH[0], TORCH[2], GRAIN[0]), settings.pick(15, 2))
    steps, few_feeders = settings.pick(10 * LOOP, SMALL // BATCH // 2), (LIMIT, OURS, TAKE, TORCH[0])
    between = stepped(data, few_feeders, steps, PAUSE)
    busy_count = torch.get_num_threads()
    with busy_processes(busy_count):
        busy, busy_between = stepped(data, few_feeders, steps), stepped(data, few_feeders, steps, PAUSE)
    ours, bare = named(found, OURS.name), named(found, LIMIT.name)
    start = named(begun, OURS.name).median
    count = len(data.rows)
    return Report(
        "loader",
        f"Batches of {BATCH} shuffled rows of {WIDTH * 4} bytes out of {count:,}, in the page cache.",
        (
            timings(f"A call: {together} batches", found, unit="ms", records=together * BATCH),
            timings(f"Grain over ArrayRecord; a call: {few} batches", slow, unit="ms", records=few * BATCH),
            timings(f"Other ways; a call: {together} batches", others, unit="ms", records=together * BATCH),
            timings("A new loader over an open source, until its first batch", begun, unit="ms"),
            timings(f"A batch, {PAUSE * 1e3:.0f} ms between two", between),
            timings(f"A batch, beside {busy_count} busy processes", busy),
            timings(f"A batch, beside {busy_count} busy processes, {PAUSE * 1e3:.0f} ms between two", busy_between),
        ),
        (
            Bar.at_least("warmstore's rate over the bare gather's", over(bare, ours), 0.95),
            Bar.at_least("warmstore's rate over torch's DataLoader's, at its best", _ahead(found, TORCH), 3.0),
            Bar.at_least("warmstore's rate over Grain's as documented, at its best", _ahead(slow, GRAIN), 3.0),
            Bar.at_least("warmstore's rate over loaderx's, at its best", _ahead(found, LOADERX_FEEDERS), 1.0),
            Bar.at_most(
                "torch's DataLoader over warmstore's, on a store", over(named(found, OURS_IN_TORCH.name), ours), 1.5
            ),
            Bar.at_least(
                f"{PAUSE * 1e3:.0f} ms between: warmstore's mean rate over the bare gather's",
                _rate(between, LIMIT),
                0.9,
            ),
            Bar.at_least(f"busy: warmstore's mean rate over {TAKE.name}'s", _rate(busy, TAKE), 0.8),
            Bar.at_least(
                f"busy, with pauses: warmstore's mean rate over {TAKE.name}'s", _rate(busy_between, TAKE), 0.8
            ),
            Bar.at_most("ms until the first batch of a new Loader", start * 1e3 if start else None, 20.0),
        ),
        (
            f"Each call goes on in the same epoch. Before it {SETTLE} batches are taken untimed, so that what workers "
            "made ahead in the turns of the others is used up.",
            f"Every contestant gave each of {SMALL:,} rows exactly once in an epoch, and so again all {count:,} before "
            "it was timed; but for Grain, whose file was only read through. The last batch of every call "
            "is compared with the source.",
            f"Where batches are timed one by one, every contestant gives {LOOP} untimed and then {LOOP} timed in "
            "a row; busy processes count, as many as there are processors.",
            "The bars take a peer's fastest row. loaderx has no epochs: its batches are counted off an endless stream.",
        ),
        tuple(
            trouble
            for rows in (found, slow, others, begun, between, busy, busy_between)
            for trouble in broken_rows(rows)
        ),
    )


@dataclass
class Data:
    """The rows, and where each keeper has them: all, and the first few."""

    settings: Settings
    rows: np.ndarray

    def kept(self, keeper: Keeper, count: int) -> Path:
        folder = self.settings.folder / f"{keeper.name}-{count}"
        if not folder.exists():
            keeper.keep(folder, self.rows[:count])
        return folder

    def right(self, ask: Any, result: tuple[Feeder, Any]) -> bool:
        feeder, batch = result
        numbers = numbers_of(feeder.see(batch), self.rows)
        return numbers is not None and len(np.unique(numbers)) == BATCH

    def drop(self, keeper: Keeper) -> None:
        """Make room on the disk."""
        for folder in self.settings.folder.glob(f"{keeper.name}-*"):
            shutil.rmtree(folder)


@dataclass
class Turns:
    """One feeder's timed epoch, call by call."""

    together: int
    batches: Iterator[Any] = field(default_factory=lambda: iter(()))

    def prepare(self, ask: Any) -> None:
        for _ in range(SETTLE):
            next(self.batches)

    def call(self) -> Any:
        batches = self.batches
        for _ in range(self.together):
            batch = next(batches)
        return batch


def raced(data: Data, feeders: Sequence[Feeder], together: int, calls: int) -> list[Row]:
    """Every feeder gives batches of an epoch in turn."""

    def contestant(feeder: Feeder) -> Contestant:
        turns = Turns(together)

        @contextmanager
        def setup() -> Iterator[Call]:
            with loaded(data.kept(feeder.keeper, SMALL), feeder) as epoch:
                check_epoch(feeder, epoch(), data.rows[:SMALL])
            folder = data.kept(feeder.keeper, len(data.rows))
            with loaded(folder, feeder) as epoch:
                if feeder.whole:
                    check_epoch(feeder, epoch(), data.rows)
                else:
                    read_files(folder)
                turns.batches = iter(epoch())
                yield lambda ask: (feeder, turns.call())
                del turns.batches

        return Contestant(feeder.name, setup, _role(feeder), feeder.note, turns.prepare)

    return side_by_side(list(map(contestant, feeders)), range(calls), data.right, check_every=1)


def stepped(data: Data, feeders: Sequence[Feeder], steps: int, pause: float = 0) -> list[Row]:
    """Every feeder gives batches of an epoch, each timed by itself, `pause` seconds after the one before."""

    def contestant(feeder: Feeder) -> Contestant:
        @contextmanager
        def setup() -> Iterator[Call]:
            with loaded(data.kept(feeder.keeper, len(data.rows)), feeder) as epoch:
                check_epoch(feeder, epoch(), data.rows)
                batches = chain.from_iterable(iter(epoch, None))  # one epoch after the other
                yield lambda ask, batches=batches: (feeder, next(batches))
                del batches

        return Contestant(feeder.name, setup, _role(feeder), feeder.note)

    return side_by_side(list(map(contestant, feeders)), range(steps), data.right, reads=True, loop=LOOP, pause=pause)


def started(data: Data, feeders: Sequence[Feeder], calls: int) -> list[Row]:
    """Every feeder makes a new loader over an open source and gives one batch; the loader is closed untimed."""

    def contestant(feeder: Feeder) -> Contestant:
        running = ExitStack()

        def prepare(ask: Any) -> None:
            running.close()
            gc.collect()  # workers of torch's DataLoader end when it is collected

        @contextmanager
        def setup() -> Iterator[Call]:
            with feeder.source(data.kept(feeder.keeper, len(data.rows))) as source, running:

                def call(ask: Any) -> Any:
                    batches = running.enter_context(feeder.load(source))()
                    running.push(lambda *raised: batches and None)  # not collected within the timing
                    return feeder, next(batches)

                yield call

        return Contestant(feeder.name, setup, _role(feeder), feeder.note, prepare)

    return side_by_side(list(map(contestant, feeders)), range(calls), data.right, check_every=1)


@contextmanager
def loaded(folder: Path, feeder: Feeder) -> Iterator[Epoch]:
    with feeder.source(folder) as source, feeder.load(source) as epoch:
        yield epoch
        del epoch
    gc.collect()  # workers of torch's DataLoader end when it is collected


def check_epoch(feeder: Feeder, batches: Iterator[Any], rows: np.ndarray) -> None:
    """Read an epoch to its end, and see that it has every row once and right."""
    seen = np.zeros(len(rows), np.int64)
    for batch in islice(batches, len(rows) // BATCH):
        numbers = numbers_of(feeder.see(batch), rows)
        if numbers is None:
            raise WrongValuesError("in an epoch")
        np.add.at(seen, numbers, 1)
    if not feeder.endless and next(batches, None) is not None:
        raise WrongValuesError("after an epoch's end")
    if (twice := int((seen != 1).sum())) > 2 * feeder.blurred * BATCH:
        raise WrongValuesError(f"{twice:,} rows never or twice in an epoch")


def numbers_of(batch: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
    """Which rows these are, or None where they are not as in the source."""
    numbers = batch[:, 0].astype(np.int64)
    if numbers.min() < 0 or numbers.max() >= len(rows):
        return None
    return numbers if np.array_equal(batch, rows[numbers]) else None


def read_files(folder: Path) -> None:
    """Bring a folder's files into the page cache."""
    for path in filter(Path.is_file, folder.rglob("*")):
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def _numbered(count: int) -> np.ndarray:
    rows = np.random.default_rng(0).standard_normal((count, WIDTH), dtype=np.float32)
    rows[:, 0] = np.arange(count)  # exact in float32 up to 2**24
    return rows


def _role(feeder: Feeder) -> Role:
    if feeder is LIMIT:
        return "limit"
    return "warmstore" if feeder.name.startswith("warmstore") else "peer"


def _ahead(rows: Sequence[Row], peers: Sequence[Feeder]) -> float | None:
    """How many times the rate of the fastest of these peers ours is."""
    medians = [median for peer in peers if (median := named(rows, peer.name).median)]
    ours = named(rows, OURS.name).median
    return min(medians) / ours if medians and ours else None


def _rate(rows: Sequence[Row], other: Feeder) -> float | None:
    """Our batches a second over another's, by the means."""
    return over(named(rows, other.name), named(rows, OURS.name), "mean")
